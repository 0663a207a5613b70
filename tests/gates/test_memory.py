"""Clients that send as many large requests as they can, and read no answer: what the server takes of memory is bounded.

Everything that was sent is answered in the end, done or *busy*, and other clients are served all the while.
"""

import contextlib
import re
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import cbor2
import pytest

from penstock.model import (
    AddMessages,
    Append,
    CreateIterator,
    InstallOutput,
    IteratorKind,
    ReadAll,
    Request,
    StageEvents,
    StageOutput,
    Transact,
    new_event,
)
from penstock.store.outputs import pack_items
from penstock.store.stages import make_unit
from penstock.wire.res01.messages import fields_of
from tests.gates import zmtp
from tests.gates.mq_client import FRAME_BYTES_MAX, Connection, MqLarge
from tests.gates.mq_client import frame as mq_frame
from tests.gates.remits_client import ITERATOR_ADD, MESSAGE_ADD, Remits, fresh, neighbours_are_served, request
from tests.gates.res_extensions import Extended
from tests.gates.serving import Served, others_are_served, until

MIB: Final = 1 << 20
REQUESTS_BYTES_MAX: Final = 16 * MIB
SERVER_FLAGS: Final = ("--workers", "1", "--requests-bytes-max", str(REQUESTS_BYTES_MAX))
GROWTH_BYTES_MAX: Final = 64 * MIB
"""What the server and its workers may grow by, together. A request takes up to four times its bytes while it is read,
written or sent to a worker; those that wait take them once or twice."""
BUSY: Final = {b"4", b"10"}
REMITS_BUSY: Final = 33


class MqFast(MqLarge):
    """Res01L in the longest frames that there are."""

    sizes = (FRAME_BYTES_MAX,)


def connected(server: Served, gate: str) -> Extended:
    return MqFast(server.mq) if gate == "mq" else Extended(server.res)


# ---------------------------------------------------------------- what it takes


def processes(server: Served) -> list[Path]:
    """What /proc has of the server and its workers."""
    own = Path(f"/proc/{server.process.pid}")
    workers = (own / f"task/{server.process.pid}/children").read_text(encoding="utf-8").split()
    return [own, *(Path("/proc") / worker for worker in workers)]


def peak_bytes(server: Served) -> int:
    """The most that they had in memory, summed up."""
    found = [
        re.search(r"^VmHWM:\s+(\d+) kB$", (each / "status").read_text(), re.MULTILINE) for each in processes(server)
    ]
    return sum(int(each[1]) * 1024 for each in found if each)


@contextlib.contextmanager
def bounded(server: Served, growth_bytes_max: int = GROWTH_BYTES_MAX) -> Iterator[None]:
    """The server and its workers grow by no more than this meanwhile, and let go of all requests in the end."""
    # A Lua worker is started with the first function; it counts as soon as it is there.
    with server.client() as client:
        client.ask("NI", b"none", b"none", b"map", b"return 1", b"0")
    for process in processes(server):
        # Forget earlier peaks, where the system allows it.
        with contextlib.suppress(OSError):
            (process / "clear_refs").write_text("5")
    before = peak_bytes(server)
    yield
    until(lambda: server.metric("penstock_requests_bytes") == 0)
    grown = peak_bytes(server) - before
    assert grown < growth_bytes_max, f"{grown / MIB:.0f} MiB"


# ---------------------------------------------------------------- Res01


