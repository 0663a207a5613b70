"""Everything a client can get wrong, and everything that can go wrong for it: the code and the name."""

import tracemalloc
from typing import Any

import pytest
from cbor2 import CBORTag, dumps

from penstock import errors
from penstock.errors import FunctionFailed, PenstockError
from penstock.model import AddMessages
from penstock.wire.remits.frames import ERROR, REQUEST, Frame, Parser, pack
from penstock.wire.remits.operations import (
    DETAIL_CHARACTERS_MAX,
    FIELD_ITEMS_MAX,
    FIELDS_MAX,
    OPERATIONS,
    decode,
    error_frame,
    refusal_frame,
)
from tests.wire.remits_answers import CODES, NAMES, Failure, code_of, parse_error
from tests.wire.remits_checks import frames_of, one_frame
from tests.wire.remits_samples import SAMPLES, sample
from tests.wire.test_remits import asked, refusal

ITERATOR = {"log_name": "l", "iterator_name": "i", "iterator_type": "map", "iterator_func": "return msg"}
NEXT = {"iterator_name": "i", "message_id": 0, "count": 1}


def family(kind: type[PenstockError]) -> set[type[PenstockError]]:
    return {kind}.union(*(family(child) for child in kind.__subclasses__() if child.__module__ == errors.__name__))


# --- framing --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1])
def test_a_length_too_small_ends_framing_with_9(length: int) -> None:
    assert frames_of([length.to_bytes(4, "big")]) == ([], 9)
    assert frames_of([length.to_bytes(4, "big") + b"\x00\x00\x00"]) == ([], 9)


@pytest.mark.parametrize("length", [101, 1 << 31, (1 << 32) - 1])
def test_a_length_above_the_limit_ends_framing_with_32_as_soon_as_it_is_known(length: int) -> None:
    head = length.to_bytes(4, "big")
    assert frames_of([head], 100) == ([], 32)
    assert frames_of([head[at : at + 1] for at in range(4)], 100) == ([], 32)
    assert frames_of([head + bytes(200)], 100) == ([], 32)


@pytest.mark.parametrize("bad", [bytes(4), b"\xff" * 4, b"\x00\x00\x00\x01\x00\x00", b"\x00\x01\x00\x00\x00\x03abc"])
def test_frames_before_a_wrong_length_are_given_and_nothing_after_it(bad: bytes) -> None:
    good = sample("Log List").sent
    frames, lost = frames_of([good + good + bad + good, good, b""], 1000)
    assert frames == [one_frame(good)] * 2
    assert lost in (9, 32)


def test_a_parser_says_why_framing_was_lost() -> None:
    parser = Parser(100)
    parser.receive(b"\x00\x00\x01\x00")
    assert parser.lost is not None
    assert parser.lost.reason == "a frame has 256 bytes; at most 100 are allowed"
    assert parse_error(one_frame(refusal_frame(parser.lost.code))) == Failure(32, "LimitExceeded", "")


def test_a_frame_fed_byte_by_byte_takes_little_more_than_its_bytes() -> None:
    size = 1 << 18
    parser, sent = Parser(size), pack(REQUEST, 4, bytes(size - 2))
    tracemalloc.start()
    frames = [frame for at in range(len(sent)) for frame in parser.receive(sent[at : at + 1])]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(frames) == 1
    assert peak < 3 * size


def test_a_claimed_length_takes_no_memory() -> None:
    tracemalloc.start()
    parsers = [Parser(1 << 30) for _ in range(100)]
    for parser in parsers:
        parser.receive((1 << 30).to_bytes(4, "big") + b"\x00\x04begun")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


# --- kinds and codes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [1, 2, 3])
def test_an_answer_that_is_sent_to_the_server_is_10(kind: int) -> None:
    assert refusal(decode(Frame(kind, 0, b"\x62ok"))) == 10


@pytest.mark.parametrize("kind", [4, 5, 127, 255])
def test_an_unknown_kind_is_8(kind: int) -> None:
    assert refusal(decode(Frame(kind, 0, b""))) == 8


