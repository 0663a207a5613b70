"""Appending and reading streams in the text dialect, and how times, ids and names come back."""

import re
from uuid import UUID

import pytest

from tests.gates.res_extensions import Extended
from tests.gates.res_frames import (
    LOCAL,
    LOCAL_SUMMER,
    TICKS_MAX,
    UNSPECIFIED,
    UTC,
    NewEvent,
    Refused,
    an_event,
    kind_of,
    now,
    ticks_of,
    to_binary,
)

pytestmark = pytest.mark.gates("res", "mq", "mq-large")
SERVER_FLAGS = ("--page-events-max", "50")

NOON_TICKS = 638_505_936_000_000_000
"""2024-05-06 12:00:00."""


# ---------------------------------------------------------------- appending


def test_a_commit_comes_back_as_it_was_sent(client: Extended, context: str) -> None:
    events = [
        an_event(b'{"total": 1}', type="OrderPlaced", headers='{"user": "ann"}'),
        an_event(bytes(range(256)), type="OrderPaid"),
        an_event(b"", type="Größe geändert", headers="naïve ✓"),
    ]
    client.append(context, "order-1", 1, *events)
    found = client.read(context, "order-1")
    assert [(e.context, e.stream, e.sequence) for e in found] == [(context, "order-1", n) for n in (1, 2, 3)]
    assert [NewEvent(e.id, e.time, e.type, e.headers, e.body) for e in found] == events


def test_versions_count_on_from_commit_to_commit(client: Extended, context: str) -> None:
    first = client.append(context, "order-1", 1, an_event(), an_event())
    second = client.append(context, "order-1", 3, an_event())
    assert first != second
    assert [event.sequence for event in client.read(context, "order-1")] == [1, 2, 3]


def test_minus_one_appends_wherever_the_stream_is(client: Extended, context: str) -> None:
    for _ in range(3):
        client.append(context, "order-1", -1, an_event(), an_event())
    assert [event.sequence for event in client.read(context, "order-1")] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("version", [1, 2, 4, 100])
def test_a_conflict_names_both_versions_and_writes_nothing(client: Extended, context: str, version: int) -> None:
    client.append(context, "order-1", 1, an_event(), an_event())
    with pytest.raises(Refused) as refused:
        client.append(context, "order-1", version, an_event())
    assert refused.value.code == 6
    assert re.search(rf"\b{version}\b", refused.value.message)
    assert re.search(r"\b2\b", refused.value.message)
    assert len(client.read(context, "order-1")) == 2


def test_a_stream_that_is_not_there_has_the_last_sequence_0(client: Extended, context: str) -> None:
    with pytest.raises(Refused, match=r"\b5\b.*\b0\b") as refused:
        client.append(context, "order-1", 5, an_event())
    assert refused.value.code == 6
    assert client.read(context, "order-1") == []


def test_the_same_commit_again_answers_the_first_commit_id(client: Extended, other: Extended, context: str) -> None:
    events = [an_event(), an_event()]
    first = client.append(context, "order-1", 1, *events)
    client.append(context, "order-1", 3, an_event())
    assert client.append(context, "order-1", 1, *events) == first
    assert other.append(context, "order-1", 1, *events) == first
    assert len(client.read(context, "order-1")) == 3


def test_other_events_at_the_same_version_are_a_conflict(client: Extended, context: str) -> None:
    events = [an_event(), an_event()]
    client.append(context, "order-1", 1, *events)
    with pytest.raises(Refused, match="error 6"):
        client.append(context, "order-1", 1, events[0], an_event())


def test_a_repeat_without_a_version_is_a_new_commit(client: Extended, context: str) -> None:
    event = an_event()
    assert client.append(context, "order-1", -1, event) != client.append(context, "order-1", -1, event)
    assert [found.id for found in client.read(context, "order-1")] == [event.id, event.id]


