"""Frames in and out, and every operation: what it asks for, and how it is answered."""

import pickle
from typing import Any

import pytest
from cbor2 import dumps, loads

from penstock.errors import NotAuthenticated, Unexpected
from penstock.model import (
    AddMessages,
    Authenticate,
    CreateIterator,
    Done,
    Encoded,
    ItemPage,
    IteratorKind,
    ListIterators,
    ListLogs,
    Names,
    NextItems,
    Request,
    ShowLog,
)
from penstock.wire.remits.frames import DATA, ERROR, INFO, LENGTH_MAX, REQUEST, Frame, Parser, pack
from penstock.wire.remits.operations import OPERATIONS, Exchange, decode, item_payload
from tests.wire.remits_answers import Failure, parse_data, parse_error, parse_info, request
from tests.wire.remits_checks import frames_of, one_frame
from tests.wire.remits_samples import SAMPLES, Sample, sample

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)
STREAM = b"".join(sample.sent for sample in SAMPLES)


def asked(code: int, fields: Any) -> Exchange:
    return decode(Frame(REQUEST, code, dumps(fields)))


def refusal(exchange: Exchange) -> int:
    """The code that a frame is answered with before anybody is asked."""
    assert exchange.request is None
    assert exchange.refused
    frame = one_frame(exchange.answer())
    assert frame.kind == ERROR
    return frame.code


# --- frames ---------------------------------------------------------------------------------------------------


@every_sample
def test_a_frame_is_read_whole_and_byte_by_byte_and_with_the_next_one_behind(sample: Sample) -> None:
    sent = sample.sent
    frame = Frame(sent[4], sent[5], sent[6:])
    assert frames_of([sent]) == ([frame], None)
    assert frames_of([sent[at : at + 1] for at in range(len(sent))]) == ([frame], None)
    assert frames_of([sent + sent]) == ([frame, frame], None)
    assert frames_of([sent + sent[:3], sent[3:]]) == ([frame, frame], None)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 6, 7, 11, 64, 1000])
def test_frames_come_in_order_in_pieces_of_any_size(size: int) -> None:
    pieces = [STREAM[at : at + size] for at in range(0, len(STREAM), size)]
    frames, lost = frames_of(pieces)
    assert lost is None
    assert b"".join(pack(*frame) for frame in frames) == STREAM


def test_a_frame_comes_with_its_last_byte_and_not_before() -> None:
    parser, sent = Parser(1000), sample("Log Add").sent
    assert [parser.receive(sent[at : at + 1]) for at in range(len(sent) - 1)] == [[]] * (len(sent) - 1)
    assert len(parser.receive(sent[-1:])) == 1


def test_nothing_received_gives_nothing() -> None:
    parser, sent = Parser(1000), sample("Log Add").sent
    for piece in (b"", sent[:2], b"", sent[2:9], b""):
        assert parser.receive(piece) == []
    assert len(parser.receive(sent[9:])) == 1


def test_a_parser_says_how_much_of_a_frame_it_keeps() -> None:
    parser, sent = Parser(100_000), pack(REQUEST, 4, bytes(50_000))
    assert parser.pending_bytes == 0
    for at in range(0, len(sent), 3):
        assert parser.pending_bytes == at
        parser.receive(sent[at : at + 3])
    assert parser.pending_bytes == 0
    parser.receive(sent + sent[:20_000])
    assert parser.pending_bytes == 20_000


def test_small_and_large_pieces_of_a_frame_are_put_together_in_order() -> None:
    payload = bytes(range(256)) * 256
    sent = pack(REQUEST, 4, payload)
    sizes = [1, 7, 5000, 3, 4096, 2, 2, 9000]
    pieces: list[bytes] = []
    while sent:
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(sent[:size])
        sent = sent[size:]
    assert frames_of(pieces, 1 << 20) == ([Frame(REQUEST, 4, payload)], None)


def test_a_frame_of_the_largest_length_is_taken() -> None:
    sent = pack(REQUEST, 3, bytes(98))
    assert frames_of([sent], 100) == ([Frame(REQUEST, 3, bytes(98))], None)
    assert frames_of([sent[:5], sent[5:]], 100) == ([Frame(REQUEST, 3, bytes(98))], None)


# --- operations -----------------------------------------------------------------------------------------------


@every_sample
def test_a_frame_asks_for_what_it_should_and_is_answered_byte_for_byte(sample: Sample) -> None:
    exchange = decode(one_frame(sample.sent))
    assert exchange.request == sample.request
    assert exchange.answer(sample.reply) == sample.answer


