"""Remits over TCP against a real server: every operation, and every error that a client's mistake is answered with."""

import time
from collections.abc import Iterator
from typing import Any

import cbor2
import pytest

from tests.gates.remits_client import (
    ITERATOR_ADD,
    ITERATOR_DELETE,
    ITERATOR_LIST,
    ITERATOR_NEXT,
    LOG_ADD,
    LOG_DELETE,
    LOG_LIST,
    LOG_SHOW,
    MESSAGE_ADD,
    TOKEN,
    Answer,
    Failure,
    Remits,
    frame,
    fresh,
    request,
)
from tests.gates.serving import Served


@pytest.fixture
def remits(server: Served) -> Iterator[Remits]:
    with Remits(server.remits) as connected:
        yield connected


@pytest.fixture
def log(remits: Remits) -> str:
    """A log of its own for each test."""
    return remits.log_add(fresh())


def contents(remits: Remits, log: str) -> list[Any]:
    """Everything in a log, by way of an iterator that leaves it as it is."""
    return remits.all(remits.iterator_add(log, "map", "return msg"))


def refused(answer: Answer) -> int:
    """The code of an error."""
    return answer.failure().code


# ---------------------------------------------------------------- as the original's own test has it


def test_the_original_scenario(remits: Remits) -> None:
    log, iterator = fresh("integration"), fresh("iterator")
    for _ in range(2):
        remits.ask(LOG_ADD, {"log_name": log}).ok()
    adding = {"log_name": log, "iterator_name": iterator, "iterator_func": "return msg"}
    assert refused(remits.ask(ITERATOR_ADD, {**adding, "iterator_kind": "unknown"})) == 11
    assert refused(remits.ask(MESSAGE_ADD, {"log_name": log, "message": b"\x1f"})) == 3
    message = {"number": 1, "word": "two", "list": [3, 4]}
    remits.ask(MESSAGE_ADD, {"log_name": log, "message": cbor2.dumps(message)}).ok()
    remits.ask(ITERATOR_ADD, {**adding, "iterator_kind": "map"}).ok()
    asked = {"iterator_name": iterator, "message_id": 0, "count": 1}
    assert remits.ask(ITERATOR_NEXT, asked).values() == [message]
    assert log in remits.log_list()


# ---------------------------------------------------------------- logs


def test_logs_are_listed_by_name_whatever_the_payload_holds(remits: Remits) -> None:
    later, earlier = remits.log_add(fresh("list-b")), remits.log_add(fresh("list-a"))
    names = remits.log_list()
    assert names == sorted(names)
    assert {earlier, later} <= set(names)
    for payload in (b"\xf6", b"\xa0", b"not CBOR \xff"):
        assert remits.ask_frame(frame(LOG_LIST, payload)).values() == [names]


def test_a_log_that_is_added_again_stays_what_it_is(remits: Remits, log: str) -> None:
    remits.add(log, "kept")
    before = remits.log_show(log)
    remits.log_add(log)
    assert remits.log_show(log) == before
    assert contents(remits, log) == ["kept"]


def test_a_log_is_shown_with_what_is_in_it(remits: Remits) -> None:
    before = int(time.time())
    log = remits.log_add(fresh())
    after = int(time.time())
    empty = remits.log_show(log)
    assert list(empty) == ["name", "created_at", "message_count", "bytes", "iterators"]
    assert before <= empty.pop("created_at") <= after
    assert empty == {"name": log, "message_count": 0, "bytes": 0, "iterators": []}
    names = [remits.iterator_add(log, "map", "return msg", name=fresh(name)) for name in ("second", "first")]
    remits.add_encoded(log, b"\x01", b"\x62hi")
    shown = remits.log_show(log)
    assert (shown["message_count"], shown["bytes"], shown["iterators"]) == (2, 4, sorted(names))


def test_a_log_that_was_never_there_is_deleted_all_the_same(remits: Remits) -> None:
    name = fresh()
    for _ in range(2):
        remits.log_delete(name)
    assert name not in remits.log_list()


