"""Messages that are wrong: each gets the right code and a sentence that names the field, and the next one is served."""

import re
from collections.abc import Iterator
from uuid import UUID

import pytest

from tests.gates.res_client import Older
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import Served, until
from tests.seeds import rng

pytestmark = pytest.mark.gates("res", "mq", "mq-large")
EVENT = (b"i" * 16, b"638505792000000000", b"Placed", b"", b"{}")
ID, TIME, TYPE, HEADERS, BODY = EVENT


def commit(
    context: bytes = b"bad",
    stream: bytes = b"s",
    version: bytes = b"-1",
    count: bytes = b"1",
    events: tuple[bytes, ...] = EVENT,
) -> tuple[bytes, ...]:
    """The payload of AC with something wrong in it."""
    return (context, stream, version, count, *events)


MALFORMED: dict[str, list[tuple[tuple[bytes, ...], str]]] = {
    "AC": [
        ((), "context"),
        ((b"bad",), "stream"),
        ((b"bad", b"s"), "expected ?version"),
        ((b"bad", b"s", b"-1"), "event ?count"),
        (commit(context=b""), "context"),
        (commit(context=b"a\0b"), "context.*NUL"),
        (commit(context=b"x" * 256), "context.*255"),
        (commit(context=b"\xff\xfe"), "context.*UTF-8"),
        (commit(context=b"\xed\xa0\x80"), "context.*UTF-8"),
        (commit(stream=b""), "stream"),
        (commit(stream=b"x" * 513), "stream.*512"),
        (commit(stream=b"\x80"), "stream.*UTF-8"),
        (commit(version=b""), "expected ?version"),
        (commit(version=b"one"), "expected ?version.*one"),
        (commit(version=b"1.0"), "expected ?version"),
        (commit(version=b"+1"), "expected ?version"),
        (commit(version=b" 1"), "expected ?version"),
        (commit(version=b"1_0"), "expected ?version"),
        (commit(version="٣".encode()), "expected ?version"),
        (commit(version=b"9" * 30), "expected ?version"),
        (commit(version=b"9" * 10_000), "expected ?version"),
        (commit(version=b"0"), "expected ?version.*0"),
        (commit(version=b"-2"), "expected ?version.*-2"),
        (commit(count=b"0", events=()), "event"),
        (commit(count=b"0"), "event ?count"),
        (commit(count=b"2"), "event ?count.*2"),
        (commit(count=b"-1"), "event ?count"),
        (commit(count=b"many"), "event ?count"),
        (commit(count=b"1000000000"), "event ?count"),
        (commit(count=b"9" * 40), "event ?count"),
        (commit(events=EVENT[:4]), "event ?count"),
        (commit(events=(*EVENT, b"")), "event ?count"),
        (commit(events=(b"", TIME, TYPE, HEADERS, BODY)), "event ?id.*16"),
        (commit(events=(b"i" * 15, TIME, TYPE, HEADERS, BODY)), "event ?id.*15"),
        (commit(count=b"2", events=(*EVENT, b"i" * 17, TIME, TYPE, HEADERS, BODY)), "event ?id.*17"),
        (commit(events=(ID, b"", TYPE, HEADERS, BODY)), "timestamp"),
        (commit(events=(ID, b"yesterday", TYPE, HEADERS, BODY)), "timestamp.*yesterday"),
        (commit(events=(ID, b"2024-13-01T00:00:00Z", TYPE, HEADERS, BODY)), "timestamp"),
        (commit(events=(ID, b"\xff", TYPE, HEADERS, BODY)), "timestamp"),
        (commit(events=(ID, b"9" * 10_000, TYPE, HEADERS, BODY)), "timestamp"),
        (commit(events=(ID, TIME, b"", HEADERS, BODY)), "type"),
        (commit(events=(ID, TIME, b"\xff", HEADERS, BODY)), "type.*UTF-8"),
        (commit(events=(ID, TIME, b"t" * 1025, HEADERS, BODY)), "type.*1024"),
        (commit(events=(ID, TIME, TYPE, b"\xff", BODY)), "headers.*UTF-8"),
    ],
    "RS": [
        ((b"ann",), "count"),
        ((b"", b"1", b"bad", b"*", TIME), "subscriber"),
        ((b"ann", b"2", b"bad", b"*", TIME), "count.*2"),
        ((b"ann", b"1", b"bad", b"*", TIME, b""), "count"),
        ((b"ann", b"1", b"bad", b"*", b"soon"), "start ?time.*soon"),
        ((b"ann", b"1", b"", b"*", TIME), "context"),
        ((b"ann", b"1", b"bad", b"\xff", TIME), "filter.*UTF-8"),
        ((b"ann", b"1001", *(b"bad", b"*", TIME) * 1001), "1001"),
    ],
    "FE": [
        ((), "count"),
        ((b"0",), "count"),
        ((b"-1",), "count"),
        ((b"1", b"1"), "count"),
        ((b"1", b"one", b"1"), "subscription ?id.*one"),
        ((b"1", b"1", b"ten"), "count.*ten"),
        ((b"1", b"1", b"1", b"1"), "count"),
        ((b"100000", *(b"1", b"1") * 100_000), "count.*100000"),
    ],
    "PS": [
        ((), "count"),
        ((b"2", b"1", TIME), "count.*2"),
        ((b"1", b"x", TIME), "subscription ?id"),
        ((b"1", b"1", b"x"), "last ?event ?time"),
    ],
    "SS": [
        ((), "count"),
        ((b"1", b"ann", b"bad", b"*"), "count"),
        ((b"1", b"ann", b"bad", b"*", b"x"), "set ?to"),
        ((b"1", b"ann", b"\xff", b"*", TIME), "context.*UTF-8"),
    ],
    "SQ": [
        ((), "queue ?id"),
        ((b"q", b"ann", b"bad", b"*", TIME, b"1"), "allocation ?time"),
        ((b"", b"ann", b"bad", b"*", TIME, b"1", b"1"), "queue"),
        ((b"q", b"", b"bad", b"*", TIME, b"1", b"1"), "subscriber"),
        ((b"q", b"ann", b"", b"*", TIME, b"1", b"1"), "context"),
        ((b"q", b"ann", b"bad", b"*", b"x", b"1", b"1"), "start ?time"),
        ((b"q", b"ann", b"bad", b"*", TIME, b"x", b"1"), "count"),
        ((b"q", b"ann", b"bad", b"*", TIME, b"1", b"x"), "allocation ?time"),
        ((b"now", b"q", b"ann", b"bad", b"*", TIME, b"1", b"1"), "utc ?now"),
        ((TIME, b"q", b"ann", b"bad", b"*", TIME, b"1", b"1", b"1"), "too many frames"),
    ],
    "AQ": [
        ((b"q", b"ann", b"1", b"2", b"1"), "allocation ?time"),
        ((b"q", b"ann", b"x", b"2", b"1", b"1"), "start ?marker"),
        ((b"q", b"ann", b"1", b"", b"1", b"1"), "end ?marker"),
        ((b"q", b"ann", b"1", b"2", b"x", b"1"), "count"),
        ((b"q", b"ann", b"1", b"2", b"1", b"1", b"1"), "too many frames"),
    ],
    "RQ": [((b"q",), "reset ?to"), ((b"q", b"x", TIME), "reset ?to"), ((b"q", TIME, b"x"), "utc ?now")],
    "QS": [
        ((b"bad", b"s", b"x", b""), "from ?version"),
        ((b"bad", b"s", b"", b""), "from ?version"),
        ((b"bad", b"s", b"1", b"x"), "max ?version"),
        ((b"bad", b"s", b"1"), "max ?version"),
        ((b"bad", b"\xff", b"1", b""), "stream.*UTF-8"),
    ],
    "GE": [((b"bad", b"s"), "sequence"), ((b"bad", b"s", b"x"), "sequence")],
    "RA": [((b"x", b"", b"", b"0"), "position"), ((b"1", b"", b"", b"-1"), "wait"), ((b"1", b"", b""), "wait")],
    "TX": [
        ((b"", b"", b"1"), "commit ?count"),
        ((b"", b"", b"x"), "commit ?count"),
        ((b"p", b"", b"0", b"0", b"0"), "number"),
        ((b"", b"1", b"0", b"0", b"0"), "producer"),
        ((b"", b"", b"1000000000", b"0", b"0"), "commit ?count"),
        ((b"", b"", b"0", b"1", b"bad", b"q", b"ann", b"1", b"0"), "progress ?count"),
        ((b"", b"", b"0", b"1", b"bad", b"q"), "ack ?count"),
        ((b"", b"", b"0", b"1", b"bad", b"q", b"ann", b"1", b"x", b"0"), "end ?marker"),
        ((b"", b"", b"0", b"0", b"1", b"1"), "progress ?count"),
        ((b"", b"", b"0", b"0", b"1", b"1", b"x"), "last ?event ?time"),
        ((b"", b"", b"1", *commit(count=b"0", events=()), b"0", b"0"), "event"),
        ((b"", b"", b"1", *commit(count=b"3"), b"0", b"0"), "event"),
    ],
    "FW": [((b"x", b"1", b"1", b"1"), "wait"), ((b"10",), "count")],
    "SW": [((b"-5", b"q", b"ann", b"bad", b"*", TIME, b"1", b"1"), "wait"), ((b"10",), "queue ?id")],
    "AW": [((b"10", b"bad"), "queue ?id"), ((b"10", b"\xff", b"q", b"ann", b"1", b"2", b"1", b"1"), "context")],
    "LC": [((b"",), "limit"), ((b"", b"0"), "limit"), ((b"", b"x"), "limit")],
    "LS": [((b"bad", b"", b"", b"-1"), "limit"), ((b"bad", b""), "after")],
    "LQ": [((b"x", b"1"), "after")],
    "LU": [((b"x", b"1"), "after")],
    "GQ": [((b"x", b"1"), "after")],
    "GU": [((b"1", b"x"), "limit")],
    "GS": [((b"",), "too many frames")],
    "DR": [((b"q", b"bad", b"x"), "dead ?after"), ((b"q", b"bad"), "dead ?after")],
    "DL": [((b"q", b"bad", b"x", b"1"), "after")],
    "DP": [((b"q", b"bad", b"x"), "start ?marker")],
}


