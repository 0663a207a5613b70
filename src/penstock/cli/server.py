"""`penstock serve`, and the connections of a running server: `penstock sessions` and `penstock kick`."""

import json
import os
import re
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import quote

from penstock.cli.connection import store_errors
from penstock.cli.options import AsJson, Config, argument, option
from penstock.cli.output import fail, print_document, print_line, print_table, refuse, size
from penstock.cli.settings import one_store
from penstock.model.address import environment_token
from penstock.settings import TABLE, ResolvedSettings, host_and_port, resolve

ANSWER_S_MAX: Final = 10.0
COLUMNS: Final = ("session", "peer", "#age", "#last seen", "#received", "#sent", "#unsent")
ID: Final = re.compile(r"[\w:-]+")

Http = Annotated[
    str | None,
    option(
        "--http", f"the server's HTTP address (default: {TABLE['http'].default}), with ?tls as in a URL", "HOST:PORT"
    ),
]


def serve_command(resolved: ResolvedSettings) -> None:
    """Serve a store until SIGTERM or Ctrl-C.

    When every gate listens, the server prints one line with the addresses: "penstock ready res=… http=…". The log goes
    to standard error.
    """
    # It takes a moment to import, and help does not need it.
    from penstock.server import run  # noqa: PLC0415

    settings = one_store(resolved)
    try:
        str(settings.data).encode()
    except UnicodeEncodeError:
        # SQLite cannot open such a file.
        refuse(f"data = {str(settings.data)!r} (from {resolved.sources['data']}): is not valid Unicode")

    def print_now(line: str) -> None:
        print_line(line)
        sys.stdout.flush()

    with store_errors():
        run(settings, print_now, resolved.sources)


def sessions_command(http: Http = None, config: Config = None, as_json: AsJson = False) -> None:
    """List the connections of a running server: peer, age, traffic in both directions, when last seen."""
    sessions = _request("GET", "/sessions", "sessions", http, config)
    if as_json:
        print_document(sessions)
        return
    rows = [
        (
            info["id"],
            info["peer"],
            f"{info['age']:,.0f} s",
            f"{info['last_seen']:,.0f} s ago",
            f"{info['messages_received']:,} ({size(info['bytes_received'])})",
            f"{info['messages_sent']:,} ({size(info['bytes_sent'])})",
            size(info["unsent_bytes"]),
        )
        for info in sessions
    ]
    print_table(COLUMNS, rows, empty="no sessions")


def kick_command(
    session: Annotated[str, argument("ID", "the session's id, as `penstock sessions` shows it")],
    http: Http = None,
    config: Config = None,
) -> None:
    """Close one connection of a running server. The server tells the client that it closes the connection."""
    if not ID.fullmatch(session):
        # As part of a path it would request something else.
        fail(f"there is no session {session}; list them with `penstock sessions`")
    kicked = _request("DELETE", f"/sessions/{quote(session, safe='')}", "kicked", http, config)
    print_line(f"kicked {kicked}")


def _request(method: str, path: str, member: str, http: str | None, config: Path | None) -> Any:
    """Ask a running server; returns one member of its answer, or ends the command."""
    from penstock.client.tls import HANDSHAKE_ERRORS, TlsOptions, handshake_error, plain_error, tls_options  # noqa: PLC0415

    named, _, query = (http or "").partition("?")
    settings = resolve({"http": named or (None if query else http)}, os.environ, config).settings
    address, tls = settings.http, None
    try:
        tls = tls_options(query)
    except ValueError as error:
        refuse(f"--http {named}: {error}")
    if tls is None and settings.tls_cert is not None:
        # Trust the server's own certificate, whatever authority has signed it.
        tls = TlsOptions(str(settings.tls_cert))
    host, number = host_and_port(address)
    try:
        host.encode("idna")
    except UnicodeError:
        refuse(f"{address} has no valid host name; name the server with --http HOST:PORT")
    connection = HTTPConnection(host, number, timeout=ANSWER_S_MAX)
    if tls is not None:
        connection = HTTPSConnection(host, number, timeout=ANSWER_S_MAX, context=tls.context(address))
    content = b""
    stranger = f"the server at {address} is not a Penstock server"
    try:
        token = environment_token()
        connection.request(method, path, headers={} if token is None else {"authorization": f"Bearer {token}"})
        response = connection.getresponse()
        content = response.read()
        answer = json.loads(content)
    except OSError as error:
        if tls is not None and isinstance(error, HANDSHAKE_ERRORS):
            raise handshake_error(address, host, number, error) from None
        reason = (error.strerror or str(error)).lower()
        fail(f"no server answers at {address}: {reason}; name the server with --http HOST:PORT")
    except (HTTPException, ValueError):
        if tls is None and b"speaks TLS" in content:
            raise plain_error(f"http://{address}") from None
        fail(stranger)
    finally:
        connection.close()
    if isinstance(answer, dict) and response.status == 200 and member in answer:
        return answer[member]
    return fail(str(answer["error"]) if isinstance(answer, dict) and "error" in answer else stranger)
