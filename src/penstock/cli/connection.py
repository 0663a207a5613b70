"""How commands reach a server or a store, and how they report errors.

Without `--url` or `--data`, a command connects to the server of this machine, at the address of the setting `mq`.
`PENSTOCK_URL` names another server for all commands.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.cli.options import URL_ENVIRONMENT, Config, StoreData, StoreUrl
from penstock.cli.output import fail, refuse
from penstock.cli.settings import one_store, own_parameters, with_signature
from penstock.cli.signals import exit_on_second_interrupt
from penstock.errors import (
    AnswerMalformed,
    BadUrl,
    CannotConnect,
    PenstockError,
    StorageFailure,
    StoreError,
    StoreInUse,
)
from penstock.settings import BadSetting, load, resolve
from penstock.settings.sources import without_password
from penstock.settings.table import TABLE

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.store import Store

ANSWER_S_MAX: Final = 30.0
"""How long one request may take, including attempts to connect again."""
LOCAL: Final = ("sqlite:", "postgresql:", "postgres:")
"""Schemes of stores, which need no server."""
EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - where a server listens, not where we do
"""Addresses that servers listen on and clients cannot connect to."""


@contextmanager
def connected(
    url: str | None,
    data: Path | None = None,
    *,
    create: bool = False,
    timeout: float = ANSWER_S_MAX,
    retries: bool = True,
) -> Iterator["Client"]:
    """A client of what `--url` or `--data` name. Errors, in the body too, end the command with one line.

    A missing store is created only with `create`. `timeout` and `retries` are those of the client.
    """
    # The client takes a moment to import, and the help of a command does not need it.
    from penstock.client import connect  # noqa: PLC0415

    with exit_on_error():
        address = address_of(url, data)
        if not create and address.startswith(LOCAL) and address != "sqlite:///":
            # The client would create a store that is not there; a reader raises what is wrong with it.
            from penstock.store import open_reader  # noqa: PLC0415

            open_reader(address).close()
        try:
            with connect(address, timeout=timeout, retries=retries) as client, exit_on_second_interrupt():
                yield client
        except AnswerMalformed as error:
            fail(f"the server at {address} is not a Penstock server, or speaks another protocol: {error.reason}")


def address_of(url: str | None, data: Path | None = None) -> str:
    """The address to connect to. `--data` wins over the variable; `--url` and `--data` together are refused."""
    if data is None:
        return url or default_url()
    if by_flag(url):
        refuse("only one of --url and --data can be given")
    return f"sqlite:///{data}"


def by_flag(url: str | None) -> bool:
    """Whether the command line, not the variable, gave the address."""
    return url is not None and url != os.environ.get(URL_ENVIRONMENT)


def default_url() -> str:
    address = load({}, os.environ).mq or str(TABLE["mq"].default)
    host, _, port = address.rpartition(":")
    if port == "0":
        refuse(f"mq = {address!r} means any free port: name the server with --url penstock://HOST:PORT")
    return f"penstock://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command `--data`, `--store` and `--config`, and pass it the store's URL first."""

    @functools.wraps(command)
    def run(*, data: str | None, store: str | None, config: Path | None, **given: Any) -> None:
        from penstock.server import store_address  # noqa: PLC0415

        with exit_on_error(store_error_line):
            settings = one_store(resolve({"data": data, "store": store}, os.environ, config))
            command(store_address(settings), **given)

    options = (("data", StoreData), ("store", StoreUrl), ("config", Config))
    keyword = functools.partial(inspect.Parameter, kind=inspect.Parameter.KEYWORD_ONLY, default=None)
    return with_signature(
        run, [*(keyword(name, annotation=annotation) for name, annotation in options), *own_parameters(command)]
    )


@contextmanager
def opened(url: str) -> Iterator["Store"]:
    """The store, open for reading; a server may have it open as well."""
    from penstock.store import open_reader  # noqa: PLC0415

    store = open_reader(url)
    try:
        yield store
    except (TypeError, ValueError, AttributeError) as error:
        # A damaged file can hold any value in any column.
        raise StoreError(f"the store holds an impossible value: {error}; run penstock verify") from error
    finally:
        store.close()


def error_line(error: PenstockError | OSError) -> str:
    """An error as one line: what happened, and what to do."""
    if isinstance(error, OSError):
        # Files that we open have names; without a name it is most likely standard output.
        line = f"{error.filename or 'standard output'}: {(error.strerror or str(error)).lower()}"
    elif isinstance(error, CannotConnect) and error.url.startswith(LOCAL):
        line = f"cannot open the store: {error.reason}"
    elif isinstance(error, CannotConnect):
        line = (
            f"no server answers at {error.url}: {error.reason}; start one with `penstock serve`, or name it with --url"
        )
    elif isinstance(error, StoreInUse):
        line = f"{error}; connect to it with --url penstock://HOST:PORT"
    else:
        line = str(error)
    return str(without_password(line))


def store_error_line(error: PenstockError | OSError) -> str:
    """An error as one line, for commands that work on a store itself and have nothing in flight."""
    if isinstance(error, StorageFailure):
        return str(without_password(f"the store cannot be used: {error.reason}"))
    return error_line(error) if isinstance(error, OSError) else str(without_password(str(error)))


@contextmanager
def exit_on_error(line: Callable[[PenstockError | OSError], str] = error_line) -> Iterator[None]:
    """End the command with one line and its exit code if something fails that a user can understand."""
    try:
        yield
    except BrokenPipeError:
        # The reader of our output is gone: the command ends quietly.
        raise
    except BadSetting as error:
        refuse(str(error) if error.value is not None else error.reason)
    except BadUrl as error:
        refuse(line(error))
    except (PenstockError, OSError) as error:
        fail(line(error))