@pytest.fixture(autouse=True)
def another_is_served(server: Served) -> Iterator[None]:
    """Whatever a test sends, another client is served after it."""
    yield
    with Extended(server.res) as another:
        assert int(another.stats()["head"]) >= 0


# ---------------------------------------------------------------- fields


@pytest.mark.parametrize("command", MALFORMED)
def test_a_malformed_message_is_error_1_and_names_the_field(client: Extended, command: str) -> None:
    before = client.stats()
    for payload, field in MALFORMED[command]:
        error = client.ask(command, *payload).error()
        assert error.code == 1, f"{error} for {payload[:10]}"
        assert re.search(field, error.message, re.IGNORECASE), f"{error.message} does not say {field}"
        assert len(error.message) < 300
    after = client.stats()
    names = ("head", "commits", "contexts", "streams", "subscriptions", "queues")
    assert [after[name] for name in names] == [before[name] for name in names]


@pytest.mark.parametrize("command", MALFORMED)
def test_a_message_without_its_payload_is_error_1(client: Extended, command: str) -> None:
    answer = client.ask(command)
    assert command == "GS" or answer.error().code == 1


@pytest.mark.parametrize(
    ("payload", "field"),
    [
        ((b"bad", b"s", b"1", b"\1\0\0\0", *EVENT[:1], bytes(8), *EVENT[2:]), "expected ?version"),
        ((b"bad", b"s", b"\1" + bytes(7), b"1", *EVENT), "event ?count"),
        ((b"bad", b"s", b"\1" + bytes(7), b"\2\0\0\0", *EVENT), "event ?count"),
        ((b"bad", b"s", b"\1" + bytes(7), b"\xff\xff\xff\xff"), "event ?count"),
        ((b"bad", b"s", b"\1" + bytes(7), b"\1\0\0\0", b"id", bytes(8), *EVENT[2:]), "event ?id"),
        ((b"bad", b"s", b"\1" + bytes(7), b"\1\0\0\0", ID, b"1", *EVENT[2:]), "timestamp"),
        ((b"bad", b"s", b"", b"\1\0\0\0", ID, bytes(8), *EVENT[2:]), "expected ?version"),
        ((b"\xff", b"s", b"\1" + bytes(7), b"\1\0\0\0", ID, bytes(8), *EVENT[2:]), "context"),
    ],
)
def test_the_binary_dialect_names_the_field_too(client: Extended, payload: tuple[bytes, ...], field: str) -> None:
    client.send_frames([b"", b"RC0.1", b"AC", b"r" * 16, *payload])
    answer = client.receive()
    assert (answer.protocol, answer.request_id, answer.command, answer.details[0]) == (b"RC0.1", b"r" * 16, b"ER", b"1")
    assert re.search(field, answer.error().message, re.IGNORECASE), answer.error().message