def test_streams_and_contexts_are_apart(client: Extended, context: str) -> None:
    for place, stream in ((context, "a"), (context, "b"), (context + "x", "a")):
        client.append(place, stream, 1, an_event(f"{place}/{stream}".encode()))
    assert [event.body for event in client.read(context, "a")] == [f"{context}/a".encode()]
    assert [event.body for event in client.read(context + "x", "a")] == [f"{context}x/a".encode()]


@pytest.mark.parametrize("request_id", [b"", b"7", b"\x00\xff" * 8, b"x" * 300, "ünïcode".encode()])
def test_a_request_id_is_opaque_and_echoed(client: Extended, context: str, request_id: bytes) -> None:
    client.send("AC", *client.commit_fields(context, "order-1", -1, [an_event()]), request_id=request_id)
    assert client.answer_to(request_id).command == b"CR"
    client.send("AC", b"", request_id=request_id)
    assert client.answer_to(request_id).command == b"ER"


def test_requests_may_be_sent_ahead_of_their_answers(client: Extended, context: str) -> None:
    sent = [client.send("AC", *client.commit_fields(context, "s", n, [an_event()])) for n in range(1, 101)]
    answers = [client.receive() for _ in sent]
    assert {answer.request_id for answer in answers} == set(sent)
    assert {answer.command for answer in answers} == {b"CR"}


# ---------------------------------------------------------------- reading streams


def test_a_stream_is_read_page_by_page(client: Extended, context: str) -> None:
    bodies = [str(number).encode() for number in range(120)]
    client.append(context, "long", 1, *(an_event(body) for body in bodies))
    found: list[bytes] = []
    sizes = []
    while page := client.read(context, "long", len(found) + 1):
        assert page[0].sequence == len(found) + 1
        found += [event.body for event in page]
        sizes.append(len(page))
    assert found == bodies
    assert sizes == [50, 50, 20]


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [(1, 3, [1, 2, 3]), (2, 2, [2]), (3, None, [3, 4, 5]), (4, 99, [4, 5]), (6, None, []), (3, 2, [])],
)
def test_a_part_of_a_stream_can_be_read(
    client: Extended, context: str, first: int, last: int | None, expected: list[int]
) -> None:
    client.append(context, "s", 1, *(an_event() for _ in range(5)))
    assert [event.sequence for event in client.read(context, "s", first, last)] == expected


def test_a_stream_that_is_not_there_is_empty(client: Extended, context: str) -> None:
    assert client.read(context, "nothing") == []


# ---------------------------------------------------------------- times


@pytest.mark.parametrize("kind", [UNSPECIFIED, UTC, LOCAL, LOCAL_SUMMER])
def test_a_time_comes_back_with_the_kind_it_was_sent_with(client: Extended, context: str, kind: int) -> None:
    sent = to_binary(NOON_TICKS + 1234567, kind)
    assert (sent < 0) == (kind in (LOCAL, LOCAL_SUMMER))
    client.append(context, "s", 1, an_event(at=sent))
    assert client.read(context, "s")[0].time == sent
    assert client.get(context, "s", 1).time == sent


@pytest.mark.parametrize("kind", [UNSPECIFIED, UTC, LOCAL, LOCAL_SUMMER])
@pytest.mark.parametrize("ticks", [0, 1, TICKS_MAX])
def test_the_first_and_the_last_time_there_is_can_be_sent(
    client: Extended, context: str, kind: int, ticks: int
) -> None:
    client.append(context, "s", 1, an_event(at=to_binary(ticks, kind)))
    assert client.read(context, "s")[0].time == to_binary(ticks, kind)


@pytest.mark.parametrize("kind", [UNSPECIFIED, UTC])
def test_a_time_after_the_last_one_is_the_last_one(client: Extended, context: str, kind: int) -> None:
    client.append(
        context, "s", 1, an_event(at=to_binary((1 << 62) - 1, kind)), an_event(at=to_binary(TICKS_MAX + 1, kind))
    )
    assert [ticks_of(event.time) for event in client.read(context, "s")] == [TICKS_MAX, TICKS_MAX]


