"""Whatever arrives: nothing but Unanswerable is raised, and every answer has the right envelope."""

from struct import pack
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from penstock.model import TICKS_MAX, Append, Event, EventPage, NewEvent, stamp_of
from penstock.wire.res01.commands import TEXT_COMMANDS
from penstock.wire.res01.messages import decode
from tests.fuzz.res01 import fuzz_one, joined, mutations, run
from tests.seeds import rng
from tests.wire.checks import check, in_columns
from tests.wire.samples import COMMIT_ID, REQUEST_ID, SAMPLES, TEXT_ID, Sample

numbers = [b"0", b"1", b"-1", b"2", bytes(4), bytes(8)]
words = st.sampled_from([b"", b"Res01", b"RC0.1", b"RR", *sorted(TEXT_COMMANDS), *numbers, bytes(16), TEXT_ID])
frames = st.one_of(words, st.binary(max_size=24), st.integers().map(lambda number: b"%d" % number))
names = st.text(st.characters(codec="utf-8"), max_size=20)
new_events = st.builds(
    NewEvent,
    st.binary(min_size=16, max_size=16),
    st.builds(stamp_of, st.integers(0, TICKS_MAX), st.integers(0, 3)),
    names.filter(lambda name: name and "\0" not in name),
    st.none() | names.filter(bool),
    st.binary(max_size=50),
)
samples = st.sampled_from(SAMPLES)


@given(st.lists(frames, max_size=30), st.booleans())
def test_any_frames_at_all_are_answered_or_unanswerable(message: list[bytes], legacy: bool) -> None:
    check(message, legacy=legacy)


@given(
    st.sampled_from([b"Res01", b"RC0.1"]),
    st.sampled_from(sorted(TEXT_COMMANDS)),
    st.sampled_from([REQUEST_ID, TEXT_ID]),
    st.lists(frames, max_size=20),
)
def test_any_frames_after_a_known_command_are_answered(
    tag: bytes, command: bytes, request_id: bytes, payload: list[bytes]
) -> None:
    assert check([b"r", b"", tag, command, request_id, *payload]) is not None


@given(samples, st.data())
def test_a_valid_message_with_frames_changed_is_answered_or_unanswerable(sample: Sample, data: st.DataObject) -> None:
    message = sample.message(b"r")
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(message)))
        cut = data.draw(st.integers(0, 2))
        message[at : at + cut] = data.draw(st.lists(frames, max_size=2))
    check(message, legacy=sample.is_legacy)


@given(samples, st.integers(0, 1 << 32))
def test_a_valid_message_with_bytes_changed_is_answered_or_unanswerable(sample: Sample, seed: int) -> None:
    data = joined(sample.message(b"r"), legacy=sample.is_legacy)
    for mutated in mutations(data, seed, count=3):
        fuzz_one(mutated)


@given(st.binary(max_size=200))
def test_any_bytes_at_all_are_answered_or_unanswerable(data: bytes) -> None:
    fuzz_one(data)


@given(names, names, st.integers(-(1 << 63), (1 << 63) - 1), st.lists(new_events, min_size=1, max_size=20))
def test_a_commit_is_read_as_it_was_written(context: str, stream: str, expected: int, events: list[NewEvent]) -> None:
    columns = [
        frame
        for event in events
        for frame in (
            UUID(bytes=event.id).bytes_le,
            b"%d" % (event.stamp - (1 << 64) if event.stamp >> 63 else event.stamp),
            event.type.encode(),
            (event.headers or "").encode(),
            event.body,
        )
    ]
    head = [context.encode(), stream.encode(), b"%d" % expected, b"%d" % len(events)]
    exchange = decode([b"", b"Res01", b"AC", b"1", *head, *columns])
    assert exchange.requests == (in_columns(Append(context, stream, tuple(events), expected)),)


@given(st.lists(new_events, min_size=1, max_size=20), st.sampled_from([b"Res01", b"RC0.1"]))
def test_what_a_stream_is_answered_with_can_be_appended_again_as_it_is(events: list[NewEvent], tag: bytes) -> None:
    def number(value: int) -> bytes:
        return b"%d" % value if tag == b"Res01" else pack("<q", value)

    history = [
        Event(at, "shop", "order-1", at, *event, recorded=0, commit=COMMIT_ID.bytes) for at, event in enumerate(events)
    ]
    query = decode([b"", tag, b"QS", b"1", b"shop", b"order-1", number(1), b""])
    (answer,) = query.answers([EventPage(history, 1, True)])
    rows = [answer[at : at + 8] for at in range(5, len(answer), 8)]
    again = [frame for row in rows for frame in (row[0], *row[4:])]
    head = [b"shop", b"order-1", number(1), number(len(events))]
    (request,) = decode([b"", tag, b"AC", b"1", *head, *again]).requests
    assert request == in_columns(Append("shop", "order-1", tuple(events), 1))


def test_the_fuzzer_finds_nothing_in_a_short_run() -> None:
    summary = run(rng("the fuzzer of res01").randrange(1 << 32), count=3000)
    assert summary.startswith("res01: 3000 messages")
    assert summary.count("ER") == 1
