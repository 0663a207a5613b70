"""`penstock sessions` and `penstock kick`: the connections of a running server, asked for at its HTTP address."""

import json
import os
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

import typer
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from penstock.cli.stores import Config, complaining
from penstock.server import complain
from penstock.settings import TABLE, host_and_port, resolve

__all__ = ["kick_command", "sessions_command"]

ANSWER_S_MAX: Final = 10.0

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
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """List the connections of a running server: who, how old, how much both ways, when last seen."""
    sessions = ask(server_address(http, config), "GET", "/sessions", "sessions")
    if as_json:
        typer.echo(json.dumps(sessions, indent=2))
    elif sessions:
        Console(highlight=False).print(session_table(sessions))
    else:
        typer.echo("no sessions")


def kick_command(
    session: Annotated[str, typer.Argument(metavar="ID", help="the session's id, as `penstock sessions` shows it")],
    http: Http = None,
    config: Config = None,
) -> None:
    """Cut one connection of a running server off. Its client is told that the server closes it."""
    kicked = ask(server_address(http, config), "DELETE", f"/sessions/{quote(session, safe='')}", "kicked")
    typer.echo(f"kicked {kicked}")


def server_address(http: str | None, config: Path | None) -> str:
    """Where the settings say that the server's HTTP gate is."""
    with complaining():
        return resolve({"http": http}, os.environ, config).settings.http


def ask(address: str, method: str, path: str, wanted: str) -> Any:
    """What a running server answers under this name; ends the command with one line if it does not."""
    connection = HTTPConnection(*host_and_port(address), timeout=ANSWER_S_MAX)
    stranger = f"what answers at {address} is not a Penstock server"
    try:
        connection.request(method, path)
        response = connection.getresponse()
        answer = json.loads(response.read())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise typer.Exit(complain(f"no server answers at {address}: {reason} (--http HOST:PORT?)", 1)) from None
    except (HTTPException, ValueError):
        raise typer.Exit(complain(stranger, 1)) from None
    finally:
        connection.close()
    name = wanted if response.status == 200 else "error"
    if not isinstance(answer, dict) or name not in answer:
        raise typer.Exit(complain(stranger, 1))
    if name == "error":
        raise typer.Exit(complain(str(answer[name]), 1))
    return answer[name]


def session_table(sessions: list[dict[str, Any]]) -> Table:
    """Sessions for people, narrow enough for most terminals."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("session", "peer"):
        table.add_column(column, no_wrap=True)
    for column in ("age", "last seen", "received", "sent", "unsent"):
        table.add_column(column, justify="right")
    for info in sessions:
        table.add_row(info["id"], info["peer"], *_cells(info))
    return table


def _cells(info: dict[str, Any]) -> list[str]:
    """Times, and messages with their bytes both ways."""
    return [
        f"{info['age']:,.0f} s",
        f"{info['last_seen']:,.0f} s ago",
        f"{info['messages_received']:,} ({decimal(info['bytes_received'])})",
        f"{info['messages_sent']:,} ({decimal(info['bytes_sent'])})",
        decimal(info["unsent_bytes"]),
    ]
