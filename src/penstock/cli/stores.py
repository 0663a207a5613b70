"""What commands that look at a store share: `--data` or `--store`, and errors told in a line."""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import typer

from penstock.cli.options import Config, Data, StoreUrl
from penstock.cli.output import complain
from penstock.cli.serve import one_store
from penstock.cli.settings import own_parameters
from penstock.errors import PenstockError, StoreError
from penstock.server import complaint, store_address, wrong_use
from penstock.settings import BadSetting, resolve
from penstock.store import Store, open_reader


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command `--data`, `--store` and `--config`, and pass it the store's URL first."""

    @functools.wraps(command)
    def run(*, data: str | None, store: str | None, config: Path | None, **given: Any) -> None:
        with complaining():
            settings = one_store(resolve({"data": data, "store": store}, os.environ, config))
            command(store_address(settings), **given)

    parameters = [*_parameters(), *own_parameters(command)]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # Without this, typer would follow it to the original signature.
    del run.__wrapped__
    return run


def _parameters() -> Iterator[inspect.Parameter]:
    for name, annotation in (("data", Data), ("store", StoreUrl), ("config", Config)):
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


@contextmanager
def complaining() -> Iterator[None]:
    """End the command with one line and its exit code if a setting or a store cannot be used."""
    try:
        yield
    except BadSetting as error:
        raise typer.Exit(complain(wrong_use(error), 2)) from None
    except PenstockError as error:
        raise typer.Exit(complain(complaint(error), 1)) from None


@contextmanager
def opened(url: str) -> Iterator[Store]:
    """The store, open for reading, beside whoever serves it."""
    try:
        store = open_reader(url)
    except OSError as error:
        raise typer.Exit(complain(f"{error.filename}: {error.strerror}", 1)) from None
    try:
        yield store
    except (TypeError, ValueError, AttributeError) as error:
        # A damaged file can hold any value in any column.
        raise StoreError(f"the store holds a value that cannot be: {error}; run penstock verify") from error
    finally:
        store.close()
