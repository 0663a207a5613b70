"""Bytes that are no Remits, frames of odd lengths, and CBOR that means harm: the right error, and bounded memory."""

import socket
import struct
from collections.abc import Iterator

import cbor2
import pytest

from tests.gates.remits_client import (
    ITERATOR_NEXT,
    LOG_ADD,
    LOG_LIST,
    LOG_SHOW,
    MESSAGE_ADD,
    Remits,
    frame,
    fresh,
    neighbours_are_served,
    request,
)
from tests.gates.serving import Served, until
from tests.seeds import rng

FRAME_BYTES = 2 << 20
SERVER_FLAGS = ("--remits-frame-bytes-max", str(FRAME_BYTES))
MEMORY_BYTES_MAX = 128 << 20
"""What a server may grow by while somebody misbehaves."""


@pytest.fixture
def remits(server: Served) -> Iterator[Remits]:
    with Remits(server.remits) as connected:
        yield connected


@pytest.fixture
def log(remits: Remits) -> str:
    """A log of its own for each test."""
    return remits.log_add(fresh())


# ---------------------------------------------------------------- framing


@pytest.mark.parametrize(
    ("length", "code"), [(0, 9), (1, 9), (FRAME_BYTES + 1, 32), (1 << 31, 32), ((1 << 32) - 1, 32)]
)
def test_a_length_that_cannot_be_is_answered_at_once_and_ends_the_connection(
    remits: Remits, length: int, code: int
) -> None:
    """The four bytes of the length are enough: nothing else of the frame has to come."""
    remits.send(struct.pack(">I", length))
    assert remits.receive().failure().code == code
    assert remits.is_closed()


def test_what_a_length_was_is_not_among_the_reasons_that_are_counted(server: Served) -> None:
    """Or else everybody could make as many of them as they like."""
    lengths = (0, 1, *(FRAME_BYTES + extra for extra in range(1, 20)))
    for length in lengths:
        with Remits(server.remits) as remits:
            remits.send(struct.pack(">I", length))
            remits.receive().failure()
            assert remits.is_closed()
    until(lambda: server.metric('penstock_gate_sessions{gate="remits"}') == 0)
    closed = {
        name: times for name, times in server.metrics().items() if "gate_closed_total" in name and "frame" in name
    }
    assert {name.partition("reason=")[2] for name in closed} == {'"a frame was too long"}', '"a frame was too short"}'}
    assert sum(closed.values()) >= len(lengths)


def test_requests_before_a_wrong_length_are_answered_and_nothing_behind_it_is_done(server: Served) -> None:
    before, behind = fresh(), fresh()
    with Remits(server.remits) as remits:
        requests = [request(LOG_ADD, log_name=before), request(LOG_SHOW, log_name=before), frame(LOG_LIST)]
        remits.send(b"".join(requests) + struct.pack(">IBB", 1, 0, 0) + request(LOG_ADD, log_name=behind))
        remits.receive().ok()
        assert remits.receive().values()[0]["name"] == before
        assert before in remits.receive().values()[0]
        assert remits.receive().failure().code == 9
        assert remits.is_closed()
    with Remits(server.remits) as remits:
        assert behind not in remits.log_list()


def test_garbage_on_the_port_disturbs_nobody(server: Served) -> None:
    dice = rng("bytes to the Remits gate")
    openings = [
        *(dice.randbytes(dice.randrange(1, 5000)) for _ in range(30)),
        *(struct.pack(">I", dice.randrange(2, 50)) + dice.randbytes(100) for _ in range(50)),
        *(frame(dice.randrange(10), dice.randbytes(dice.randrange(100))) for _ in range(100)),
        b"\x16\x03\x01\x02\x00" + dice.randbytes(512),
        b"\xff" * 1000,
        bytes(1000),
        b"",
    ]
    with neighbours_are_served(server.remits):
        for opening in openings:
            with Remits(server.remits) as remits:
                remits.send(opening)