@pytest.mark.parametrize("indexed", [False, True])
def test_a_deleted_log_starts_anew_and_shows_nothing_old(remits: Remits, log: str, indexed: bool) -> None:
    remits.add(log, "old", "older")
    iterator = remits.iterator_add(log, "map", "return msg", indexed=indexed)
    above = remits.iterator_add(iterator, "map", "return msg") if indexed else None
    assert remits.all(iterator) == ["old", "older"]
    remits.log_delete(log)
    assert log not in remits.log_list()
    assert refused(remits.ask(LOG_SHOW, {"log_name": log})) == 0
    for name in filter(None, (iterator, above)):
        assert name not in remits.iterator_list()
        assert refused(remits.ask(ITERATOR_NEXT, {"iterator_name": name, "message_id": 0, "count": 1})) == 2
    remits.log_add(log)
    assert remits.log_show(log)["message_count"] == 0
    assert remits.log_show(log)["iterators"] == []
    assert remits.iterator_add(log, "map", "return msg", indexed=indexed, name=iterator) == iterator
    assert remits.all(iterator) == []
    remits.add(log, "new")
    assert remits.next(iterator, 0) == ["new"]
    assert remits.last(iterator) == "new"
    assert remits.log_show(log)["message_count"] == 1


# ---------------------------------------------------------------- messages


def test_messages_are_added_under_both_spellings_and_keep_their_order(remits: Remits, log: str) -> None:
    remits.ask(MESSAGE_ADD, {"log_name": log, "messages": [cbor2.dumps(n) for n in range(3)]}).ok()
    remits.ask(MESSAGE_ADD, {"log_name": log, "message": cbor2.dumps(3)}).ok()
    remits.ask(MESSAGE_ADD, {"message": cbor2.dumps(4), "created_at": None, "log_name": log}).ok()
    remits.ask(MESSAGE_ADD, {"messages": None, "message": cbor2.dumps(5), "log_name": log}).ok()
    assert contents(remits, log) == [0, 1, 2, 3, 4, 5]


def test_an_empty_array_of_messages_does_nothing(remits: Remits, log: str) -> None:
    remits.ask(MESSAGE_ADD, {"log_name": log, "messages": []}).ok()
    assert remits.log_show(log)["message_count"] == 0
    assert refused(remits.ask(MESSAGE_ADD, {"log_name": fresh(), "messages": []})) == 0


@pytest.mark.parametrize("bad", [b"", b"\xa1", b"\x01\x02", b"\xff"])
def test_one_bad_message_keeps_all_others_out(remits: Remits, log: str, bad: bytes) -> None:
    messages = [cbor2.dumps("good"), bad, cbor2.dumps("good too")]
    assert refused(remits.ask(MESSAGE_ADD, {"log_name": log, "messages": messages})) == 3
    assert remits.log_show(log)["message_count"] == 0


def test_messages_are_kept_byte_for_byte(remits: Remits, log: str) -> None:
    """Long forms of short numbers, pieces, and a float of half width: a filter gives all of them back as they came."""
    messages = [
        bytes.fromhex(text) for text in ("1800", "1b0000000000000001", "7f61616162ff", "9f01ff", "bfff", "f93c00")
    ]
    remits.add_encoded(log, *messages)
    for indexed in (False, True):
        assert remits.all_items(remits.iterator_add(log, "filter", "return true", indexed=indexed)) == messages


def test_keys_that_nobody_knows_are_ignored_everywhere(remits: Remits) -> None:
    odd = {"created_at": None, "": 1, 7: [1, {"x": b"y"}], "nested": {"log_name": "other"}}
    log, iterator = fresh(), fresh("iterator")
    remits.ask(LOG_ADD, {**odd, "log_name": log}).ok()
    remits.ask(MESSAGE_ADD, {**odd, "log_name": log, "messages": [b"\x01"]}).ok()
    named = {**odd, "log_name": log, "iterator_name": iterator}
    remits.ask(ITERATOR_ADD, {**named, "iterator_type": "map", "iterator_func": "return msg"}).ok()
    assert remits.ask(ITERATOR_LIST, {**odd, "log_name": log}).values() == [iterator]
    assert remits.ask(ITERATOR_NEXT, {**named, "message_id": 0, "count": 9}).values() == [1]
    assert remits.ask(LOG_SHOW, {**odd, "log_name": log}).values()[0]["message_count"] == 1
    remits.ask(ITERATOR_DELETE, named).ok()
    remits.ask(LOG_DELETE, {**odd, "log_name": log}).ok()
    assert log not in remits.ask(LOG_LIST, odd).values()[0]