@pytest.mark.parametrize("code", sorted(set(range(256)) - set(OPERATIONS)))
def test_an_unknown_request_is_7(code: int) -> None:
    assert refusal(decode(Frame(REQUEST, code, b""))) == 7


# --- payloads -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", sorted(set(OPERATIONS) - {3}))
@pytest.mark.parametrize(
    "payload",
    [
        b"\x80",
        b"\x00",
        b"\xf6",
        b"\x68log_name",
        b"\xff",
        b"\xbf",
        b"\xa1",
        b"\xa1\x68log_name",
        b"\xa0\x00",
        b"\xdf\xa0",
        b"\xc1\xa0",
        b"\xbf\x68log_name\xff",
        b"\xbb\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xbc",
        b"\xb8",
        b"\xa1\x68log_name\x78",
        b"\xa1\x68log_name\x59\x01",
    ],
)
def test_a_payload_that_is_not_one_map_is_11(code: int, payload: bytes) -> None:
    assert refusal(decode(Frame(REQUEST, code, payload))) == 11


@pytest.mark.parametrize("code", sorted(set(OPERATIONS) - {3, 6}))
def test_an_empty_payload_and_an_empty_map_are_11_where_fields_are_due(code: int) -> None:
    assert refusal(decode(Frame(REQUEST, code, b""))) == 11
    assert refusal(asked(code, {})) == 11


@pytest.mark.parametrize(
    "title", sorted({sample.title for sample in SAMPLES if sample.request and len(sample.sent) > 6})
)
def test_a_payload_cut_anywhere_is_11(title: str) -> None:
    frame = one_frame(sample(title).sent)
    for end in range(1, len(frame.payload)):
        assert refusal(decode(Frame(frame.kind, frame.code, frame.payload[:end]))) == 11
    assert refusal(decode(Frame(frame.kind, frame.code, frame.payload + b"\x00"))) == 11


@pytest.mark.parametrize("value", [None, 1, b"l", True, [], {}, 1.5, CBORTag(0, "l"), ["l"]])
@pytest.mark.parametrize(
    ("code", "fields", "name"),
    [
        (0, {}, "log_name"),
        (1, {}, "log_name"),
        (2, {}, "log_name"),
        (4, {"messages": []}, "log_name"),
        *((5, ITERATOR, name) for name in ITERATOR),
        (7, NEXT, "iterator_name"),
        (8, {"log_name": "l"}, "iterator_name"),
        (8, {"iterator_name": "l"}, "log_name"),
        (32, {}, "token"),
    ],
)
def test_a_text_that_is_missing_or_no_text_is_11(code: int, fields: dict[str, Any], name: str, value: Any) -> None:
    assert refusal(asked(code, {**fields, name: value})) == 11


@pytest.mark.parametrize("value", [1, b"l", True, [], {}])
def test_a_log_to_list_iterators_of_must_be_a_text(value: Any) -> None:
    assert refusal(asked(6, {"log_name": value})) == 11


def test_a_text_that_is_not_utf8_is_11() -> None:
    assert refusal(decode(Frame(REQUEST, 0, b"\xa1\x68log_name\x61\xff"))) == 11
    assert refusal(decode(Frame(REQUEST, 0, b"\xa2\x68log_name\x61l\x61x\x61\xff"))) == 11


@pytest.mark.parametrize("kind", ["", "Map", "MAP", "sort", "map "])
def test_an_unknown_iterator_type_is_11(kind: str) -> None:
    assert refusal(asked(5, {**ITERATOR, "iterator_type": kind})) == 11


@pytest.mark.parametrize("value", [0, 1, "true", [], b""])
def test_indexed_is_true_or_false(value: Any) -> None:
    assert refusal(asked(5, {**ITERATOR, "indexed": value})) == 11


@pytest.mark.parametrize("name", ["message_id", "count"])
@pytest.mark.parametrize("value", [None, "1", 1.0, True, b"", [], 1 << 63, -(1 << 63) - 1, 1 << 64, 10**50, -(10**50)])
def test_a_number_that_is_none_or_does_not_fit_64_bits_is_11(name: str, value: Any) -> None:
    assert refusal(asked(7, {**NEXT, name: value})) == 11


