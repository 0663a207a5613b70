"""`penstock sessions` and `penstock kick`: the connections of a running server, asked for at its HTTP address."""

import json
import os
import re
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer

from penstock.cli.connecting import telling
from penstock.cli.options import Config
from penstock.cli.output import AsJson, fail, print_document, print_line, print_table, refuse, size
from penstock.settings import TABLE, host_and_port, resolve

__all__ = ["kick_command", "sessions_command"]

ANSWER_S_MAX: Final = 10.0
COLUMNS: Final = ("session", "peer", "#age", "#last seen", "#received", "#sent", "#unsent")

ID: Final = re.compile(r"[\w:-]+")

Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        help=f"the server's HTTP address (default: {TABLE['http'].default})",
        metavar="HOST:PORT",
        show_default=False,
    ),
]


def sessions_command(
    http: Http = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the connections of a running server: who, how old, how much both ways, when last seen."""
    sessions = ask(server_address(http, config), "GET", "/sessions", "sessions")
    if as_json:
        print_document(sessions)
    else:
        print_table(COLUMNS, map(session_row, sessions), empty="no sessions")


def kick_command(
    session: Annotated[str, typer.Argument(metavar="ID", help="the session's id, as `penstock sessions` shows it")],
    http: Http = None,
    config: Config = None,
) -> None:
    """Cut one connection of a running server off. Its client is told that the server closes it."""
    if not ID.fullmatch(session):
        # As a part of an address it would ask for something else.
        fail(f"there is no session {session}; `penstock sessions` shows which there are")
    kicked = ask(server_address(http, config), "DELETE", f"/sessions/{quote(session, safe='')}", "kicked")
    print_line(f"kicked {kicked}")


def server_address(http: str | None, config: Path | None) -> str:
    """Where the settings say that the server's HTTP gate is."""
    with telling():
        return resolve({"http": http}, os.environ, config).settings.http


def ask(address: str, method: str, path: str, wanted: str) -> Any:
    """What a running server answers under this name; ends the command with one line if it does not."""
    host, number = host_and_port(address)
    try:
        host.encode("idna")
    except UnicodeError:
        refuse(f"{address} names no host that there can be (--http HOST:PORT?)")
    connection = HTTPConnection(host, number, timeout=ANSWER_S_MAX)
    stranger = f"what answers at {address} is not a Penstock server"
    try:
        connection.request(method, path)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        fail(f"no server answers at {address}: {reason} (--http HOST:PORT?)")
    except (HTTPException, ValueError):
        fail(stranger)
    finally:
        connection.close()
    name = wanted if response.status == 200 else "error"
    if not isinstance(answer, dict) or name not in answer:
        fail(stranger)
    if name == "error":
        fail(str(answer[name]))
    return answer[name]


def session_row(info: dict[str, Any]) -> list[object]:
    """A session for people: times, and messages with their bytes both ways."""
    return [
        info["id"],
        info["peer"],
        f"{info['age']:,.0f} s",
        f"{info['last_seen']:,.0f} s ago",
        f"{info['messages_received']:,} ({size(info['bytes_received'])})",
        f"{info['messages_sent']:,} ({size(info['bytes_sent'])})",
        size(info["unsent_bytes"]),
    ]