def test_payloads_of_indefinite_length_are_understood(remits: Remits, log: str) -> None:
    text = cbor2.dumps(log[:3])[:1] + log[:3].encode() + cbor2.dumps(log[3:])
    payload = b"\xbf" + cbor2.dumps("log_name") + b"\x7f" + text + b"\xff"
    payload += cbor2.dumps("messages") + b"\x9f\x41\x01\x5f\x41\x18\x41\x2a\xff\xff" + b"\xff"
    remits.ask_frame(frame(MESSAGE_ADD, payload)).ok()
    assert contents(remits, log) == [1, 42]


def test_a_token_is_taken_and_means_nothing(remits: Remits, log: str) -> None:
    remits.ask(TOKEN, {"token": "anything"}).ok()
    assert refused(remits.ask(TOKEN, {})) == 11
    assert refused(remits.ask(TOKEN, {"token": 7})) == 11
    assert log in remits.log_list()


# ---------------------------------------------------------------- mistakes

NOWHERE = "nowhere"
SOMEWHERE = "somewhere"
ADDING = {"log_name": NOWHERE, "iterator_name": "i", "iterator_type": "map", "iterator_func": "return msg"}
NEXT = {"iterator_name": NOWHERE, "message_id": 0, "count": 1}
ADD_ONE = {"log_name": NOWHERE, "messages": [b"\x01"]}
LONG = "x" * 513
UNREADABLE = b"\x62\xff\xfe"
"""A text that is not UTF-8."""


def without(fields: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != key}


def with_unreadable(fields: dict[str, Any], key: str) -> bytes:
    """The payload of these fields, one of them a text that is not UTF-8."""
    pairs = [cbor2.dumps(name) + (UNREADABLE if name == key else cbor2.dumps(fields[name])) for name in fields]
    return bytes([0xA0 | len(fields)]) + b"".join(pairs)


