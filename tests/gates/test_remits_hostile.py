"""Clients that break things on purpose: never reading, never ending, too many, too silent; and how they are cut off."""

import contextlib
import json
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gates.remits_client import (
    ITERATOR_NEXT,
    LOG_LIST,
    MESSAGE_ADD,
    Remits,
    frame,
    fresh,
    neighbours_are_served,
    request,
)
from tests.gates.serving import Served, environment, until

MEMORY_BYTES_MAX = 128 << 20
"""What a server may grow by while somebody misbehaves."""
IDLE_MS = 5000
CONNECTIONS = 8


def closed(server: Served, reason: str) -> float:
    """How many sessions have ended for a reason."""
    return server.metric(f'penstock_gate_closed_total{{gate="remits",reason="{reason}"}}')


def session_of(server: Served, client: Remits) -> dict[str, Any]:
    """What the server knows of a connection."""
    found = [session for session in server.sessions() if session["peer"] == client.address]
    assert found, "it was cut off"
    return found[0]


# ---------------------------------------------------------------- too silent, too slow


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that does not wait for long."""
    with Served(tmp_path_factory.mktemp("impatient") / "data", "--remits-idle-ms-max", str(IDLE_MS)) as served:
        yield served
    assert "Traceback" not in served.said()


def test_who_says_nothing_is_cut_off(impatient: Served) -> None:
    before = closed(impatient, "no byte came for too long")
    with Remits(impatient.remits) as silent, Remits(impatient.remits) as begun:
        begun.send(frame(LOG_LIST) + b"\0\0")
        begun.receive().check()
        assert silent.is_closed()
        assert begun.is_closed()
    until(lambda: closed(impatient, "no byte came for too long") == before + 2)


def test_who_takes_too_long_for_a_frame_is_cut_off(impatient: Served) -> None:
    before = closed(impatient, "a message took too long")
    log = request(MESSAGE_ADD, log_name="none", message=bytes(10_000))
    with neighbours_are_served(impatient.remits), Remits(impatient.remits) as slow:
        for at in range(len(log)):
            slow.send(log[at : at + 1])
            # A byte now and then is enough not to be silent.
            if select.select([slow.socket], [], [], 0.05)[0]:
                break
        assert slow.is_closed()
    until(lambda: closed(impatient, "a message took too long") == before + 1)


def test_who_never_reads_is_not_read_from_and_then_cut_off(impatient: Served) -> None:
    """Twenty gigabytes are asked for. The server reads on while answers are taken, and holds a few pages of them."""
    reason = "the peer took nothing of what waited for it for too long"
    with Remits(impatient.remits) as remits:
        log = remits.log_add(fresh())
        remits.add(log, *(bytes(1000) for _ in range(1000)))
        iterator = remits.iterator_add(log, "filter", "return true")
        assert len(remits.next_items(iterator, 0, 1000)) == 1000
    requests = 20_000
    pipelined = request(ITERATOR_NEXT, iterator_name=iterator, message_id=0, count=1000) * requests
    before, memory = closed(impatient, reason), impatient.memory_bytes()
    with Remits(impatient.remits, receive_bytes=4096) as greedy:
        greedy.socket.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while pipelined:
                pipelined = pipelined[greedy.socket.send(pipelined) :]
        seen: dict[str, Any] = {}

        def is_held() -> bool:
            seen.update(session_of(impatient, greedy))
            return int(seen["unsent_bytes"]) > 1 << 20

        until(is_held)
        assert seen["messages_received"] < requests / 2
        with neighbours_are_served(impatient.remits):
            until(lambda: closed(impatient, reason) > before)
            assert impatient.memory_bytes() < memory + MEMORY_BYTES_MAX
    until(lambda: impatient.metric('penstock_gate_sessions{gate="remits"}') == 0)


def test_who_reads_slowly_gets_everything_all_the_same(impatient: Served) -> None:
    with Remits(impatient.remits, receive_bytes=65_536) as remits:
        log = remits.log_add(fresh())
        remits.add(log, *(bytes(1000) for _ in range(1000)))
        iterator = remits.iterator_add(log, "filter", "return true", indexed=True)
        remits.last(iterator)
        remits.send(request(ITERATOR_NEXT, iterator_name=iterator, message_id=0, count=1000) * 30)
        for _ in range(30):
            assert len(remits.receive().items()) == 1000


# ---------------------------------------------------------------- too many


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server with room for few."""
    flags = ("--remits-connections-max", str(CONNECTIONS), "--writer-queue-max", "3")
    with Served(tmp_path_factory.mktemp("narrow") / "data", *flags) as served:
        yield served
    assert "Traceback" not in served.said()


