"""Original clients: the tag `RC0.1` in binary and in text, and the older results of `--res-legacy`."""

import struct
from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.gates.mq_client import MqClient
from tests.gates.res_client import Older, Rc01, Res01, WithOriginalTag
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import (
    LOCAL,
    LONG_AGO,
    UNSPECIFIED,
    UTC,
    NewEvent,
    Refused,
    an_event,
    kind_of,
    now,
    to_binary,
)
from tests.gates.serving import Served

pytestmark = pytest.mark.gates("res", "mq")
TICKS = 638_505_792_001_234_567
NO_COMMIT = UUID(int=0)


# ---------------------------------------------------------------- binary: streams


def test_a_commit_comes_back_as_it_was_sent(binary: Rc01, context: str) -> None:
    events = [an_event(b"one", headers="h"), an_event(bytes(range(256)))]
    commit = binary.append(context, "s", 1, *events)
    assert isinstance(commit, UUID)
    found = binary.read(context, "s")
    assert [(e.context, e.stream, e.sequence) for e in found] == [(context, "s", 1), (context, "s", 2)]
    assert [NewEvent(e.id, e.time, e.type, e.headers, e.body) for e in found] == events


def test_the_frames_are_little_endian(binary: Rc01, context: str) -> None:
    event = an_event(b"body", at=to_binary(TICKS, LOCAL), type="T")._replace(id=UUID(int=1))
    names = (context.encode(), b"s")
    request = bytes(range(16))
    head = [context.encode(), b"s", b"\x01" + bytes(7), b"\x01\0\0\0"]
    fields = [event.id.bytes_le, struct.pack("<Q", 2 << 62 | TICKS), b"T", b"", b"body"]
    binary.send_frames([b"", b"RC0.1", b"AC", request, *head, *fields])
    answer = binary.answer_to(request)
    assert (answer.command, len(answer.details), len(answer.details[0])) == (b"CR", 1, 16)
    binary.send_frames([b"", b"RC0.1", b"QS", request, *names, b"\x01" + bytes(7), b""])
    assert binary.answer_to(request).of("QR") == [
        b"\x01\0\0\0",
        event.id.bytes_le,
        *(b"s", context.encode(), b"\x01" + bytes(7)),
        *(struct.pack("<Q", 2 << 62 | TICKS), b"T", b"", b"body"),
    ]


@pytest.mark.parametrize("kind", [UNSPECIFIED, UTC, LOCAL])
def test_a_time_comes_back_with_the_kind_it_was_sent_with(binary: Rc01, context: str, kind: int) -> None:
    binary.append(context, "s", 1, an_event(at=to_binary(TICKS, kind)))
    assert binary.read(context, "s")[0].time == to_binary(TICKS, kind)


def test_both_dialects_see_the_same_history(binary: Rc01, client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(b"text", at=to_binary(TICKS, LOCAL), headers="h"))
    binary.append(context, "s", 2, an_event(b"binary", at=to_binary(TICKS, UNSPECIFIED)))
    assert binary.read(context, "s") == client.read(context, "s")


def test_both_dialects_may_be_spoken_on_one_connection(client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(b"text"))
    client.send_frames([b"", b"RC0.1", b"QS", b"i" * 16, context.encode(), b"s", b"\x01" + bytes(7), bytes(8)[:0]])
    answer = client.receive()
    assert (answer.protocol, answer.request_id, answer.command) == (b"RC0.1", b"i" * 16, b"QR")
    assert answer.details[0] == b"\x01\0\0\0"
    assert len(client.read(context, "s")) == 1


@pytest.mark.parametrize(("first", "last", "expected"), [(1, 2, [1, 2]), (2, None, [2, 3]), (4, None, [])])
def test_a_part_of_a_stream_can_be_read(
    binary: Rc01, context: str, first: int, last: int | None, expected: list[int]
) -> None:
    binary.append(context, "s", -1, an_event(), an_event(), an_event())
    assert [event.sequence for event in binary.read(context, "s", first, last)] == expected


def test_a_conflict_is_error_6_with_a_decimal_code(binary: Rc01, context: str) -> None:
    binary.append(context, "s", 1, an_event())
    answer = binary.ask("AC", *binary.commit_fields(context, "s", 1, [an_event()]))
    assert answer.details[0] == b"6"
    assert "1" in answer.error().message


@pytest.mark.parametrize("version", [0, -2, -(1 << 63)])
def test_an_impossible_version_is_error_6_here(binary: Rc01, context: str, version: int) -> None:
    with pytest.raises(Refused, match="error 6"):
        binary.append(context, "s", version, an_event())
    assert binary.read(context, "s") == []


def test_a_commit_without_events_is_answered_and_writes_nothing(binary: Rc01, client: Extended, context: str) -> None:
    before = client.stats()
    assert isinstance(binary.append(context, "s", 1), UUID)
    assert isinstance(binary.append(context, "s", -1), UUID)
    assert binary.read(context, "s") == []
    after = client.stats()
    assert [after[name] for name in ("head", "commits", "streams")] == [
        before[n] for n in ("head", "commits", "streams")
    ]