@pytest.mark.parametrize(
    ("text", "ticks"),
    [
        ("2024-05-06T12:00:00Z", NOON_TICKS),
        ("2024-05-06T12:00:00", NOON_TICKS),
        ("2024-05-06 12:00:00", NOON_TICKS),
        ("2024-05-06T14:00:00+02:00", NOON_TICKS),
        ("2024-05-06T06:30:00-05:30", NOON_TICKS),
        ("2024-05-06T12:00:00.1234567Z", NOON_TICKS + 1_234_567),
        ("2024-05-06T12:00:00.5Z", NOON_TICKS + 5_000_000),
        ("2024-05-06T12:00:00.123456+00:00", NOON_TICKS + 1_234_560),
        ("0001-01-01T00:00:00Z", 0),
        ("0001-01-01T00:00:00+01:00", 0),
        ("9999-12-31T23:59:59.9999999Z", TICKS_MAX),
        ("9999-12-31T23:59:59-01:00", TICKS_MAX),
    ],
)
def test_iso_times_are_accepted_and_come_back_as_utc(client: Extended, context: str, text: str, ticks: int) -> None:
    client.append(context, "s", 1, an_event(at=text))
    found = client.read(context, "s")[0].time
    assert (ticks_of(found), kind_of(found)) == (ticks, UTC)


def test_times_of_all_kinds_are_compared_as_utc(client: Extended, context: str) -> None:
    times = [to_binary(NOON_TICKS + n, kind) for n, kind in enumerate((LOCAL, UNSPECIFIED, LOCAL_SUMMER, UTC))]
    client.append(context, "s", 1, *(an_event(at=time) for time in times))
    for number, time in enumerate(times):
        for kind in (UNSPECIFIED, UTC, LOCAL, LOCAL_SUMMER):
            start = to_binary(ticks_of(time), kind)
            (subscription,) = client.register(f"reader-{number}-{kind}", (context, "*", start))
            assert [event.time for event in client.fetch(subscription)] == times[number:]


def test_the_servers_own_times_are_utc(client: Extended, context: str) -> None:
    before = now()
    queued = client.subscribe(context, "work", "ann")
    assert kind_of(queued.now) == UTC
    assert before <= queued.now <= now()


# ---------------------------------------------------------------- ids and names


def test_ids_are_in_the_layout_of_dotnet(client: Extended, context: str) -> None:
    event = an_event()._replace(id=UUID("00112233-4455-6677-8899-aabbccddeeff"))
    fields = client.commit_fields(context, "s", 1, [event])
    assert fields[4] == bytes.fromhex("33221100 5544 7766 8899 aabbccddeeff")
    client.ask("AC", *fields).of("CR")
    assert client.ask("QS", context.encode(), b"s", b"1", b"").of("QR")[1] == fields[4]


def test_ids_need_not_be_unique(client: Extended, context: str) -> None:
    event = an_event()
    client.append(context, "a", 1, event, event)
    client.append(context, "b", 1, event)
    assert [found.id for stream in "ab" for found in client.read(context, stream)] == [event.id] * 3


@pytest.mark.parametrize("name", ["x", "a b/c?d=é", "日本語", "*", "order*", "x" * 512, "é" * 256, "\u007f\n\t"])
def test_names_may_be_anything_that_fits(client: Extended, context: str, name: str) -> None:
    place = context.ljust(255, "-")
    client.append(place, name, 1, an_event())
    assert [(event.context, event.stream) for event in client.read(place, name)] == [(place, name)]


@pytest.mark.gates("res", "mq-large")
@pytest.mark.parametrize("size", [0, 1, 100_000, 5_000_000])
def test_bodies_of_any_size_come_back(client: Extended, context: str, size: int) -> None:
    body = (b"0123456789abcdef" * (size // 16 + 1))[:size]
    client.append(context, "s", 1, an_event(body))
    assert client.read(context, "s")[0].body == body