def test_one_connection_too_many_is_refused(narrow: Served) -> None:
    until(lambda: narrow.metric('penstock_gate_sessions{gate="remits"}') == 0)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(Remits(narrow.remits)) for _ in range(CONNECTIONS)]
        for client in clients:
            client.log_list()
        for _ in range(3):
            with Remits(narrow.remits) as refused:
                assert refused.receive().failure().code == 33
                assert refused.is_closed()
        assert all(client.log_list() == [] for client in clients)
        clients.pop().close()
        until(lambda: narrow.metric('penstock_gate_sessions{gate="remits"}') == CONNECTIONS - 1)
        assert stack.enter_context(Remits(narrow.remits)).log_list() == []


def test_what_the_writer_has_no_room_for_is_answered_busy_and_not_written(narrow: Served) -> None:
    with Remits(narrow.remits) as remits:
        log = remits.log_add(fresh())
        written: list[int] = []
        busy = 0
        # One read of the server holds many of these, and the writer takes a few at a time.
        while not busy:
            start = len(written)
            remits.send(
                b"".join(request(MESSAGE_ADD, log_name=log, message=b"\x19" + n.to_bytes(2)) for n in range(1000))
            )
            for number in range(1000):
                answer = remits.receive()
                if answer.kind == 1:
                    written.append(number)
                else:
                    assert answer.failure().code == 33
                    busy += 1
            assert len(written) > start
        iterator = remits.iterator_add(log, "map", "return msg")
        assert remits.all(iterator) == written
        remits.log_delete(log)


@pytest.mark.parametrize("end", ["no more requests", "a wrong length"])
def test_answers_before_the_end_wait_for_a_peer_that_is_slow(narrow: Served, end: str) -> None:
    """More than the system keeps for a connection, and for longer than one that was ended stays open."""
    with Remits(narrow.remits) as remits:
        log = remits.log_add(fresh())
        remits.add(log, *(bytes(1000) for _ in range(4000)))
        iterator = remits.iterator_add(log, "filter", "return true", indexed=True)
        remits.last(iterator)
    with Remits(narrow.remits, receive_bytes=4096) as slow:
        slow.send(request(ITERATOR_NEXT, iterator_name=iterator, message_id=0, count=4000) * 3)
        if end == "a wrong length":
            slow.send(bytes(4))
        else:
            slow.socket.shutdown(socket.SHUT_WR)
        until(lambda: session_of(narrow, slow)["messages_sent"] == 3)
        answered = session_of(narrow, slow)["age"]
        until(lambda: session_of(narrow, slow)["age"] > answered + 1.5)
        for _ in range(3):
            assert len(slow.receive().items()) == 4000
        if end == "a wrong length":
            assert slow.receive().failure().code == 9
        assert slow.is_closed()
    with Remits(narrow.remits) as remits:
        remits.log_delete(log)


def test_clients_that_come_and_go_leave_nothing_behind(narrow: Served) -> None:
    descriptors = Path(f"/proc/{narrow.process.pid}/fd")
    with Remits(narrow.remits) as remits:
        log = remits.log_add(fresh())
        remits.add(log, *range(1000))
        iterator = remits.iterator_add(log, "map", "return msg")
        assert len(remits.next(iterator)) == 1000
        before = len(list(descriptors.iterdir()))
        for _ in range(100):
            # A place may not be free again at once.
            with contextlib.suppress(ConnectionError), Remits(narrow.remits) as passing:
                passing.send(request(ITERATOR_NEXT, iterator_name=iterator, message_id=0, count=1000) * 20)
        until(lambda: narrow.metric('penstock_gate_sessions{gate="remits"}') == 1)
        until(lambda: len(list(descriptors.iterdir())) <= before + 2)
        assert len(remits.next(iterator)) == 1000
        remits.log_delete(log)


# ---------------------------------------------------------------- operators


def penstock(*arguments: str) -> str:
    """What a command prints."""
    command = [sys.executable, "-m", "penstock", *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=30)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def sessions(server: Served) -> dict[str, Any]:
    found = json.loads(penstock("sessions", "--http", server.http, "--json"))
    return {session["id"]: session for session in found}


def test_sessions_are_listed_and_kicked(narrow: Served) -> None:
    until(lambda: narrow.metric('penstock_gate_sessions{gate="remits"}') == 0)
    with Remits(narrow.remits) as first, Remits(narrow.remits) as second:
        first.log_list()
        for _ in range(3):
            second.log_list()
        listed = sessions(narrow)
        names = {session["peer"]: name for name, session in listed.items()}
        kicked, kept = names[first.address], names[second.address]
        assert set(listed) == {kicked, kept}
        assert all(name.startswith("remits-") for name in listed)
        assert (listed[kept]["messages_received"], listed[kept]["messages_sent"]) == (3, 3)
        assert listed[kept]["bytes_received"] == 3 * len(frame(LOG_LIST))
        assert penstock("kick", kicked, "--http", narrow.http) == f"kicked {kicked}\n"
        assert first.is_closed()
        first.close()
        until(lambda: closed(narrow, "an operator cut it off") == 1)
        assert second.log_list() == []