def test_the_same_commit_again_answers_the_first_commit_id(binary: Rc01, client: Extended, context: str) -> None:
    event = an_event()
    first = binary.append(context, "s", 1, event)
    assert binary.append(context, "s", 1, event) == first
    assert client.append(context, "s", 1, event) == first


@pytest.mark.parametrize("command", ["RS", "FE", "PS", "SS", "RQ", "RR", "??"])
def test_what_this_dialect_does_not_have_is_error_3(binary: Rc01, command: str) -> None:
    answer = binary.ask(command, b"ann", b"\0\0\0\0")
    assert answer.details[0] == b"3"
    assert command in answer.error().message


# ---------------------------------------------------------------- binary: queues


def test_a_queue_is_drained_by_allocation_ids(binary: Rc01, context: str) -> None:
    binary.append(context, "s", 1, *(an_event(str(n).encode()) for n in range(5)))
    before = now()
    queued = binary.subscribe(context, "work", "ann", count=2)
    assert (queued.context, queued.queue, queued.subscriber) == (context, "work", "ann")
    assert kind_of(queued.now) == UTC
    assert before <= queued.now <= now()
    found = []
    while queued.allocation is not None:
        found.append([event.body for event in queued.events])
        queued = binary.acknowledge(context, "work", "ann", queued.allocation, count=2)
    assert found == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert queued.events == []


def test_an_empty_allocation_id_acknowledges_nothing(binary: Rc01, context: str) -> None:
    binary.append(context, "s", 1, an_event())
    held = binary.subscribe(context, "work", "ann")
    assert binary.acknowledge(context, "work", "ann", None).allocation == held.allocation is not None
    assert binary.acknowledge(context, "work", "ann", 12345).allocation == held.allocation
    assert binary.acknowledge(context, "work", "ann", held.allocation, ttl_ms=-1).allocation is None
    assert binary.acknowledge(context, "work", "ann", None).allocation is None


def test_queues_of_the_same_name_are_told_apart_by_their_contexts(binary: Rc01, context: str) -> None:
    for place in (context, context + "x"):
        binary.append(place, "s", 1, an_event(place.encode()))
        binary.subscribe(place, "work", "ann", ttl_ms=-1)
    for place in (context, context + "x"):
        assert [event.body for event in binary.acknowledge(place, "work", "ann", None).events] == [place.encode()]


def test_errors_about_queues_are_those_of_the_text_dialect(binary: Rc01, context: str) -> None:
    binary.subscribe(context, "work", "ann", prefix="a")
    with pytest.raises(Refused, match="error 11"):
        binary.subscribe(context, "work", "ann", prefix="b")
    with pytest.raises(Refused, match=r"error 1: .*count"):
        binary.subscribe(context, "work", "ann", prefix="a", count=0)
    with pytest.raises(Refused, match="error 7"):
        binary.acknowledge(context, "other", "ann", None)


def test_consumers_of_both_dialects_share_a_queue(binary: Rc01, client: Extended, context: str) -> None:
    queue = f"work-{context}"
    client.append(context, "s", 1, an_event(b"0"), an_event(b"1"))
    held = binary.subscribe(context, queue, "ann", count=1)
    assert client.subscribe(context, queue, "bob").bodies == [b"1"]
    again = client.subscribe(context, queue, "ann")
    assert again.bodies == [b"0"]
    client.acknowledge(queue, "ann", again.markers, ttl_ms=-1)
    assert binary.acknowledge(context, queue, "ann", held.allocation).allocation is None


# ---------------------------------------------------------------- the older results


def test_an_older_result_has_three_fields(older: Older, context: str) -> None:
    result = older.try_append(context, "s", 1, an_event(b"one"))
    assert (result.result, result.error) == ("", "")
    assert result.commit != NO_COMMIT
    assert [event.body for event in older.read(context, "s")] == [b"one"]


def test_an_older_conflict_has_its_code_as_its_result(older: Older, context: str) -> None:
    event = an_event()
    first = older.try_append(context, "s", 1, event)
    assert older.try_append(context, "s", 1, event) == first
    conflict = older.try_append(context, "s", 3, an_event())
    assert (conflict.result, conflict.commit) == ("6", NO_COMMIT)
    assert "3" in conflict.error
    assert len(older.read(context, "s")) == 1


def test_an_older_malformed_append_has_its_code_as_its_result(older: Older, context: str) -> None:
    assert older.try_append(context, "s", 0, an_event()).result == "1"
    result = older.older_result(older.ask("AC", context.encode(), b"s", b"1", b"2"))
    assert (result.result, result.commit) == ("1", NO_COMMIT)
    assert "count" in result.error.lower()