@pytest.mark.parametrize("count", [-1, -(1 << 63)])
def test_a_negative_count_is_11(count: int) -> None:
    assert refusal(asked(7, {**NEXT, "count": count})) == 11


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (5, {**ITERATOR, "iterator_kind": "map"}),
        (5, {**ITERATOR, "iterator_kind": 7}),
        (4, {"log_name": "l", "messages": [], "message": b"\x00"}),
    ],
)
def test_both_spellings_at_once_are_11(code: int, fields: dict[str, Any]) -> None:
    assert refusal(asked(code, fields)) == 11


def test_a_field_that_is_there_twice_is_11() -> None:
    assert refusal(decode(Frame(REQUEST, 0, b"\xa2\x68log_name\x61l\x68log_name\x61l"))) == 11
    assert refusal(decode(Frame(REQUEST, 0, b"\xa2\x68log_name\x61l\x7f\x64log_\x64name\xff\x61m"))) == 11


# --- messages -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", ["text", 1, None, [], {}, 1.5, [b"\x00"]])
@pytest.mark.parametrize("before", [[], [b"\x00"], [b"\x00"] * 300])
def test_a_message_that_is_not_a_byte_string_is_18(value: Any, before: list[bytes]) -> None:
    assert refusal(asked(4, {"log_name": "l", "messages": [*before, value, b"\x00"]})) == 18


@pytest.mark.parametrize("value", ["text", 1, [], {}, [b"\x00"]])
def test_the_one_message_that_is_not_a_byte_string_is_18(value: Any) -> None:
    assert refusal(asked(4, {"log_name": "l", "message": value})) == 18


@pytest.mark.parametrize("value", [None, b"\x00", "text", 1, {}])
def test_messages_that_are_no_array_are_11(value: Any) -> None:
    assert refusal(asked(4, {"log_name": "l", "messages": value})) == 11


@pytest.mark.parametrize("bad", [b"", b"\xff", b"\x00\x00", b"\xa1\x61", b"\x61\xff", b"\xa2\x01\x01\x01\x02"])
@pytest.mark.parametrize("before", [0, 1, 63, 64, 65, 200])
def test_messages_are_passed_on_as_they_came_and_the_engine_says_that_one_is_not_cbor(bad: bytes, before: int) -> None:
    messages = [b"\x00"] * before + [bad] + [b"\x00"] * 70
    for exchange in (asked(4, {"log_name": "l", "messages": messages}), asked(4, {"log_name": "l", "message": bad})):
        assert exchange.refused is None
        assert isinstance(exchange.request, AddMessages)
        assert exchange.request.messages in (tuple(messages), (bad,))
        assert one_frame(exchange.answer(errors.NotCbor(before, "it ends too soon"))).code == 3


# --- limits ---------------------------------------------------------------------------------------------------


def test_more_messages_than_allowed_are_32_before_they_are_read() -> None:
    head = b"\xa2\x68log_name\x61l\x68messages"
    for array in (b"\x84" + b"\x41\x00" * 4, b"\x9f" + b"\x41\x00" * 4 + b"\xff", b"\x9b" + b"\xff" * 8):
        assert refusal(decode(Frame(REQUEST, 4, head + array), messages_max=3)) == 32


def test_a_payload_with_too_many_keys_is_11() -> None:
    for indefinite in (False, True):
        for count, code in ((FIELDS_MAX - 1, None), (FIELDS_MAX, 11)):
            fields = {"log_name": "l", **{f"key {number}": number for number in range(count)}}
            exchange = decode(Frame(REQUEST, 0, dumps(fields, indefinite_containers=indefinite)))
            assert (exchange.request is None) == (code is not None)