MISTAKES: dict[str, tuple[int, bytes]] = {
    # 0: no such log
    "show no log": (0, request(LOG_SHOW, log_name=NOWHERE)),
    "add to no log": (0, request(MESSAGE_ADD, **ADD_ONE)),
    "iterate over no log": (0, request(ITERATOR_ADD, **ADDING)),
    "iterate over half a stream": (0, request(ITERATOR_ADD, **{**ADDING, "log_name": "nowhere/"})),
    "iterate over a log as a stream": (0, request(ITERATOR_ADD, **{**ADDING, "log_name": "remits/nowhere"})),
    # 2: no such iterator
    "read no iterator": (2, request(ITERATOR_NEXT, **NEXT)),
    "delete no iterator": (2, request(ITERATOR_DELETE, log_name=NOWHERE, iterator_name=NOWHERE)),
    # 3: no CBOR, which is looked at once the log is found
    "no CBOR": (3, request(MESSAGE_ADD, log_name=SOMEWHERE, messages=[b"\xff"])),
    "two items": (3, request(MESSAGE_ADD, log_name=SOMEWHERE, message=b"\x01\x01")),
    "no item": (3, request(MESSAGE_ADD, log_name=SOMEWHERE, message=b"")),
    "no CBOR for no log": (0, request(MESSAGE_ADD, log_name=NOWHERE, messages=[b"\xff"])),
    # 4: no Lua
    "no Lua": (4, request(ITERATOR_ADD, **{**ADDING, "iterator_func": "return ("})),
    # 7, 8, 10: not a request
    "code 9": (7, frame(9)),
    "code 31": (7, frame(31, b"\xa0")),
    "code 255": (7, frame(255, b"garbage")),
    **{f"kind {kind}": (10, frame(LOG_LIST, kind=kind)) for kind in (1, 2, 3)},
    **{f"kind {kind}": (8, frame(LOG_LIST, kind=kind)) for kind in (4, 100, 255)},
    # 11: the payload is not what it must be
    **{f"no payload for {code}": (11, frame(code)) for code in (0, 1, 2, 4, 5, 7, 8, 32)},
    "an array": (11, frame(LOG_ADD, cbor2.dumps(["log_name", "x"]))),
    "a text": (11, frame(LOG_ADD, cbor2.dumps("x"))),
    "null": (11, frame(ITERATOR_LIST, b"\xf6")),
    "bytes behind the map": (11, frame(LOG_ADD, cbor2.dumps({"log_name": "x"}) + b"\x00")),
    "a map cut short": (11, frame(LOG_ADD, cbor2.dumps({"log_name": "x"})[:-1])),
    "a number for a log": (11, request(LOG_SHOW, log_name=1)),
    "bytes for a log": (11, request(LOG_ADD, log_name=b"x")),
    "null for a log": (11, request(LOG_ADD, log_name=None)),
    "a field twice": (11, frame(LOG_ADD, b"\xa2" + (cbor2.dumps("log_name") + b"\x61x") * 2)),
    "an empty name": (11, request(LOG_ADD, log_name="")),
    "a name with NUL": (11, request(LOG_ADD, log_name="a\0b")),
    "a long name": (11, request(LOG_ADD, log_name=LONG)),
    "an iterator of a long name": (11, request(ITERATOR_ADD, **{**ADDING, "iterator_name": LONG})),
    "an unknown type": (11, request(ITERATOR_ADD, **{**ADDING, "iterator_type": "sort"})),
    "a type in capitals": (11, request(ITERATOR_ADD, **{**ADDING, "iterator_type": "Map"})),
    "both spellings of the type": (11, request(ITERATOR_ADD, **{**ADDING, "iterator_kind": "map"})),
    "a number for indexed": (11, request(ITERATOR_ADD, **{**ADDING, "indexed": 1})),
    **{f"an iterator without {key}": (11, request(ITERATOR_ADD, **without(ADDING, key))) for key in ADDING},
    **{f"next without {key}": (11, request(ITERATOR_NEXT, **without(NEXT, key))) for key in NEXT},
    "a negative count": (11, request(ITERATOR_NEXT, **{**NEXT, "count": -1})),
    "a text for a count": (11, request(ITERATOR_NEXT, **{**NEXT, "count": "1"})),
    "a float for an id": (11, request(ITERATOR_NEXT, **{**NEXT, "message_id": 1.0})),
    "an id of 64 bits": (11, request(ITERATOR_NEXT, **{**NEXT, "message_id": (1 << 64) - 1})),
    "messages that are no array": (11, request(MESSAGE_ADD, log_name=NOWHERE, messages=b"\x01")),
    "both messages and message": (11, request(MESSAGE_ADD, **ADD_ONE, message=b"\x01")),
    "no messages": (11, request(MESSAGE_ADD, log_name=NOWHERE)),
    # 12 to 17 exist and are never sent
    "log name not UTF-8": (11, frame(LOG_ADD, with_unreadable({"log_name": ""}, "log_name"))),
    **{
        f"{key} not UTF-8": (11, frame(ITERATOR_ADD, with_unreadable(ADDING, key)))
        for key in ("iterator_name", "iterator_type", "iterator_func")
    },
    # 18: a message that was not encoded before the payload was
    "a message that is text": (18, request(MESSAGE_ADD, log_name=NOWHERE, messages=["hello"])),
    "a message that is a map": (18, request(MESSAGE_ADD, log_name=NOWHERE, messages=[b"\x01", {"a": 1}])),
    "one message that is a number": (18, request(MESSAGE_ADD, log_name=NOWHERE, message=7)),
    # 32: more than a setting allows
    "too many messages": (32, request(MESSAGE_ADD, log_name=NOWHERE, messages=[b"\x01"] * 10_001)),
    "too long a message": (32, request(MESSAGE_ADD, log_name=NOWHERE, message=cbor2.dumps(bytes(8 << 20)))),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_its_code_and_the_connection_goes_on(remits: Remits, mistake: str) -> None:
    remits.log_add(SOMEWHERE)
    code, sent = MISTAKES[mistake]
    assert refused(remits.ask_frame(sent)) == code
    assert isinstance(remits.log_list(), list)


def test_a_name_may_have_512_bytes(remits: Remits) -> None:
    name = fresh("é").ljust(510, "x")
    assert len(name.encode()) == 511
    for longest in (name, name + "x"):
        remits.log_add(longest)
        assert remits.log_show(longest)["name"] == longest
        remits.log_delete(longest)
    with pytest.raises(Failure, match="error 11"):
        remits.log_add(name + "xx")


def test_all_mistakes_pipelined_are_answered_in_their_order(remits: Remits) -> None:
    remits.log_add(SOMEWHERE)
    remits.send(b"".join(sent for _, sent in MISTAKES.values()))
    assert [refused(remits.receive()) for _ in MISTAKES] == [code for code, _ in MISTAKES.values()]