def test_everything_else_is_as_usual_there(older: Older, context: str) -> None:
    older.try_append(context, "s", 1, an_event(b"one"))
    (number,) = older.register("ann", (context, "*", LONG_AGO))
    assert [event.body for event in older.fetch(number)] == [b"one"]
    assert older.subscribe(context, f"work-{context}", "ann").bodies == [b"one"]
    with pytest.raises(Refused, match="error 7"):
        older.acknowledge("no-such-queue", "ann", (0, 0))
    assert older.ask("??").error().code == 3


def test_the_binary_dialect_is_as_usual_there(server: Served, context: str) -> None:
    with Rc01(server.res_legacy) as client:
        assert isinstance(client.append(context, "s", 1, an_event()), UUID)
        with pytest.raises(Refused, match="error 6"):
            client.append(context, "s", 1, an_event())
        assert client.subscribe(context, "work", "ann").allocation is not None


@pytest.mark.parametrize("broken", [[b"1", b"2"], [b"one", b"1"], [b"1", b"0"], []])
def test_every_older_failure_has_sixteen_bytes_of_commit_id(older: Older, context: str, broken: list[bytes]) -> None:
    answer = older.ask("AC", context.encode(), b"s", *broken)
    assert (answer.command, answer.details[0], answer.details[2]) == (b"CR", b"1", bytes(16))


def test_both_endpoints_serve_one_history(older: Older, server: Served, context: str) -> None:
    older.try_append(context, "s", 1, an_event(b"one"))
    with Res01(server.res) as client:
        client.append(context, "s", 2, an_event(b"two"))
        assert older.read(context, "s") == client.read(context, "s")


# ---------------------------------------------------------------- original text clients


class OriginalText(WithOriginalTag, Extended):
    """Over ZeroMQ."""


class OriginalTextOverMq(WithOriginalTag, MqClient):
    """In MqFrames."""


class OriginalTextOlder(WithOriginalTag, Older):
    """Where commits have the older results."""


@pytest.fixture
def original(server: Served, gate: str) -> Iterator[Extended]:
    with OriginalText(server.res) if gate == "res" else OriginalTextOverMq(server.mq) as connected:
        yield connected


def test_an_original_text_client_writes_and_reads(original: Extended, client: Extended, context: str) -> None:
    event = an_event(b"one", at=to_binary(TICKS, LOCAL), headers="h")
    commit = original.append(context, "s", 1, event)
    original.append(context, "s", 2, an_event(b"two"), an_event(b"three"))
    assert original.append(context, "s", 1, event) == commit
    assert [e.body for e in original.read(context, "s")] == [b"one", b"two", b"three"]
    assert original.read(context, "s") == client.read(context, "s")
    with pytest.raises(Refused, match="error 6"):
        original.append(context, "s", 1, an_event())
    assert original.ask("XX").error().code == 3


def test_an_original_text_client_subscribes(original: Extended, context: str) -> None:
    original.append(context, "s", 1, an_event(b"one", at=to_binary(TICKS)), an_event(b"two", at=to_binary(TICKS + 1)))
    (number,) = original.register("ann", (context, "*", LONG_AGO))
    (first,) = original.fetch(number, 1)
    assert original.progress((number, first.time)) == [number]
    (second,) = original.fetch(number, 1)
    assert (first.body, second.body) == (b"one", b"two")
    assert original.set(("ann", context, "*", LONG_AGO)) == [""]
    assert [event.body for event in original.fetch(number)] == [b"one", b"two"]


def test_an_original_text_client_consumes_queues_and_has_the_extensions(original: Extended, context: str) -> None:
    queue = f"work-{context}"
    original.append(context, "s", 1, an_event(b"one"))
    held = original.subscribe(context, queue, "ann")
    assert held.bodies == [b"one"]
    assert original.acknowledge(queue, "ann", held.markers).bodies == []
    assert original.reset(queue, LONG_AGO) == queue
    assert original.list_streams(context) == ([("s", 1)], True)


def test_one_connection_may_change_its_dialect_with_every_message(original: Extended, context: str) -> None:
    names = (context.encode(), b"s")
    original.append(context, "s", 1, an_event(b"one"))
    binary_id, text_id = original.send("QS", *names, b"\x01" + bytes(7), b"", request_id=b"b" * 16), b"t" * 36
    assert original.answer_to(binary_id).of("QR")[0] == b"\x01\0\0\0"
    original.send("QS", *names, b"1", b"", request_id=text_id)
    assert original.answer_to(text_id).of("QR")[0] == b"1"


def test_an_original_text_client_has_older_results_where_they_are_served(server: Served, context: str) -> None:
    with OriginalTextOlder(server.res_legacy) as original:
        assert original.try_append(context, "s", 1, an_event(b"one")).result == ""
        conflict = original.try_append(context, "s", 1, an_event())
        assert (conflict.result, conflict.commit) == ("6", NO_COMMIT)
        (number,) = original.register("ann", (context, "*", LONG_AGO))
        assert [event.body for event in original.fetch(number)] == [b"one"]
        assert original.subscribe(context, f"work-{context}", "ann").bodies == [b"one"]
