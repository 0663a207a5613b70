"""Whatever arrives, in whatever pieces: nothing is raised, and every frame has one answer."""

from typing import Any

from cbor2 import CBORTag, dumps
from hypothesis import given
from hypothesis import strategies as st

from penstock.model import (
    AddMessages,
    CreateIterator,
    DropIterator,
    IteratorKind,
    LogSummary,
    Names,
    NextItems,
    Request,
    ticks_of_unix_ns,
)
from penstock.wire.remits.frames import REQUEST, pack
from penstock.wire.remits.operations import OPERATIONS, decode, item_payload
from tests.fuzz.remits import fuzz_one, mutations, run
from tests.seeds import rng
from tests.wire.remits_answers import parse_data, request
from tests.wire.remits_checks import check, one_frame
from tests.wire.remits_samples import SAMPLES, Sample

names = st.text(st.characters(codec="utf-8"), max_size=20)
int64 = st.integers(-(1 << 63), (1 << 63) - 1)
samples = st.sampled_from(SAMPLES)
field_names = st.sampled_from(sorted({key for operation in OPERATIONS.values() for key in operation.known}))
field_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), names, st.binary(max_size=20)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=3), st.builds(CBORTag, st.just(70), inner)
    ),
    max_leaves=10,
)


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    """Pieces of these sizes, and what is left."""
    pieces = []
    for size in sizes:
        pieces.append(data[:size])
        data = data[size:]
    return [*pieces, data]


@given(st.lists(samples, max_size=8), st.lists(st.integers(0, 40), max_size=30))
def test_frames_are_answered_in_order_in_whatever_pieces_they_come(sent: list[Sample], sizes: list[int]) -> None:
    stream = b"".join(sample.sent for sample in sent)
    seen = check(cut(stream, sizes))
    assert len(seen) == len(sent)
    assert seen == [answer for sample in sent for answer in check([sample.sent])]


@given(st.binary(max_size=300), st.lists(st.integers(0, 9), max_size=20))
def test_any_bytes_at_all_are_taken_or_refused(data: bytes, sizes: list[int]) -> None:
    check(cut(data, sizes))


@given(st.integers(0, 255), st.integers(0, 255), st.binary(max_size=60))
def test_any_payload_of_any_frame_is_answered(kind: int, code: int, payload: bytes) -> None:
    assert len(check([pack(kind, code, payload)])) == 1


@given(st.sampled_from(sorted(OPERATIONS)), st.dictionaries(field_names, field_values))
def test_any_fields_of_any_operation_are_answered(code: int, fields: dict[str, Any]) -> None:
    assert len(check([request(code, fields)])) == 1


@given(samples, st.integers(0, 1 << 32), st.integers(0, 255))
def test_a_frame_with_bytes_changed_is_taken_or_refused(sample: Sample, seed: int, size: int) -> None:
    for mutated in mutations(bytes([size]) + sample.sent + sample.sent, seed, count=3):
        fuzz_one(mutated)


@given(st.binary(max_size=200))
def test_the_fuzzer_takes_any_bytes(data: bytes) -> None:
    fuzz_one(data)


# --- round trips ----------------------------------------------------------------------------------------------


@given(names, st.lists(field_values.map(dumps), max_size=80))
def test_messages_are_read_as_they_were_written(log: str, messages: list[bytes]) -> None:
    for fields in ({"log_name": log, "messages": messages}, {"messages": messages, "log_name": log}):
        assert decode(one_frame(request(4, fields))).request == AddMessages(log, tuple(messages))


@given(names, names, st.sampled_from(IteratorKind), st.text(st.characters(codec="utf-8")), st.booleans())
def test_an_iterator_is_read_as_it_was_written(
    name: str, log: str, kind: IteratorKind, function: str, indexed: bool
) -> None:
    fields = {"log_name": log, "iterator_name": name, "iterator_func": function, "indexed": indexed}
    wanted = CreateIterator(name, log, kind, function, indexed)
    for key in ("iterator_type", "iterator_kind"):
        assert decode(one_frame(request(5, {**fields, key: kind.value}))).request == wanted


@given(names, int64, st.integers(0, (1 << 63) - 1))
def test_a_page_is_asked_for_as_it_was_written(iterator: str, ordinal: int, count: int) -> None:
    asked: Request | None = decode(
        one_frame(request(7, {"iterator_name": iterator, "message_id": ordinal, "count": count}))
    ).request
    assert asked == NextItems(iterator, ordinal, count)
    dropped = decode(one_frame(request(8, {"iterator_name": iterator, "log_name": "l"}))).request
    assert dropped == DropIterator("l", iterator)


@given(st.lists(st.binary(max_size=50)))
def test_items_are_read_as_they_were_written(items: list[bytes]) -> None:
    assert parse_data(item_payload(items)) == items


@given(st.lists(names))
def test_names_are_listed_as_they_are(listed: list[str]) -> None:
    logs, iterators = (decode(one_frame(pack(REQUEST, code, b""))) for code in (3, 6))
    assert parse_data(one_frame(logs.answer(Names(listed))).payload) == [dumps(listed)]
    assert parse_data(one_frame(iterators.answer(Names(listed))).payload) == [dumps(name) for name in listed]


@given(names, st.integers(0, 1 << 33), st.integers(0, 999_999_999), int64.map(abs), st.lists(names))
def test_a_log_is_shown_with_whole_seconds(log: str, second: int, ns: int, size: int, iterators: list[str]) -> None:
    exchange = decode(one_frame(request(0, {"log_name": log})))
    created = ticks_of_unix_ns(second * 1_000_000_000 + ns)
    answer = exchange.answer(LogSummary(log, created, 3, size, iterators))
    shown = {"name": log, "created_at": second, "message_count": 3, "bytes": size, "iterators": iterators}
    assert parse_data(one_frame(answer).payload) == [dumps(shown)]


def test_the_fuzzer_finds_nothing_in_a_short_run() -> None:
    summary = run(rng("the fuzzer of remits").randrange(1 << 32), count=5000)
    assert summary.startswith("remits: 5000 rounds")
    assert "CBOR True" in summary
