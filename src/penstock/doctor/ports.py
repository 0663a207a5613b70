"""The addresses that a server would listen on: free, in use by a Penstock server, or in use by another program."""

import errno
import json
import os
import socket
import ssl
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import quote

from penstock.client import connect
from penstock.client.tls import TlsOptions, handshake_error
from penstock.doctor.checks import CheckResult, ok, problem
from penstock.errors import NotAuthenticated, PenstockError, TlsFailed
from penstock.settings import TABLE, Settings, host_and_port

GATES: Final = ("http", "res", "mq", "remits")
ANSWER_S_MAX: Final = 2.0
HTTP_BYTES_MAX: Final = 64 * 1024
ZMQ: Final = "tcp://"
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a server listens, not where we do
"""Where to reach a program that listens on all addresses."""

LIST_LOGS: Final = struct.pack(">IBB", 3, 0, 3) + b"\xa0"
"""A Remits request for the names of all logs: length, request, code, and a map without entries."""
ANSWER: Final = struct.Struct(">IBB")
DATA: Final = 2
"""The kind of a Remits frame with a result; its code is 0."""
REFUSED: Final = (3, 35)
"""The kind and the code of the answer of a server with principals: NotAllowed."""


def ports(settings: Settings) -> Iterator[CheckResult]:
    for gate in GATES:
        address = getattr(settings, gate)
        if address is not None and not address.startswith("ipc://"):
            yield port(gate, address, None if gate == "res" else settings.tls_cert)


def port(gate: str, address: str, tls_cert: Path | None = None) -> CheckResult:
    check = f"port {gate}"
    host, number = host_and_port(address.removeprefix(ZMQ))
    if number == 0:
        return ok(check, f"{address} means any free port")
    elsewhere = f"use another port: penstock serve {TABLE[gate].flag} {ZMQ * address.startswith(ZMQ)}127.0.0.1:PORT"
    refusal = bind_error(host, number)
    if refusal is None:
        return ok(check, f"{address} is free")
    if refusal != errno.EADDRINUSE:
        return problem(check, f"{address} cannot be used: {os.strerror(refusal).lower()}", elsewhere)
    listener = _listener(gate, EVERYWHERE.get(host, host), number, tls_cert)
    if listener is not None:
        return ok(check, f"{address}: {listener}")
    return problem(check, f"a program that is not Penstock listens on {address}", f"stop it, or {elsewhere}")


def bind_error(host: str, number: int) -> int | None:
    """The error number of an attempt to listen there, or None if it succeeds."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        # Impossible host names raise UnicodeError.
        return errno.EADDRNOTAVAIL
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        # As a server does: connections that ended a moment ago do not keep the port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(address)
        except OSError as error:
            return error.errno
    return None


def _listener(gate: str, host: str, number: int, tls_cert: Path | None) -> str | None:
    """The Penstock server that listens there, in words; None if it is another program."""
    tls = None if tls_cert is None else TlsOptions(str(tls_cert))
    try:
        if gate == "http":
            return _ask_http(host, number, tls)
        if gate == "remits":
            return _ask_remits(host, number, tls)
    except TlsFailed as error:
        return f"a server with TLS: {error.reason}"
    place = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    try:
        scheme = "zmq+tcp" if gate == "res" else "penstock"
        tls_part = "" if tls_cert is None else f"?tls&tls_ca={quote(str(tls_cert))}"
        # Another program may listen there: send it no token.
        url = f"{scheme}://{place}{tls_part}"
        with connect(url, token="", timeout=ANSWER_S_MAX, retries=False) as client:
            return f"a Penstock server with store {client.stats().store_id}"
    except NotAuthenticated:
        return "a Penstock server with principals"
    except TlsFailed as error:
        return f"a server with TLS: {error.reason}"
    except PenstockError:
        return None


def _ask_http(host: str, number: int, tls: TlsOptions | None) -> str | None:
    connection = HTTPConnection(host, number, timeout=ANSWER_S_MAX)
    if tls is not None:
        connection = HTTPSConnection(host, number, timeout=ANSWER_S_MAX, context=tls.context(host))
    try:
        connection.request("GET", "/health")
        about = json.loads(connection.getresponse().read(HTTP_BYTES_MAX))
        state = "" if about["status"] == "ok" else f", whose health is: {about['reason']}"
        if "store_id" not in about:
            return f"a server with principals, as Penstock is{state}"
        return f"Penstock {about['version']} with store {about['store_id']}{state}"
    except ssl.SSLError as error:
        raise _tls_failure(host, number, error) from None
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def _ask_remits(host: str, number: int, tls: TlsOptions | None) -> str | None:
    try:
        with socket.create_connection((host, number), ANSWER_S_MAX) as plain, ExitStack() as secured:
            asked: socket.socket = plain
            if tls is not None:
                asked = secured.enter_context(tls.context(host).wrap_socket(plain, server_hostname=host))
            asked.sendall(LIST_LOGS)
            head = asked.makefile("rb").read(ANSWER.size)
        length, kind, code = ANSWER.unpack(head)
    except ssl.SSLError as error:
        raise _tls_failure(host, number, error) from None
    except (OSError, struct.error):
        return None
    if (kind, code) == REFUSED:
        return "a server of Remits with principals, as Penstock is"
    return "a server of Remits, as Penstock is" if (kind, code) == (DATA, 0) and length >= 2 else None


def _tls_failure(host: str, number: int, error: ssl.SSLError) -> TlsFailed:
    found = handshake_error(host, host, number, error)
    return TlsFailed(found.url, found.reason)