def test_an_http_request_is_told_that_it_is_too_long(remits: Remits) -> None:
    remits.send(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    assert remits.receive().failure().code == 32
    assert remits.is_closed()


def test_a_frame_may_have_exactly_the_limit(remits: Remits, log: str) -> None:
    room = FRAME_BYTES - len(request(MESSAGE_ADD, log_name=log, message=bytes(FRAME_BYTES))) + 4 + FRAME_BYTES
    message = cbor2.dumps(bytes(room - 5))
    longest = request(MESSAGE_ADD, log_name=log, message=message)
    assert len(longest) == 4 + FRAME_BYTES
    for _ in range(3):
        remits.ask_frame(longest).ok()
    iterator = remits.iterator_add(log, "filter", "return true")
    assert remits.next_items(iterator, 2, 1) == [message]
    remits.send(request(MESSAGE_ADD, log_name=log, message=message + b"\0")[:100])
    assert remits.receive().failure().code == 32
    assert remits.is_closed()


def test_frames_may_come_in_pieces_and_together(remits: Remits, log: str) -> None:
    message = request(MESSAGE_ADD, log_name=log, message=b"\x01")
    for at in range(len(message)):
        remits.send(message[at : at + 1])
    remits.receive().ok()
    remits.send(message * 3 + message[:7])
    for _ in range(3):
        remits.receive().ok()
    remits.send(message[7:])
    remits.receive().ok()
    assert remits.log_show(log)["message_count"] == 5


# ---------------------------------------------------------------- pipelining


def test_thousands_of_pipelined_requests_are_answered_in_order(remits: Remits, log: str) -> None:
    iterator = remits.iterator_add(log, "map", "return msg")
    rounds, sent = 1000, []
    for number in range(rounds):
        sent.append(request(MESSAGE_ADD, log_name=log, message=cbor2.dumps(number)))
        if number % 3 == 0:
            sent.append(request(ITERATOR_NEXT, iterator_name=iterator, message_id=number, count=1))
        sent.append(request(LOG_SHOW, log_name=log) if number % 2 else frame(77))
    remits.send(b"".join(sent))
    for number in range(rounds):
        remits.receive().ok()
        if number % 3 == 0:
            assert remits.receive().values() == [number]
        if number % 2:
            assert remits.receive().values()[0]["message_count"] == number + 1
        else:
            assert remits.receive().failure().code == 7


def test_who_has_said_all_still_gets_all_answers(remits: Remits, log: str) -> None:
    iterator = remits.iterator_add(log, "reduce", "return (acc or 0) + 1")
    total = request(ITERATOR_NEXT, iterator_name=iterator, message_id=-1, count=1)
    remits.send(request(MESSAGE_ADD, log_name=log, messages=[b"\x01"] * 10_000) + total + frame(LOG_LIST))
    remits.send(request(MESSAGE_ADD, log_name=log, message=b"\x01") * 500 + total + frame(LOG_LIST)[:3])
    remits.socket.shutdown(socket.SHUT_WR)
    remits.receive().ok()
    assert remits.receive().values() == [10_000]
    assert log in remits.receive().values()[0]
    for _ in range(500):
        remits.receive().ok()
    assert remits.receive().values() == [10_500]
    assert remits.is_closed()


def test_half_a_frame_does_nothing(server: Served) -> None:
    with Remits(server.remits) as remits:
        log = remits.log_add(fresh())
    whole = request(MESSAGE_ADD, log_name=log, message=b"\x01")
    for length in (1, 5, len(whole) // 2, len(whole) - 1):
        with Remits(server.remits) as remits:
            remits.send(whole[:length])
            remits.socket.shutdown(socket.SHUT_WR)
            assert remits.is_closed()
    with Remits(server.remits) as remits:
        assert remits.log_show(log)["message_count"] == 0


# ---------------------------------------------------------------- CBOR that means harm

MILLION = 1_000_000
NOT_VALID = {
    "65 deep": b"\x81" * 65 + b"\0",
    "65 maps": b"\xa1\0" * 65 + b"\0",
    "65 tags": b"\xc6" * 65 + b"\0",
    "65 indefinite": b"\x9f" * 65 + b"\0" + b"\xff" * 65,
    "a million deep": b"\x81" * MILLION + b"\0",
    "a million indefinite arrays": b"\x9f" * MILLION,
    "a million tags": b"\xd9\x12\x34" * (MILLION // 3) + b"\0",
    "a million items": b"\x9a" + struct.pack(">I", MILLION) + bytes(MILLION),
    "a million items until a break": b"\x9f" + bytes(MILLION) + b"\xff",
    "a million empty arrays": b"\x9a" + struct.pack(">I", MILLION) + b"\x80" * MILLION,
    "a million empty pieces": b"\x5f" + b"\x40" * MILLION + b"\xff",
    "half a million keys": b"\xba"
    + struct.pack(">I", 300_000)
    + b"".join(b"\x1a" + struct.pack(">I", n) + b"\0" for n in range(300_000)),
    "bytes of 16 EiB": b"\x5b" + b"\xff" * 8,
    "a text of 4 GiB": b"\x7a\xff\xff\xff\xff" + b"x" * 1000,
    "an array of 16 EiB": b"\x9b" + b"\xff" * 8,
    "a map of 4 Gi keys": b"\xba\xff\xff\xff\xff" + bytes(1000),
    "a bignum of 16 EiB": b"\xc2\x5b" + b"\xff" * 8,
    "an array that is not closed": b"\x9f\x01\x02",
    "a map that is not closed": b"\xbf\x01\x02",
    "a map closed after a key": b"\xbf\x01\xff",
    "a text that is not closed": b"\x7f\x61a",
    "pieces inside pieces": b"\x5f\x5f\x41a\xff\xff",
    "a piece of another kind": b"\x5f\x61a\xff",
    "an indefinite number": b"\x1f",
    "an indefinite tag": b"\xdf\x00",
    "a break alone": b"\xff",
    "a break in an array": b"\x82\x01\xff",
    "reserved lengths": b"\x1c",
    "a reserved simple value": b"\xf8\x10",
    "a key twice": b"\xa2\x61a\x01\x61a\x02",
    "a key twice, written otherwise": b"\xa2\x01\x01\x18\x01\x02",
    "a key twice, in pieces": b"\xa2\x61a\x01\x7f\x61a\xff\x02",
    "a key twice, further in": b"\x81\xa1\x61x\xbf\x41k\x01\x41k\x02\xff",
    "a key twice, an array": b"\xa2\x81\x01\x01\x81\x01\x02",
    "a text that is no UTF-8": b"\x62\xc3\x28",
    "a text cut inside a letter": b"\x7f\x61\xc3\x61\xa9\xff",
    "half a surrogate pair": b"\x63\xed\xa0\x80",
}


@pytest.mark.parametrize("bad", NOT_VALID)
def test_a_message_that_means_harm_is_no_message(server: Served, remits: Remits, log: str, bad: str) -> None:
    before = server.memory_bytes()
    for messages in ([NOT_VALID[bad]], [b"\x01", NOT_VALID[bad], b"\x02"]):
        assert remits.ask_frame(request(MESSAGE_ADD, log_name=log, messages=messages)).failure().code == 3
    assert remits.ask_frame(request(MESSAGE_ADD, log_name=log, message=NOT_VALID[bad])).failure().code == 3
    assert remits.log_show(log)["message_count"] == 0
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX


def test_bombs_do_not_hold_others_up(server: Served) -> None:
    with neighbours_are_served(server.remits), Remits(server.remits) as remits:
        log = remits.log_add(fresh())
        bombs = [bomb for bomb in NOT_VALID.values() if len(bomb) > 100_000]
        remits.send(b"".join(request(MESSAGE_ADD, log_name=log, message=bomb) for bomb in bombs))
        for _ in bombs:
            assert remits.receive().failure().code == 3


def bomb_in(key: bytes, value: bytes) -> bytes:
    """Log Add with one more key of any kind."""
    return frame(LOG_ADD, b"\xa2" + cbor2.dumps("log_name") + b"\x61x" + key + value)


PAYLOADS = {
    "a deep value": bomb_in(b"\x61k", b"\x81" * MILLION + b"\0"),
    "a wide value": bomb_in(b"\x61k", b"\x9a" + struct.pack(">I", MILLION) + bytes(MILLION)),
    "a deep key": bomb_in(b"\x81" * 100 + b"\0", b"\0"),
    "a value that lies": bomb_in(b"\x61k", b"\x5b" + b"\xff" * 8),
    "a key that lies": bomb_in(b"\x7b" + b"\xff" * 8, b"\0"),
    "a value that is not there": frame(LOG_ADD, b"\xa2" + cbor2.dumps("log_name") + b"\x61x\x61k"),
    "a map that lies": frame(LOG_ADD, b"\xbb" + b"\xff" * 8 + cbor2.dumps("log_name") + b"\x61x"),
    "101 keys": frame(LOG_ADD, cbor2.dumps({"log_name": "x", **{str(n): n for n in range(100)}})),
    "keys without end": frame(LOG_ADD, b"\xbf" + b"".join(cbor2.dumps(n) + b"\0" for n in range(100_000)) + b"\xff"),
    "a name in a million pieces": frame(
        LOG_ADD, b"\xa1" + cbor2.dumps("log_name") + b"\x7f" + b"\x60" * MILLION + b"\xff"
    ),
    "a tagged map": frame(LOG_ADD, b"\xd9\xd9\xf7" + cbor2.dumps({"log_name": "x"})),
    "nothing but an opening": frame(LOG_ADD, b"\xbf"),
}


@pytest.mark.parametrize("bad", PAYLOADS)
def test_a_payload_that_means_harm_is_not_read(server: Served, remits: Remits, bad: str) -> None:
    before = server.memory_bytes()
    assert remits.ask_frame(PAYLOADS[bad]).failure().code == 11
    assert "x" not in remits.log_list()
    assert server.memory_bytes() < before + MEMORY_BYTES_MAX


@pytest.mark.parametrize(
    ("head", "messages", "code"),
    [
        (b"\x9b" + b"\xff" * 8, b"\x41\x01", 32),
        (b"\x9a\x00\x00\x27\x11", b"\x41\x01", 32),
        (b"\x9f", b"\x40" * MILLION, 32),
        (b"\x9f", b"\x41\x01" * 10_001 + b"\xff", 32),
        (b"\x82", b"\x41\x01", 11),
        (b"\x9f", b"\x41\x01", 11),
        (b"\x81", b"\x5b" + b"\xff" * 8, 11),
        (b"\x81", b"\x81" * MILLION, 18),
    ],
)
def test_an_array_of_messages_that_lies_is_refused(
    remits: Remits, log: str, head: bytes, messages: bytes, code: int
) -> None:
    payload = b"\xa2" + cbor2.dumps("log_name") + cbor2.dumps(log) + cbor2.dumps("messages") + head + messages
    assert remits.ask_frame(frame(MESSAGE_ADD, payload)).failure().code == code
    assert remits.log_show(log)["message_count"] == 0


def test_what_is_just_within_the_limits_is_taken(remits: Remits, log: str) -> None:
    deep = [b"\x81" * 64 + b"\0", b"\x9f" * 64 + b"\xff" * 64, b"\xd9\x12\x34" * 64 + b"\0"]
    wide = [b"\x9a" + struct.pack(">I", 99_999) + bytes(99_999), b"\x5f" + b"\x40" * 99_999 + b"\xff"]
    remits.add_encoded(log, *deep, *wide)
    iterator = remits.iterator_add(log, "filter", "return true")
    assert remits.all_items(iterator) == [*deep, *wide]
    assert remits.all(remits.iterator_add(log, "map", "return msg")) == list(map(cbor2.loads, [*deep, *wide]))