def test_an_ignored_value_with_too_many_items_or_too_deep_is_11() -> None:
    deep: list[Any] = []
    for _ in range(70):
        deep = [deep]
    assert refusal(asked(0, {"log_name": "l", "x": [0] * FIELD_ITEMS_MAX})) == 11
    assert refusal(asked(0, {"log_name": "l", "x": deep})) == 11
    assert asked(0, {"log_name": "l", "x": [0] * (FIELD_ITEMS_MAX - 1)}).request is not None


@pytest.mark.parametrize(
    "value",
    [
        b"\x9a\x00\x10\x00\x00" + b"\x80" * (1 << 20),
        b"\x9f" + b"\x80" * (1 << 20) + b"\xff",
        b"\x5f" + b"\x40" * (1 << 20) + b"\xff",
        b"\x81" * (1 << 20) + b"\x00",
        b"\x9b" + b"\xff" * 8,
        b"\x5b" + b"\x0f" * 8,
        b"\xc2\x5a\x00\x10\x00\x00" + b"\xff" * (1 << 20),
    ],
    ids=["arrays", "endless arrays", "pieces", "nested", "claimed items", "claimed bytes", "bignum"],
)
@pytest.mark.parametrize("key", [b"\x61x", b"\x68log_name", b"\x68messages", b"\x67message"])
def test_a_bomb_in_a_payload_is_answered_in_bounded_memory(key: bytes, value: bytes) -> None:
    frame = Frame(REQUEST, 4, b"\xa1" + key + value)
    tracemalloc.start()
    exchange = decode(frame)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert refusal(exchange) in (11, 18, 32)
    assert peak < 4 * len(frame.payload) + 100_000


# --- what the server says -------------------------------------------------------------------------------------


def test_every_error_has_a_code() -> None:
    assert set(CODES) == family(PenstockError)
    assert set(CODES.values()) <= set(NAMES)


def test_an_error_that_the_table_lacks_has_the_code_of_its_nearest_base() -> None:
    class TooBusy(errors.WriterBusy):
        pass

    class Strange(PenstockError):
        pass

    assert code_of(TooBusy(1)) == 33
    assert code_of(Strange()) == 255


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.LogNotFound("l"), 0, "LogDoesNotExist"),
        (errors.IteratorExists("i"), 1, "ItrExistsWithSameName"),
        (errors.IteratorNotFound("i"), 2, "ItrDoesNotExist"),
        (errors.NotCbor(3, "it is empty"), 3, "MsgNotValidCbor"),
        (errors.FunctionFailed("no such thing", 7), 4, "ErrRunningLua: at message 7: no such thing"),
        (errors.FunctionFailed("it does not compile"), 4, "ErrRunningLua: it does not compile"),
        (errors.ResultUnreadable("a function", 0), 5, "ErrReadingLuaResponse: at message 0: a function"),
        (errors.FunctionTimedOut("more than 100 ms", 2), 34, "IteratorTimeout: at message 2: more than 100 ms"),
        (errors.InvalidRequest("log_name", "is empty"), 11, "CouldNotReadPayload"),
        (errors.IteratorCycle("i"), 11, "CouldNotReadPayload"),
        (errors.LimitExceeded("event_bytes_max", 2, 1), 32, "LimitExceeded"),
        (errors.WriterBusy(9), 33, "ServerBusy"),
        (errors.ReaderTimeout(9), 33, "ServerBusy"),
        (errors.WorkerDied("died"), 33, "ServerBusy"),
        (errors.NotAllowed("somebody", "APPEND"), 35, "NotAllowed"),
        (errors.StorageFull("the disk"), 255, "InternalError"),
        (errors.Unexpected("oh"), 255, "InternalError"),
    ],
)
def test_an_error_is_its_code_and_its_name(error: PenstockError, code: int, text: str) -> None:
    assert error_frame(error) == pack(ERROR, code, dumps(text))


def test_what_a_function_says_is_cut_and_made_unicode() -> None:
    failure = parse_error(one_frame(error_frame(FunctionFailed("\ud800" + "x" * 100_000))))
    assert failure.detail == "?" + "x" * (DETAIL_CHARACTERS_MAX - 1)