def test_the_older_results_say_the_same(older: Older) -> None:
    for payload, field in MALFORMED["AC"]:
        result = older.older_result(older.ask("AC", *payload))
        assert (result.result, result.commit) == ("1", UUID(int=0))
        assert re.search(field, result.error, re.IGNORECASE)


@pytest.mark.gates("res", "mq-large")
def test_a_commit_of_too_many_or_too_large_events_is_refused_with_the_limit(client: Extended) -> None:
    too_many = client.ask("AC", *commit(count=b"10001", events=EVENT * 10_001)).error()
    assert (too_many.code, "commit_events_max" in too_many.message, "10001" in too_many.message) == (1, True, True)
    too_large = client.ask("AC", *commit(events=(*EVENT[:4], bytes(9 << 20)))).error()
    assert (too_large.code, "event_bytes_max" in too_large.message) == (1, True)


# ---------------------------------------------------------------- the envelope


@pytest.mark.parametrize("tag", [b"Nope", b"", b"res01", b"Res02", b"\xff\xfe", b"Res01 ", b"x" * 10_000])
def test_an_unknown_protocol_is_error_2_with_its_own_tag(client: Extended, tag: bytes) -> None:
    client.send_frames([b"", tag, b"AC", b"id", *commit()])
    answer = client.receive()
    assert (answer.protocol, answer.request_id) == (tag, b"id")
    assert answer.error().code == 2
    assert len(answer.error().message) < 300