def test_every_operation_has_a_sample() -> None:
    assert {sample.sent[5] for sample in SAMPLES if sample.sent[4] == REQUEST} >= set(OPERATIONS)


@every_sample
def test_unknown_keys_of_any_kind_are_ignored(sample: Sample) -> None:
    frame = one_frame(sample.sent)
    if frame.kind != REQUEST or not frame.payload:
        return
    fields = loads(frame.payload)
    more = {**fields, "created_at": None, "x": {"deep": [1, [2.5, b"z"]]}, 7: "seven", b"log_name": 1, (1, 2): {}}
    assert decode(Frame(frame.kind, frame.code, dumps(more))).request == sample.request


@every_sample
def test_the_order_of_keys_and_indefinite_lengths_make_no_difference(sample: Sample) -> None:
    frame = one_frame(sample.sent)
    if frame.kind != REQUEST or not frame.payload:
        return
    fields = loads(frame.payload)
    for payload in (dumps(dict(reversed(fields.items()))), dumps(fields, indefinite_containers=True)):
        assert decode(Frame(frame.kind, frame.code, payload)).request == sample.request


def test_strings_may_come_in_pieces() -> None:
    payload = bytes.fromhex("a2 7f 64 6c6f675f 64 6e616d65 ff 7f 61 61 61 62 ff 67 6d657373616765 5f 41 82 42 01 02 ff")
    payload = payload.replace(bytes.fromhex("420102"), bytes.fromhex("41014102"))
    assert decode(Frame(REQUEST, 4, payload)).request == AddMessages("ab", (b"\x82\x01\x02",))


@pytest.mark.parametrize("payload", [b"", b"\xa0", b"garbage", b"\xff" * 1000, dumps([1])])
def test_the_payload_of_log_list_is_not_looked_at(payload: bytes) -> None:
    assert decode(Frame(REQUEST, 3, payload)).request == ListLogs()


@pytest.mark.parametrize("payload", [b"", dumps({}), dumps({"log_name": None}), dumps({"other": 1})])
def test_iterator_list_without_a_log_means_all(payload: bytes) -> None:
    assert decode(Frame(REQUEST, 6, payload)).request == ListIterators(None)


@pytest.mark.parametrize("key", ["iterator_type", "iterator_kind"])
@pytest.mark.parametrize("kind", IteratorKind)
def test_an_iterator_has_any_type_under_either_key(key: str, kind: IteratorKind) -> None:
    fields = {"log_name": "l", "iterator_name": "i", key: kind.value, "iterator_func": "return msg"}
    assert asked(5, fields).request == CreateIterator("i", "l", kind, "return msg", False)


@pytest.mark.parametrize(("indexed", "meant"), [(True, True), (False, False), (None, False)])
def test_an_iterator_is_not_indexed_unless_it_says_so(indexed: bool | None, meant: bool) -> None:
    fields = {"log_name": "l", "iterator_name": "i", "iterator_type": "map", "iterator_func": "f", "indexed": indexed}
    assert asked(5, fields).request == CreateIterator("i", "l", IteratorKind.MAP, "f", meant)


def test_messages_of_every_length_are_read() -> None:
    messages = [dumps(b"x" * length) for length in (0, 1, 21, 22, 23, 24, 250, 254, 255, 256, 70_000)]
    assert asked(4, {"log_name": "l", "messages": messages}).request == AddMessages("l", tuple(messages))


def test_messages_may_be_the_first_field_or_the_last() -> None:
    for fields in ({"messages": [b"\x00"], "log_name": "l"}, {"log_name": "l", "messages": [b"\x00"]}):
        assert asked(4, fields).request == AddMessages("l", (b"\x00",))


def test_no_messages_at_all_are_fine() -> None:
    assert asked(4, {"log_name": "l", "messages": []}).request == AddMessages("l", ())
    indefinite = bytes.fromhex("a2 686c6f675f6e616d65 616c 686d65737361676573 9fff")
    assert decode(Frame(REQUEST, 4, indefinite)).request == AddMessages("l", ())


def test_a_spelling_that_is_null_counts_as_not_given() -> None:
    assert asked(4, {"log_name": "l", "messages": None, "message": b"\x00"}).request == AddMessages("l", (b"\x00",))
    assert asked(4, {"log_name": "l", "messages": [b"\x00"], "message": None}).request == AddMessages("l", (b"\x00",))


