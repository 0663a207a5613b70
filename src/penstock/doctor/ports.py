"""The addresses that a server would listen on: free, a Penstock's already, or a stranger's."""

import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Iterator
from http.client import HTTPConnection, HTTPException
from typing import Final

from penstock.client import connect
from penstock.doctor.findings import Finding, ok, problem
from penstock.errors import PenstockError
from penstock.settings import TABLE, Settings, host_and_port

GATES: Final = ("http", "res", "mq", "remits")
ANSWER_S_MAX: Final = 2.0
"""How long somebody may take to answer who they are."""
HTTP_BYTES_MAX: Final = 64 * 1024
ZMQ: Final = "tcp://"
EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - where a server listens, not where we do
"""Where to ask somebody who listens everywhere."""

LIST_LOGS: Final = struct.pack(">IBB", 3, 0, 3) + b"\xa0"
"""A Remits request for the names of all logs: length, request, code, and a map without entries."""
ANSWER: Final = struct.Struct(">IBB")
DATA: Final = 2
"""The kind of a Remits frame that has what was asked for; its code is 0."""


def ports(settings: Settings) -> Iterator[Finding]:
    """Look at every address that a server with these settings would have."""
    for gate in GATES:
        address = getattr(settings, gate)
        if address is not None and not address.startswith("ipc://"):
            yield port(gate, address)


def port(gate: str, address: str) -> Finding:
    """Look at one."""
    check = f"port {gate}"
    host, number = host_and_port(address.removeprefix(ZMQ))
    if number == 0:
        return ok(check, f"{address} is any that is free")
    flag = TABLE[gate].flag
    elsewhere = f"penstock serve {flag} {ZMQ * address.startswith(ZMQ)}127.0.0.1:PORT"
    refusal = refused(host, number)
    if refusal is None:
        return ok(check, f"{address} is free")
    if refusal != errno.EADDRINUSE:
        return problem(
            check, f"{address} cannot be had: {os.strerror(refusal).lower()}", f"serve elsewhere: {elsewhere}"
        )
    who = ASKING[gate](EVERYWHERE.get(host, host), number)
    if who is not None:
        return ok(check, f"{address}: {who}")
    stranger = f"something listens on {address} that does not answer as a Penstock"
    return problem(check, stranger, f"end it, or serve elsewhere: {elsewhere}")


def refused(host: str, number: int) -> int | None:
    """Why nobody could listen there now: the system's error, or None if one could."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, number, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError):
        # Of a name that nobody can have, it is said in Unicode's words.
        return errno.EADDRNOTAVAIL
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        # As a server does it: connections that just ended do not keep a port.
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(address)
        except OSError as error:
            return error.errno
    return None


# --- who is it ------------------------------------------------------------------------------------------------


def ask_http(host: str, number: int) -> str | None:
    """A Penstock's health, in words; None if it is none."""
    connection = HTTPConnection(host, number, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/health")
        about = json.loads(connection.getresponse().read(HTTP_BYTES_MAX))
        state = "" if about["status"] == "ok" else f", which says: {about['reason']}"
        return f"Penstock {about['version']} with store {about['store_id']}{state}"
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return None
    finally:
        connection.close()


def ask_client(scheme: str, host: str, number: int) -> str | None:
    """A Penstock's store, as our client is told it; None if it tells nothing."""
    place = f"[{host}]:{number}" if ":" in host else f"{host}:{number}"
    try:
        with connect(f"{scheme}://{place}", timeout=ANSWER_S_MAX, retries=False) as client:
            return f"a Penstock with store {client.stats().store_id}"
    except PenstockError:
        return None


def ask_res(host: str, number: int) -> str | None:
    """Who serves Res01 over ZeroMQ there."""
    return ask_client("zmq+tcp", host, number)


def ask_mq(host: str, number: int) -> str | None:
    """Who serves Res01 over TCP there."""
    return ask_client("penstock", host, number)


def ask_remits(host: str, number: int) -> str | None:
    """Who serves logs there: it answers with one frame of data, or it is none of ours."""
    try:
        with socket.create_connection((host, number), ANSWER_S_MAX) as asked:
            asked.sendall(LIST_LOGS)
            head = asked.recv(ANSWER.size, socket.MSG_WAITALL)
        length, kind, code = ANSWER.unpack(head)
    except (OSError, struct.error):
        return None
    return "a server of Remits, as Penstock is" if (kind, code) == (DATA, 0) and length >= 2 else None


ASKING: Final[dict[str, Callable[[str, int], str | None]]] = {
    "http": ask_http,
    "res": ask_res,
    "mq": ask_mq,
    "remits": ask_remits,
}
"""How to find out who listens where a gate would."""