@pytest.mark.parametrize("command", ["??", "", "ac", "RR", "CR", "ER", "AC ", "A", "X" * 10_000])
def test_an_unknown_command_is_error_3(client: Extended, command: str) -> None:
    error = client.ask(command, *commit()).error()
    assert error.code == 3
    assert command[:2] in error.message
    assert len(error.message) < 300


@pytest.mark.gates("res", "mq")
def test_a_command_that_is_not_text_is_error_3(client: Extended) -> None:
    client.send_frames([b"", b"Res01", b"\xff\xfe", b"id"])
    assert client.answer_to(b"id").error().code == 3


@pytest.mark.parametrize("frames", [[b"Res01"], [b"Res01", b"AC"], [b"RC0.1", b"QS"]])
def test_a_message_too_short_for_a_request_id_is_error_1_with_an_empty_one(
    client: Extended, frames: list[bytes]
) -> None:
    client.send_frames([b"", *frames])
    answer = client.receive()
    assert (answer.protocol, answer.request_id, answer.error().code) == (frames[0], b"", 1)
    assert "RequestId" in answer.error().message


def test_a_message_of_an_empty_frame_alone_is_answered(client: Extended) -> None:
    client.send_frames([b""])
    answer = client.receive()
    assert (answer.request_id, answer.error().code) == (b"", 1)


@pytest.mark.gates("res")
@pytest.mark.parametrize(
    "frames", [[b"x"], [b"Res01", b"AC", b"id"], [b"Res01", b"QS", b"id", b"bad", b"s", b"1", b"9"], [b"x"] * 1000]
)
def test_a_message_without_an_empty_frame_is_counted_and_dropped(
    client: Extended, server: Served, frames: list[bytes]
) -> None:
    before = server.dropped("unanswerable")
    client.send_frames(frames)
    until(lambda: server.dropped("unanswerable") == before + 1)
    assert client.ask("GS").command == b"SG"
    assert server.dropped("unanswerable") == before + 1


@pytest.mark.parametrize("routing", [(b"a",), (b"a", b"b", b"a"), (b"\0", b"\xff" * 300), tuple([b"hop"] * 500)])
def test_routing_frames_come_back_in_order_with_answers_and_errors(
    server: Served, context: str, routing: tuple[bytes, ...]
) -> None:
    with Extended(server.res, routing=routing) as client:
        client.append(context, "s", 1, an_event())
        assert client.ask("??").error().code == 3
        (number,) = client.register("ann", (context, "*", LONG_AGO))
        request = client.send_fetch((number, 1), (number, 1))
        assert [client.answer_to(request).routing for _ in range(2)] == [routing, routing]


@pytest.mark.gates("res")
def test_random_frames_are_all_answered_or_counted(client: Extended, server: Served) -> None:
    dice = rng("frames of Res01 through the gate")
    pieces = [b"", b"0", b"1", b"-1", b"2", b"x", b"bad", b"\xff", b"i" * 16, TIME, *(c.encode() for c in MALFORMED)]
    dropped = server.dropped("unanswerable")
    answers = silent = 0
    for number in range(600):
        if number % 3:
            frames = [b"", dice.choice([b"Res01", b"RC0.1"]), dice.choice([*MALFORMED]).encode(), str(number).encode()]
            frames += dice.choices(pieces, k=dice.randrange(14))
        else:
            frames = dice.choices(pieces, k=dice.randrange(1, 10))
        # A fetch of several subscriptions has several answers; here it would only be hard to count them.
        frames = [frame for frame in frames if frame not in (b"FE", b"FW", b"SW", b"AW", b"RA")] or [b""]
        client.send_frames(frames)
        answers += b"" in frames
        silent += b"" not in frames
    codes = {client.receive().command for _ in range(answers)}
    assert b"ER" in codes
    until(lambda: server.dropped("unanswerable") == dropped + silent)
    assert "Traceback" not in server.said()
