"""What commands share that work through a client: `--url` or `--data`, and errors told in a line.

Without either, it is the server of this machine, wherever the settings say that its MQ gate is. `PENSTOCK_URL` names
another one for all commands.
"""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from penstock.cli.options import directory
from penstock.cli.output import INTERRUPTED, fail, refuse
from penstock.errors import AnswerMalformed, BadUrl, CannotConnect, PenstockError, StoreInUse
from penstock.settings import BadSetting, load
from penstock.settings.loading import without_password
from penstock.settings.table import TABLE

if TYPE_CHECKING:
    from penstock.client import Client

__all__ = ["URL_ENVIRONMENT", "Data", "Url", "address_of", "connected", "default_url", "explained", "telling"]

ANSWER_S_MAX: Final = 30.0
"""How long one request may take, attempts to connect again included."""
URL_ENVIRONMENT: Final = "PENSTOCK_URL"
"""The environment variable that names the server, as `--url` does."""
LOCAL: Final = ("sqlite:", "postgresql:", "postgres:")
"""What addresses of stores begin with, to which no server is needed."""
EVERYWHERE: Final = ("0.0.0.0", "[::]")  # noqa: S104 - where a server listens, not where we do
"""Addresses that a server listens on, and that nobody can connect to."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="a running server: penstock://HOST:PORT or zmq+tcp://HOST:PORT; or a store: sqlite:///DIR, postgresql://…",
        metavar="URL",
        envvar=URL_ENVIRONMENT,
        show_default=f"penstock://{TABLE['mq'].default}",
    ),
]
Data = Annotated[
    Path | None,
    typer.Option(
        "--data",
        help="instead of a server: the directory of a store that nobody serves",
        metavar="DIR",
        parser=directory,
    ),
]


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

    A store that is not there is made only with `create`. `timeout` and `retries` are those of the client.
    """
    # It takes a moment to import, and the help of a command needs none of it.
    from penstock.client import connect  # noqa: PLC0415

    with telling():
        address = address_of(url, data)
        if not create:
            _look(address)
        try:
            with connect(address, timeout=timeout, retries=retries) as client, patient_once():
                yield client
        except AnswerMalformed as error:
            fail(f"what answers at {address} is no Penstock, or speaks another protocol there: {error.reason}")


@contextmanager
def patient_once() -> Iterator[None]:
    """After the first Ctrl-C a client is closed in peace; the second ends the process at once."""
    try:
        yield
    except KeyboardInterrupt:
        # Only the main thread can be interrupted, and only it may say what becomes of interrupts.
        signal.signal(signal.SIGINT, lambda _number, _frame: os._exit(INTERRUPTED))
        raise


def address_of(url: str | None, data: Path | None = None) -> str:
    """Where to connect to; `--data` beats a variable, and `--url` and `--data` together are a mistake."""
    if data is None:
        return url or default_url()
    if by_flag(url):
        refuse("only one of --url and --data can be given")
    return f"sqlite:///{data}"


def by_flag(url: str | None) -> bool:
    """Whether an address was given in the command itself, not by the variable."""
    return url is not None and url != os.environ.get(URL_ENVIRONMENT)


def default_url() -> str:
    """The server of this machine, as far as the settings tell where it is."""
    address = load({}, os.environ).mq or str(TABLE["mq"].default)
    host, _, port = address.rpartition(":")
    if port == "0":
        refuse(f"mq = {address!r} says any free port: name the server with --url penstock://HOST:PORT")
    return f"penstock://{'127.0.0.1' if host in EVERYWHERE else host}:{port}"


def _look(address: str) -> None:
    """Raise what is wrong with a store that should be there, and make none."""
    if not address.startswith(LOCAL) or address == "sqlite:///":
        # Whoever connects says what is wrong with it.
        return
    # Stores take long to import, and most commands ask a server.
    from penstock.store import open_reader  # noqa: PLC0415

    open_reader(address).close()


@contextmanager
def telling() -> Iterator[None]:
    """End the command with one line, and its exit code, if something fails that a user can understand."""
    try:
        yield
    except BrokenPipeError:
        # Nobody reads our output any more: that is no failure to tell of.
        raise
    except BadSetting as error:
        refuse(str(error) if error.value is not None else error.reason)
    except BadUrl as error:
        refuse(explained(error))
    except (PenstockError, OSError) as error:
        fail(explained(error))


def explained(error: PenstockError | OSError) -> str:
    """An error for somebody at a terminal, with what to do about it."""
    return str(without_password(_sentence(error)))


def _sentence(error: PenstockError | OSError) -> str:
    if isinstance(error, OSError):
        # Files that we open have names; without one it is most likely what we print to.
        return f"{error.filename or 'standard output'}: {(error.strerror or str(error)).lower()}"
    if isinstance(error, CannotConnect):
        if error.url.startswith(LOCAL):
            return f"the store cannot be opened: {error.reason}"
        return f"no server answers at {error.url}: {error.reason}; start one with `penstock serve`, or say --url"
    return f"{error}; ask it: --url penstock://HOST:PORT" if isinstance(error, StoreInUse) else str(error)
