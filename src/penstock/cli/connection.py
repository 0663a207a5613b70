"""How commands reach a server or a store, and how they report errors.

Without `--url` or `--data`, a command connects to the server of this machine, at the address of the setting `mq`.
`PENSTOCK_URL` names another server for all commands, and `PENSTOCK_TOKEN` is what they show to it.
"""

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from penstock.cli.options import URL_ENVIRONMENT, Config, StoreData, StoreUrl, TokenFile
from penstock.cli.output import fail, refuse
from penstock.cli.settings import one_store, with_first
from penstock.cli.signals import exit_on_second_interrupt
from penstock.errors import (
    AnswerMalformed,
    CannotConnect,
    InvalidRequest,
    PenstockError,
    StorageFailure,
    StoreError,
    StoreInUse,
)
from penstock.model.address import TOKEN_ENVIRONMENT, checked_token
from penstock.settings import TABLE, load, resolve, store_address
from penstock.settings.sources import without_password

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.store import Store

ANSWER_S_MAX: Final = 30.0
"""How long one request may take, including attempts to connect again."""
FILE_CHARACTERS_MAX: Final = 1000
"""Characters that a command reads of a file with a token."""
LOCAL: Final = ("sqlite:", "postgresql:", "postgres:")
"""Schemes of stores, which need no server."""
EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - where a server listens, not where we do
"""Addresses that servers listen on and clients cannot connect to."""


@contextmanager
def connected(
    url: str | None, data: Path | None = None, *, create: bool = False, retries: bool = True
) -> Iterator["Client"]:
    """A client of what `--url` or `--data` name. A missing store is created only with `create`."""
    # The client takes a moment to import, and the help of a command does not need it.
    from penstock.client import connect  # noqa: PLC0415

    address = address_of(url, data)
    if not create and address.startswith(LOCAL) and address != "sqlite:///":
        # The client would create a store that is not there; a reader raises what is wrong with it.
        from penstock.store import open_reader  # noqa: PLC0415

        open_reader(address).close()
    try:
        with connect(address, timeout=ANSWER_S_MAX, retries=retries) as client, exit_on_second_interrupt():
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


def named_address(url: str | None, data: str | None, store: str | None, config: Path | None) -> str | None:
    """The address that a flag names, or else `PENSTOCK_URL`, or else the settings; None if nothing does."""
    if sum((by_flag(url), data is not None, store is not None)) > 1:
        refuse("only one of --url, --data and --store can be given")
    settings = one_store(resolve({"data": data, "store": store}, os.environ, config))
    if url is not None and data is None and store is None:
        return url
    return None if settings.data is None and settings.store is None else store_address(settings)


def default_url() -> str:
    settings = load({}, os.environ)
    address = settings.mq or str(TABLE["mq"].default)
    host, _, port = address.rpartition(":")
    if port == "0":
        refuse(f"mq = {address!r} means any free port: name the server with --url penstock://HOST:PORT")
    # Trust the server's own certificate, whatever authority has signed it.
    tls = "" if settings.tls_cert is None else f"?tls&tls_ca={quote(str(settings.tls_cert))}"
    return f"penstock://{'127.0.0.1' if host in EVERYWHERE else host}:{port}{tls}"


def with_token(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--token` too. Its token becomes that of the environment: Spark's processes need it as well."""
    kind = inspect.Parameter.KEYWORD_ONLY
    takes = [each.replace(kind=kind) for each in inspect.signature(command, eval_str=True).parameters.values()]
    names = [each.name for each in takes]
    place = next((names.index(name) + 1 for name in ("url", "http") if name in names), len(names))
    takes.insert(place, inspect.Parameter("token", kind, default=None, annotation=TokenFile))

    def run(token: str | None = None, **given: Any) -> None:
        if token is not None:
            os.environ[TOKEN_ENVIRONMENT] = read_token("--token", token)
        command(**given)

    run.__doc__ = command.__doc__
    run.__signature__ = inspect.Signature(takes)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in takes}
    return run


def read_token(flag: str, given: str) -> str:
    """The token in a file that an option names, as @FILE. A token itself is refused: other users can see it."""
    name = given.removeprefix("@")
    if name == given or not name:
        # Not repeated: it may be a token.
        refuse(
            f"{flag} takes @FILE, the file with the token: what is on a command line shows in the list of processes "
            f"(or set {TOKEN_ENVIRONMENT})"
        )
    try:
        with open(sys.stdin.fileno() if name == "-" else name, encoding="ascii", closefd=name != "-") as file:
            token = file.read(FILE_CHARACTERS_MAX).strip()
        return checked_token(token or None)
    except OSError as error:
        refuse(f"{flag} @{name}: {(error.strerror or str(error)).lower()}")
    except (UnicodeError, InvalidRequest):
        refuse(f"{flag} @{name}: the file does not hold a token, and nothing else")


def with_store(command: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command `--data`, `--store` and `--config`, and pass it the store's URL first."""

    def url(data: str | None, store: str | None, config: Path | None) -> str:
        return store_address(one_store(resolve({"data": data, "store": store}, os.environ, config)))

    return with_first(store_errors()(command), url, {"data": StoreData, "store": StoreUrl, "config": Config})


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
    if isinstance(error, OSError):
        # Files that we open have names; without a name it is most likely standard output.
        line = f"{error.filename or 'standard output'}: {(error.strerror or str(error)).lower()}"
    elif isinstance(error, CannotConnect) and error.url.startswith(LOCAL):
        line = f"cannot open the store: {error.reason}"
    elif isinstance(error, CannotConnect):
        line = f"no server answers at {error.url}: {error.reason}"
        if "handshake" not in error.reason:  # A server that ended one is there.
            line += "; start one with `penstock serve`, or name it with --url"
    elif isinstance(error, StoreInUse):
        line = f"{error}; connect to it with --url penstock://HOST:PORT"
    else:
        line = str(error)
    return str(without_password(line))


@contextmanager
def store_errors() -> Iterator[None]:
    """Errors of commands that work on a store itself: nothing is in flight, and they do not connect to its server."""
    try:
        yield
    except StorageFailure as error:
        raise StoreError(f"the store cannot be used: {error.reason}") from error
    except StoreInUse as error:
        raise StoreError(str(error)) from error