@pytest.mark.parametrize("number", [0, -1, -2, 23, 24, 1 << 40, (1 << 63) - 1, -(1 << 63)])
def test_a_message_id_is_any_number_of_64_bits(number: int) -> None:
    assert asked(7, {"iterator_name": "i", "message_id": number, "count": 0}).request == NextItems("i", number, 0)


def test_names_are_for_the_engine_to_judge() -> None:
    assert asked(0, {"log_name": ""}).request == ShowLog("")
    assert asked(0, {"log_name": "\0" * 5000}).request == ShowLog("\0" * 5000)


def test_a_token_is_for_the_engine_to_judge() -> None:
    exchange = asked(32, {"token": "anything"})
    assert exchange.request == Authenticate("anything")
    refused = one_frame(exchange.answer(NotAuthenticated("the token is not valid here")))
    # The answer is a code's name, so that a guess learns nothing.
    assert (refused.code, parse_error(refused)) == (35, Failure(35, "NotAllowed", ""))


def test_as_many_messages_as_allowed_are_taken() -> None:
    frame = Frame(REQUEST, 4, dumps({"log_name": "l", "messages": [b"\x00"] * 5}))
    assert decode(frame, messages_max=5).request == AddMessages("l", (b"\x00",) * 5)


# --- answers --------------------------------------------------------------------------------------------------


def test_a_page_that_a_worker_has_put_together_is_sent_as_it_is() -> None:
    exchange = decode(one_frame(sample("Iterator Next").sent))
    items = [dumps(number) for number in range(1000)]
    encoded = pickle.loads(pickle.dumps(item_payload))(items)
    assert exchange.answer(ItemPage([], Encoded(1000, encoded))) == exchange.answer(ItemPage(items))
    assert parse_data(encoded) == items


def test_no_logs_are_an_empty_array_and_no_iterators_no_items() -> None:
    logs, iterators = (decode(one_frame(sample(title).sent)) for title in ("Log List", "Iterator List"))
    assert parse_data(one_frame(logs.answer(Names([]))).payload) == [b"\x80"]
    assert parse_data(one_frame(iterators.answer(Names([]))).payload) == []


def test_an_answer_longer_than_a_frame_can_be_is_a_limit_exceeded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.wire.remits.operations.LENGTH_MAX", 100)
    exchange = decode(one_frame(sample("Iterator Next").sent))
    assert one_frame(exchange.answer(ItemPage([bytes(94)]))).kind == DATA
    assert one_frame(exchange.answer(ItemPage([bytes(95)])))[:2] == (ERROR, 32)
    assert LENGTH_MAX == 2**32 - 1


# --- the client's side ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "fields", "wanted"),
    [
        (3, None, ListLogs()),
        (0, {"log_name": "orders"}, ShowLog("orders")),
        (4, {"log_name": "l", "messages": [dumps({"n": 1})]}, AddMessages("l", (dumps({"n": 1}),))),
    ],
)
def test_what_a_client_writes_a_server_reads(code: int, fields: dict[str, Any] | None, wanted: Request) -> None:
    assert decode(one_frame(request(code, fields))).request == wanted


def test_a_client_reads_what_a_server_writes() -> None:
    exchange = decode(one_frame(request(1, {"log_name": "l"})))
    assert one_frame(exchange.answer(Done())).kind == INFO
    assert parse_error(one_frame(sample("no such log").answer)) == Failure(0, "LogDoesNotExist", "")
    detail = "at message 3: attempt to compare nil with number"
    assert parse_error(one_frame(sample("Lua").answer)) == Failure(4, "ErrRunningLua", detail)
    assert parse_error(Frame(ERROR, 77, dumps("SomethingNew"))) == Failure(77, "SomethingNew", "")
    assert parse_error(Frame(ERROR, 3, dumps(""))) == Failure(3, "MsgNotValidCbor", "")


@pytest.mark.parametrize("payload", [b"\x00", b"\x00\x00\x00", b"\x00\x00\x00\x02\x00", b"\x00\x00\x00\x01\x00\xff"])
def test_a_client_says_that_data_is_cut_short(payload: bytes) -> None:
    with pytest.raises(Unexpected, match="cut short"):
        parse_data(payload)


@pytest.mark.parametrize("payload", [b"", b"\x62o", b"\x01", b"\x62ok\x00", b"\x61\xff"])
def test_a_client_says_that_an_info_is_no_text(payload: bytes) -> None:
    with pytest.raises(Unexpected, match="no text"):
        parse_info(payload)
