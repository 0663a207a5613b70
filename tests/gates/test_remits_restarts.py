"""Servers that are killed and stopped while logs grow and indices are built, and what is left of what was deleted."""

import contextlib
import signal
import socket
import threading
from pathlib import Path

import cbor2
import pytest

from tests.gates.remits_client import (
    INFO,
    ITERATOR_NEXT,
    MESSAGE_ADD,
    PATIENCE_S,
    Answer,
    Remits,
    request,
)
from tests.gates.serving import Served, until

pytestmark = pytest.mark.long

MESSAGES = 100_000
PER_REQUEST = 10_000
FILTER = "return msg.n % 10 == 3"
REDUCE = "acc = acc or {count = 0, sum = 0} acc.count = acc.count + 1 acc.sum = acc.sum + msg.n return acc"


def messages(first: int, count: int) -> list[bytes]:
    return [cbor2.dumps({"n": number, "text": "x" * 20}) for number in range(first, first + count)]


class Adder(threading.Thread):
    """Adds one message after the other until the server is gone; `acknowledged` is the number of the next one."""

    def __init__(self, address: str, first: int) -> None:
        super().__init__()
        self.acknowledged = first
        self._address = address

    def run(self) -> None:
        with Remits(self._address) as remits:
            try:
                while True:
                    remits.add_encoded("log", *messages(self.acknowledged, 1))
                    self.acknowledged += 1
            except ConnectionError:
                pass


def built(server: Served) -> float:
    return server.metric("penstock_lua_messages_total")


def is_building(server: Served, at_least: int) -> bool:
    """Whether some of the indices are built, and some are not."""
    metrics = server.metrics()
    return metrics["penstock_lua_messages_total"] >= at_least and metrics["penstock_index_lag_iterators"] > 0