def large_requests(context: str, size: int = MIB) -> list[Request]:
    """One of each kind of request that can be large. Few of them are written, which would only take longer."""
    log, content = f"log of {context}", bytes(size)
    append = Append(context, "s", (new_event("Placed", content),), 1)
    unit = make_unit(context, "staged", [new_event("Placed", content)])
    return [
        append,
        Transact((append, append)),
        AddMessages(log, (cbor2.dumps(content),)),
        AddMessages(log, (b"\0\0",) * 9000),
        ReadAll(1, types=tuple(f"{number:01000}" for number in range(size // 1000))),
        StageEvents(f"job of {context}", 0, "a", 0, (unit,)),
        StageOutput(1_000_000, 0, "a", 0, (pack_items([cbor2.dumps(content)]),)),
        InstallOutput("none", 1_000_000, 0, 0, 0, (), content),
        CreateIterator(f"iterator of {context}", log, IteratorKind.MAP, f"return 1 --{'x' * size}", False),
    ]


def no_chunk(size: int) -> StageOutput:
    """What a worker has to look at, and refuses at once."""
    return StageOutput(1_000_000, 0, "a", 0, (bytes(size),))


def flood(client: Extended, requests: Iterable[Request]) -> Counter[str]:
    """Send all of these, and only then read answers; how many were busy, and how many answered otherwise."""
    sent = set()
    for each in requests:
        command, *fields = fields_of(each)
        sent.add(client.send(command.decode(), *fields))
    answers = [client.receive() for _ in sent]
    assert {answer.request_id for answer in answers} == sent
    is_busy = [answer.command == b"ER" and answer.details[0] in BUSY for answer in answers]
    return Counter("busy" if each else "answered" for each in is_busy)


# ---------------------------------------------------------------- nothing stays
# These tests come first, while the server has no free memory that it could use again.


def test_requests_that_are_refused_leave_nothing_behind(server: Served, context: str) -> None:
    """An error's traceback has the request."""
    with connected(server, "mq") as client, bounded(server, 32 * MIB):
        for each in [AddMessages("none", (cbor2.dumps(bytes(MIB)),)), no_chunk(MIB)] * 30:
            assert flood(client, [each]) == {"answered": 1}


@pytest.mark.parametrize("gate", ["mq", "res", "remits"])
def test_requests_of_clients_that_are_gone_leave_nothing_behind(server: Served, context: str, gate: str) -> None:
    until(lambda: server.metric("penstock_requests_bytes") == 0)
    with bounded(server):
        for _ in range(40):
            if gate != "remits":
                with connected(server, gate) as client:
                    for each in [no_chunk(MIB), *large_requests(context)[5:7], no_chunk(MIB)]:
                        command, *fields = fields_of(each)
                        client.send(command.decode(), *fields)
            else:
                with Remits(server.remits) as remits:
                    remits.send(b"".join(large_frames("none")))
        until(lambda: server.metric(f'penstock_gate_sessions{{gate="{gate}"}}') == 0)


@pytest.mark.parametrize("gate", ["mq", "remits"])
def test_unfinished_messages_of_clients_that_are_gone_leave_nothing_behind(server: Served, gate: str) -> None:
    unfinished = mq_frame(bytes(FRAME_BYTES_MAX)) * 50 if gate == "mq" else large_frames("none", 3 * MIB)[0][:-1]
    until(lambda: server.metric(f'penstock_gate_sessions{{gate="{gate}"}}') == 0)
    with bounded(server, 32 * MIB):
        for _ in range(30):
            with Connection(server.mq) if gate == "mq" else Remits(server.remits) as client:
                client.send(unfinished)
            until(lambda: server.metric(f'penstock_gate_sessions{{gate="{gate}"}}') == 0)


@pytest.mark.parametrize("size", [3, 2 * MIB])
def test_unfinished_messages_of_zeromq_peers_that_are_gone_leave_nothing_behind(server: Served, size: int) -> None:
    """A frame that is not complete, behind many that are."""
    unfinished = zmtp.frame(bytes(size), zmtp.MORE) * (2 if size == 2 * MIB else 50_000) + zmtp.frame(bytes(MIB))[:-1]
    with bounded(server, 32 * MIB):
        for _ in range(30):
            with zmtp.connected(server.res) as connection:
                zmtp.greet_as_3(connection)
                connection.sendall(unfinished)
            until(lambda: server.metric('penstock_gate_sessions{gate="res"}') == 0)


# ---------------------------------------------------------------- as much as can be sent


def test_requests_that_wait_for_a_worker_do_not_gather(server: Served, context: str) -> None:
    requests = [no_chunk(3 * MIB)] * 40
    with others_are_served(server, context, "mq"), bounded(server), connected(server, "mq") as client:
        assert flood(client, requests) == {"answered": len(requests)}


@pytest.mark.parametrize("gate", ["mq", "res"])
def test_large_requests_of_every_kind_take_bounded_memory(server: Served, context: str, gate: str) -> None:
    requests = large_requests(context) * 12
    with others_are_served(server, context, gate), bounded(server), connected(server, gate) as client:
        # One client alone is only not read from.
        assert flood(client, requests) == {"answered": len(requests)}


def test_many_connections_together_take_bounded_memory(server: Served, context: str) -> None:
    """Each has one request under way, which it may have; all together have too many."""
    found: list[Counter[str]] = []
    with (
        others_are_served(server, context, "mq"),
        bounded(server, 2 * GROWTH_BYTES_MAX),
        contextlib.ExitStack() as stack,
    ):
        clients = [stack.enter_context(connected(server, "mq")) for _ in range(16)]
        threads = [
            threading.Thread(target=lambda each=each: found.append(flood(each, [no_chunk(4 * MIB)] * 2)))
            for each in clients
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(found, Counter()).total() == 2 * len(clients)
    assert sum(found, Counter())["answered"] > 0


@pytest.mark.parametrize("gate", ["mq", "res"])
def test_a_request_that_is_larger_than_all_may_be_is_taken_when_it_is_alone(server: Served, gate: str) -> None:
    until(lambda: server.metric("penstock_requests_bytes") == 0)
    with connected(server, gate) as client:
        assert flood(client, [no_chunk(15 * MIB)]) == {"answered": 1}
        command, *fields = fields_of(StageOutput(1_000_000, 0, "a", 0, (bytes(15 * MIB),) * 2))
        answer = client.ask(command.decode(), *fields)
        assert answer.details[0] not in BUSY


def test_a_message_of_many_frames_that_is_too_long_is_refused(server: Served) -> None:
    with connected(server, "res") as client:
        answer = client.ask("BO", b"1", b"0", b"a", b"0", b"5", *[bytes(15 * MIB)] * 5)
        assert answer.details[0] == b"1"
        assert b"message_bytes_max" in answer.details[1]


# ---------------------------------------------------------------- Remits


def large_frames(log: str, size: int = MIB) -> list[bytes]:
    """One of each kind of request that can be large."""
    return [
        request(MESSAGE_ADD, log_name=log, message=cbor2.dumps(bytes(size))),
        request(MESSAGE_ADD, log_name="none", messages=[b"\0\0"] * 9000),
        request(
            ITERATOR_ADD,
            log_name="none",
            iterator_name="none",
            iterator_type="map",
            iterator_func=f"return 1 --{'x' * size}",
        ),
    ]


def test_large_requests_to_logs_take_bounded_memory(server: Served) -> None:
    with Remits(server.remits) as remits:
        log = remits.log_add(fresh())
        frames = large_frames(log) * 24
        with neighbours_are_served(server.remits), bounded(server):
            for frame in frames:
                remits.send(frame)
            answers = [remits.receive() for _ in frames]
        # One client alone is only not read from.
        assert [answer.kind for answer in answers] == [1, 3, 3] * 24
        assert REMITS_BUSY not in {answer.code for answer in answers}
        remits.log_delete(log)


# ---------------------------------------------------------------- as it was found


@pytest.mark.long
def test_thirty_requests_of_thirty_megabytes_take_a_tenth_of_them(tmp_path: Path, context: str) -> None:
    """With the settings that a server has by itself: it took 1.5 GB for these."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(Served(tmp_path / "data"))
        stack.enter_context(others_are_served(server, context, "mq"))
        stack.enter_context(bounded(server, 400 * MIB))
        client = stack.enter_context(connected(server, "mq"))
        assert flood(client, [no_chunk(30_000_000)] * 30) == {"answered": 30}