def test_killed_while_indices_are_built_and_messages_added_nothing_is_lost(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        remits.log_add("log")
        for first in range(0, MESSAGES, PER_REQUEST):
            remits.add_encoded("log", *messages(first, PER_REQUEST))
        for kind, function in (("filter", FILTER), ("reduce", REDUCE)):
            remits.iterator_add("log", kind, function, indexed=True, name=f"indexed {kind}")
            remits.iterator_add("log", kind, function, name=f"plain {kind}")
        remits.iterator_add("log", "map", "return msg.n", name="numbers")
        adder = killed_while_building(server, MESSAGES)
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        count = check_that_all_are_there(remits, adder.acknowledged)
        adder = killed_while_building(server, count)
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        count = check_that_all_are_there(remits, adder.acknowledged)
        wait_until_current(server)
        # They went on from where they were.
        assert built(server) < 2 * count
        assert remits.last("indexed reduce") == {"count": count, "sum": count * (count - 1) // 2}
        remits.add_encoded("log", *messages(count, 1))
        assert remits.last("indexed reduce")["count"] == count + 1
        for kind in ("filter", "reduce"):
            check_that_both_are_the_same(remits, kind)
        assert [item["n"] for item in remits.all("indexed filter")] == list(range(3, count + 1, 10))
        assert server.stop() == 0
        assert "Traceback" not in server.said()


def wait_until_current(server: Served) -> None:
    """Wait for all indices, however long it takes, as long as they come nearer."""
    while is_building(server, 0):
        wait_for_progress(server, built(server))


def wait_for_progress(server: Served, before: float) -> None:
    until(lambda: built(server) > before or not is_building(server, 0))


def killed_while_building(server: Served, first: int) -> Adder:
    """Kill the server while indices are built and messages are added; who has added them."""
    adder = Adder(server.remits, first)
    adder.start()
    until(lambda: is_building(server, 20_000) and adder.acknowledged > first + 20)
    assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    adder.join()
    return adder


def check_that_all_are_there(remits: Remits, acknowledged: int) -> int:
    """How many messages there are: all that were acknowledged, and at most the one that was under way."""
    count: int = remits.log_show("log")["message_count"]
    assert count in (acknowledged, acknowledged + 1)
    numbers = list(range(MESSAGES - 10))
    while page := remits.next("numbers", len(numbers)):
        numbers += page
    assert numbers == list(range(count))
    assert remits.last("numbers") == count - 1
    return count


def check_that_both_are_the_same(remits: Remits, kind: str) -> None:
    """Page by page. A page of a plain iterator may be short, if it took long."""
    ordinal, both = 0, 1
    while both:
        for name in ("indexed", "plain"):
            remits.send(request(ITERATOR_NEXT, iterator_name=f"{name} {kind}", message_id=ordinal, count=4000))
        indexed, plain = remits.receive().items(), remits.receive().items()
        assert bool(indexed) == bool(plain)
        both = min(len(indexed), len(plain))
        assert indexed[:both] == plain[:both]
        ordinal += both
    assert remits.next(f"indexed {kind}", -1) == remits.next(f"plain {kind}", -1)


# ---------------------------------------------------------------- stopped


def test_a_stop_answers_what_was_accepted(tmp_path: Path) -> None:
    """Requests keep coming while the server stops: what is acknowledged is there, and what is there is acknowledged."""
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        remits.log_add("log")
        total = remits.iterator_add("log", "reduce", "return (acc or 0) + 1", indexed=True)
        sender = threading.Thread(target=send_until_closed, args=(remits,))
        sender.start()
        for _ in range(2000):
            remits.receive().ok()
        server.process.send_signal(signal.SIGTERM)
        answers = answers_until_closed(remits)
        assert server.process.wait(PATIENCE_S) == 0
        sender.join()
        assert "Traceback" not in server.said()
    acknowledged = 2000 + sum(answer.kind == INFO for answer in answers)
    assert {answer.failure().code for answer in answers if answer.kind != INFO} <= {33, 255}
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        assert remits.log_show("log")["message_count"] == acknowledged
        assert remits.last(total) == acknowledged
        assert server.stop() == 0


def send_until_closed(remits: Remits) -> None:
    adding = request(MESSAGE_ADD, log_name="log", message=b"\x01") * 100
    with contextlib.suppress(OSError):
        while True:
            remits.send(adding)


def answers_until_closed(remits: Remits) -> list[Answer]:
    """All answers until the connection ends, between two of them."""
    answers = []
    end = ""
    while not end:
        try:
            answers.append(remits.receive())
        except ConnectionError as error:
            end = str(error)
    assert end == "closed after 0 of 4 bytes"
    # Whoever still sends is woken; if the server is gone already, he was.
    with contextlib.suppress(OSError):
        remits.socket.shutdown(socket.SHUT_RDWR)
    return answers


def test_a_stop_answers_a_request_that_runs(tmp_path: Path) -> None:
    """The function takes its time, and its answer comes all the same."""
    with Served(tmp_path / "data", "--iterator-call-ms-max", "5000") as server, Remits(server.remits) as remits:
        log = remits.log_add("log")
        remits.add(log, 1)
        slow = remits.iterator_add(log, "map", "for _ = 1, 2e7 do end return msg")
        received = server.metric('penstock_gate_received_total{gate="remits"}')
        remits.send(request(ITERATOR_NEXT, iterator_name=slow, message_id=0, count=1))
        until(lambda: server.metric('penstock_gate_received_total{gate="remits"}') > received)
        server.process.send_signal(signal.SIGTERM)
        assert remits.receive().values() == [1]
        assert remits.is_closed()
        assert server.process.wait(PATIENCE_S) == 0


# ---------------------------------------------------------------- deleted


def files_with(data: Path, *marks: bytes) -> list[str]:
    """The files of a store that have one of these bytes somewhere."""
    found = []
    for path in sorted(data.rglob("*")):
        try:
            content = path.read_bytes() if path.is_file() else b""
        except FileNotFoundError:
            continue
        found += [path.name for mark in marks if mark in content]
    return found


def test_what_a_deleted_log_held_is_in_no_file(tmp_path: Path) -> None:
    data = tmp_path / "data"
    secrets = (b"top secret", b"TOP SECRET", b"terces pot")
    with Served(data) as server, Remits(server.remits) as remits:
        kept = remits.log_add("kept")
        remits.add(kept, "not secret at all")
        remits.log_add("log")
        for number in range(20):
            remits.add("log", *({"n": n, "text": "top secret"} for n in range(100)))
            remits.add("log", {"n": number, "text": "top secret" * 2000})
            remits.add(kept, number)
        upper = remits.iterator_add("log", "map", "return msg.text:upper()", indexed=True)
        last = remits.iterator_add(upper, "reduce", "return msg:reverse():lower()", indexed=True)
        remits.last(last)
        until(lambda: len(set(files_with(data, *secrets))) > 0)
        assert all(files_with(data, secret) for secret in secrets)
        remits.log_delete("log")
        until(lambda: files_with(data, *secrets) == [])
        assert server.stop() == 0
    assert files_with(data, *secrets) == []
    with Served(data) as server, Remits(server.remits) as remits:
        assert remits.log_list() == [kept]
        numbers = remits.iterator_add(kept, "map", "return msg")
        assert remits.all(numbers) == ["not secret at all", *range(20)]
        assert files_with(data, *secrets) == []


def test_what_was_deleted_just_before_a_kill_is_erased_afterwards(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with Served(data) as server, Remits(server.remits) as remits:
        remits.log_add("log")
        for _ in range(300):
            remits.add("log", "top secret")
        remits.log_delete("log")
        assert server.stop(signal.SIGKILL) == -signal.SIGKILL
    with Served(data) as server, Remits(server.remits) as remits:
        assert remits.log_list() == []
        until(lambda: files_with(data, b"top secret") == [])
        assert server.stop() == 0
    assert files_with(data, b"top secret") == []


# ---------------------------------------------------------------- followed


def test_indices_follow_their_logs_without_being_asked(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, Remits(server.remits) as remits:
        log = remits.log_add("log")
        first = remits.iterator_add(log, "map", "return msg + 1", indexed=True)
        second = remits.iterator_add(first, "reduce", "return (acc or 0) + msg", indexed=True)
        for number in range(1, 6):
            remits.add(log, number)
            # Each message is run once by each of the two, and nobody has asked for it.
            wait_until_built(server, 2 * number)
        assert remits.all(second) == [2, 5, 9, 14, 20]
        assert built(server) == 10


def wait_until_built(server: Served, messages: int) -> None:
    until(lambda: built(server) == messages and server.metric("penstock_index_lag_iterators") == 0)
