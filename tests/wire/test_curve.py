"""CURVE, byte by byte: its handshake and frames, as a client made by hand sees them, and what is refused."""

import os
from collections.abc import Callable
from typing import Final

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from nacl.public import PrivateKey

from penstock.wire import curve
from penstock.wire.curve import OVERHEAD_BYTES
from penstock.wire.zmtp import Connection, Event, Limits, Message, Oversize, Ping, Ready, Violation
from tests.fuzz.curve import run
from tests.seeds import rng
from tests.wire.curve_checks import (
    CLIENT,
    COMMAND,
    GREETING,
    GREETING_BYTES,
    METADATA,
    MORE,
    SERVER,
    Client,
    check,
    forged_cookie,
    greeted,
    number,
    server,
)
from tests.wire.zmtp_checks import (
    OUR_SIGNATURE,
    SMALL,
    byte_by_byte,
    command,
    cut_at,
    frame,
    greeting_2,
    greeting_3,
    ping,
    properties,
    ready,
)

READY: Final = Ready("3.1", "DEALER", b"me")
OUR_GREETING: Final = OUR_SIGNATURE + b"\x03\x01" + b"CURVE".ljust(20, b"\0") + b"\x01" + bytes(31)
"""With the byte that says who is the server."""


def ending(events: list[Event]) -> str:
    (event,) = events
    assert isinstance(event, Violation)
    return event.what


# --- keys -----------------------------------------------------------------------------------------------------


def test_keys_are_written_as_zeromq_writes_them() -> None:
    for _ in range(50):
        public, secret = zmq.curve_keypair()
        assert curve.key_text(curve.key_of(secret.decode())) == secret.decode()
        assert curve.key_text(curve.public_key(curve.key_of(secret.decode()))) == public.decode()


def test_the_example_of_the_specification() -> None:
    text = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"
    found = bytes.fromhex("8E0BDD697628B91D8F245587EE95C5B04D48963F79259877B49CD9063AEAD3B7")
    assert curve.key_of(text) == found
    assert curve.key_text(found) == text


@pytest.mark.parametrize("text", ["", "a" * 39, "a" * 41, "a" * 39 + "~", "a" * 39 + "é", "#" * 40, "a" * 39 + " "])
def test_what_is_no_key_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="is not a key of CURVE") as caught:
        curve.key_of(text)
    assert not text or text not in str(caught.value)


def test_new_keys_differ() -> None:
    assert len({curve.new_secret_key() for _ in range(20)}) == 20


# --- the handshake --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [lambda data: [data], byte_by_byte], ids=["whole", "byte by byte"])
def test_a_handshake_is_answered_and_messages_follow(cut: Callable[[bytes], list[bytes]]) -> None:
    client, seen = Client(), list[bytes]()

    def admit(key: bytes) -> bool:
        seen.append(key)
        return True

    connection = Connection(mechanism=curve.Curve(bytes(SERVER), bytes(SERVER.public_key), admit))

    def said(data: bytes) -> tuple[list[Event], bytes]:
        events = [event for chunk in cut(data) for event in connection.receive(chunk)]
        return events, connection.data_to_send()

    events, sent = said(GREETING)
    assert (events, sent) == ([], OUR_GREETING)
    events, sent = said(client.hello())
    assert events == []
    client.welcome(sent)
    assert seen == []
    # The first message may follow at once.
    events, sent = said(client.initiate() + client.message([b"a", b"", b"b" * 300]))
    assert events == [READY, [b"a", b"", b"b" * 300]]
    assert seen == [bytes(CLIENT.public_key)]
    assert client.ready(sent) == properties(Socket_Type=b"ROUTER", Identity=b"")
    assert connection.pending_bytes == 0


def test_a_handshake_may_be_cut_at_every_byte() -> None:
    for place in range(1, 300):
        client, connection = Client(), server()
        opening = GREETING + client.hello()
        for chunk in cut_at(opening, [min(place, len(opening) - 1)]):
            assert connection.receive(chunk) == []
        client.welcome(connection.data_to_send()[GREETING_BYTES:])
        rest = client.initiate() + client.message([b"x"])
        events = [event for chunk in cut_at(rest, [min(place, len(rest) - 1)]) for event in connection.receive(chunk)]
        assert events == [READY, [b"x"]]


def test_each_connection_has_its_own_keys_and_cookie() -> None:
    seen = set()
    for _ in range(5):
        client, connection = Client(), server()
        connection.receive(GREETING + client.hello())
        seen.add((client.welcome(connection.data_to_send()[GREETING_BYTES:]), bytes(client.server_transient)))
    assert len({cookie for cookie, _ in seen}) == len({key for _, key in seen}) == 5


def test_welcome_is_shorter_than_hello() -> None:
    """So nobody can let the server send more to a third one than they send themselves."""
    client, connection = Client(), server()
    connection.receive(GREETING)
    connection.data_to_send()
    hello = client.hello()
    connection.receive(hello)
    assert len(connection.data_to_send()) < len(hello)


HELLOS: Final[dict[str, tuple[Callable[[Client], bytes], str]]] = {
    "for another server": (
        lambda _: Client(CLIENT.public_key).hello(),
        curve.WRONG_SERVER_KEY,
    ),
    "of another version": (
        lambda client: client.hello(version=b"\2\0"),
        "the peer speaks another version of CURVE than 1.0",
    ),
    "with bytes in its padding": (
        lambda client: client.hello(padding=bytes(71) + b"\1"),
        "the HELLO of CURVE is malformed",
    ),
    "with another signature": (lambda client: client.hello(signature=b"\1" * 64), "the HELLO of CURVE is malformed"),
    "with the key of somebody else": (
        lambda client: client.hello(public=bytes(CLIENT.public_key)),
        curve.WRONG_SERVER_KEY,
    ),
    "with a key that is zero": (lambda client: client.hello(public=bytes(31) + b"\1"), curve.WRONG_SERVER_KEY),
    "too short": (
        lambda client: command(b"HELLO", client.hello()[8:-1]),
        "the HELLO of CURVE has a wrong length",
    ),
    "too long": (
        lambda client: command(b"HELLO", client.hello()[8:] + b"\0"),
        "the HELLO of CURVE has a wrong length",
    ),
    "empty": (lambda _: command(b"HELLO"), "the HELLO of CURVE has a wrong length"),
    "READY in its place": (lambda _: ready(), "the handshake of CURVE does not begin with HELLO"),
    "INITIATE in its place": (
        lambda _: command(b"INITIATE", bytes(300)),
        "the handshake of CURVE does not begin with HELLO",
    ),
    "MESSAGE in its place": (
        lambda _: command(b"MESSAGE", bytes(30)),
        "the handshake of CURVE does not begin with HELLO",
    ),
    "a plain message in its place": (
        lambda _: frame(b"\x07MESSAGE" + bytes(30)),
        "a message came before the handshake was complete",
    ),
    "ERROR in its place": (
        lambda _: command(b"ERROR", b"\x02no"),
        "the peer refused the handshake with ERROR",
    ),
    "longer than a command": (
        lambda _: command(b"HELLO", bytes(9000)),
        "a command has more than 8192 bytes",
    ),
}


@pytest.mark.parametrize(("hello", "what"), HELLOS.values(), ids=HELLOS)
def test_a_wrong_hello_ends_the_connection_without_an_answer(hello: Callable[[Client], bytes], what: str) -> None:
    data = GREETING + hello(Client())
    for chunks in ([data], byte_by_byte(data)):
        connection = server()
        assert ending([event for chunk in chunks for event in connection.receive(chunk)]) == what
        assert connection.data_to_send() == OUR_GREETING
        assert connection.receive(GREETING) == []


INITIATES: Final[dict[str, tuple[Callable[[Client], bytes], str]]] = {
    "with a forged cookie": (
        lambda client: client.initiate(cookie=forged_cookie(client)),
        "the cookie in INITIATE is not of this connection",
    ),
    "with a changed cookie": (
        lambda client: client.initiate(cookie=client.cookie[:-1] + bytes([client.cookie[-1] ^ 1])),
        "the cookie in INITIATE is not of this connection",
    ),
    "with the nonce of HELLO": (
        lambda client: client.initiate(nonce=number(1)),
        "a nonce of CURVE came again, or out of order",
    ),
    "that cannot be opened": (
        lambda client: client.initiate()[:-1] + b"\0",
        "the INITIATE of CURVE cannot be opened",
    ),
    "with a key that its sender does not have": (
        lambda client: client.initiate(vouch=client.vouch(signed_by=PrivateKey.generate())),
        "the vouch in INITIATE is not of the client's key",
    ),
    "with a key that is zero": (
        lambda client: client.initiate(vouch=bytes(32) + client.vouch()[32:]),
        "the vouch in INITIATE is not of the client's key",
    ),
    "with a vouch for another connection": (
        lambda client: client.initiate(vouch=client.vouch(vouched=bytes(CLIENT.public_key) + bytes(SERVER.public_key))),
        "the vouch in INITIATE is for another connection",
    ),
    "with a vouch for another server": (
        lambda client: client.initiate(vouch=client.vouch(vouched=bytes(client.transient.public_key) + bytes(32))),
        "the vouch in INITIATE is for another connection",
    ),
    "without a vouch": (lambda client: client.initiate(vouch=b"", metadata=b""), "the INITIATE of CURVE is too short"),
    "empty": (lambda _: command(b"INITIATE"), "the INITIATE of CURVE is too short"),
    "with half a property": (
        lambda client: client.initiate(metadata=METADATA[:-1]),
        "the metadata of the peer is malformed",
    ),
    "a second HELLO in its place": (
        lambda client: client.hello(),
        "the handshake of CURVE does not go on with INITIATE",
    ),
    "READY in its place": (lambda _: ready(), "the handshake of CURVE does not go on with INITIATE"),
    "a message in its place": (
        lambda client: client.frame(b"a"),
        "a message came before the handshake was complete",
    ),
    "an identity that is too long": (
        lambda client: client.initiate(metadata=properties(Socket_Type=b"REQ", Identity=bytes(256))),
        "the identity of the peer has more than 255 bytes",
    ),
}


@pytest.mark.parametrize(("initiate", "what"), INITIATES.values(), ids=INITIATES)
def test_a_wrong_initiate_ends_the_connection_without_an_answer(initiate: Callable[[Client], bytes], what: str) -> None:
    client, connection = Client(), server()
    connection.receive(GREETING + client.hello())
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    assert ending(connection.receive(initiate(client))) == what
    assert connection.data_to_send() == b""


def test_the_handshake_of_another_connection_cannot_be_played_again() -> None:
    client, connection = Client(), server()
    hello = client.hello()
    connection.receive(GREETING + hello)
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    initiate = client.initiate()
    assert connection.receive(initiate) == [READY]
    again = server()
    assert again.receive(GREETING + hello) == []
    assert ending(again.receive(initiate)) == "the cookie in INITIATE is not of this connection"


def test_a_key_that_may_not_come_in_gets_error_400() -> None:
    client, connection = Client(), server(admits=False)
    connection.receive(GREETING + client.hello())
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    what = "the key of the client stands for no principal, and this gate takes no other"
    assert ending(connection.receive(client.initiate() + client.message([b"a"]))) == what
    assert connection.data_to_send() == command(b"ERROR", b"\x03400")


def test_a_socket_that_does_not_fit_is_told_so_with_an_error() -> None:
    client, connection = Client(), server()
    connection.receive(GREETING + client.hello())
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    events = connection.receive(client.initiate(metadata=properties(Socket_Type=b"SUB")))
    assert ending(events) == "the peer is no REQ, DEALER or ROUTER"
    reason = b"a ROUTER talks to REQ, DEALER and ROUTER"
    assert connection.data_to_send() == command(b"ERROR", bytes([len(reason)]) + reason)


@pytest.mark.parametrize("asked", [b"NULL", b"PLAIN"])
def test_a_client_without_encryption_is_told_what_to_change(asked: bytes) -> None:
    connection = server()
    has = "this server has CURVE: give the client the public key of the server, and a key pair of its own"
    events = connection.receive(greeting_3(mechanism=asked) + ready())
    assert ending(events) == f"the peer asks for the security mechanism {asked.decode()}; {has}"
    assert connection.data_to_send() == OUR_GREETING + command(b"ERROR", bytes([len(has)]) + has.encode())


def test_a_peer_of_zmtp_2_cannot_go_around_the_encryption() -> None:
    connection = server()
    what = "the peer speaks ZMTP 2.0, which has no security; this server has CURVE"
    assert ending(connection.receive(greeting_2() + frame(b"") + frame(b"a"))) == what


# --- frames ---------------------------------------------------------------------------------------------------

SIZES: Final = (0, 1, 221, 222, 223, 254, 255, 256, 65_535, 65_536, 1 << 20)
"""Around the ends of short frames, encrypted or not."""
AS_COMMANDS: Final = 4
"""The specification calls MESSAGE a command; libzmq sends it without the flag of one."""


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("outer", [0, AS_COMMANDS])
def test_frames_of_every_length_are_read(size: int, outer: int) -> None:
    client, connection = greeted()
    body = os.urandom(size)
    for _ in range(2):
        assert connection.receive(client.frame(body, outer=outer)) == [[body]]
        stream = client.frame(body, MORE, outer=outer) + client.frame(b"", outer=outer)
        assert connection.receive(stream[:-1]) == []
        assert connection.pending_bytes >= size
        assert connection.receive(stream[-1:]) == [[body, b""]]
        assert connection.pending_bytes == 0


@pytest.mark.parametrize("size", SIZES)
def test_frames_of_every_length_are_written(size: int) -> None:
    client, connection = greeted()
    body = os.urandom(size)
    wire = b"".join(connection.send([body, b"", body]))
    assert body[:40] not in wire or size < 8
    assert client.read(wire) == [(MORE, body), (MORE, b""), (0, body)]
    assert client.read(b"".join(connection.send([body]))) == [(0, body)]


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=6), max_size=5), st.data())
def test_messages_arrive_in_order_however_they_are_cut(sent: list[Message], data: st.DataObject) -> None:
    client, connection = greeted()
    stream = b"".join(client.message(each) for each in sent)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=8))
    assert [event for chunk in cut_at(stream, places) for event in connection.receive(chunk)] == sent
    wire = b"".join(b"".join(connection.send(each)) for each in sent)
    last = [(MORE if at + 1 < len(each) else 0, body) for each in sent for at, body in enumerate(each)]
    assert client.read(wire) == last


def test_pings_are_answered_encrypted_also_between_frames() -> None:
    client, connection = greeted()
    stream = client.frame(b"a", MORE) + client.command(b"PING", b"\0\x19now") + client.frame(b"b")
    for chunk in byte_by_byte(stream):
        for event in connection.receive(chunk):
            assert event in (Ping(2500), [b"a", b"b"])
    assert client.read(connection.data_to_send()) == [(COMMAND, b"\x04PONGnow")]
    assert client.read(connection.ping()) == [(COMMAND, b"\x04PING\0\0")]
    assert client.read(b"".join(connection.send([b"x"]))) == [(0, b"x")]


def test_encrypted_pongs_and_unknown_commands_mean_nothing() -> None:
    client, connection = greeted()
    stream = client.command(b"PONG") + client.command(b"SUBSCRIBE", b"a") + client.message([b"x"])
    assert connection.receive(stream) == [[b"x"]]
    assert connection.data_to_send() == b""


def flipped(data: bytes, at: int) -> bytes:
    """With one bit changed."""
    changed = bytearray(data)
    changed[at] ^= 1
    return bytes(changed)


CHANGED: Final = "an encrypted frame cannot be opened: it was changed on its way"
REPEATED: Final = "a nonce of CURVE came again, or out of order"
PLAIN: Final = "a frame is not encrypted, although the connection is"
FRAMES: Final[dict[str, tuple[Callable[[Client], bytes], str]]] = {
    "the same again": (lambda client: client.frame(b"a") * 2, REPEATED),
    "an older nonce": (lambda client: client.frame(b"a", nonce=number(2)), REPEATED),
    "in another order": (
        lambda client: client.frame(b"b", nonce=number(9)) + client.frame(b"a"),
        REPEATED,
    ),
    "one bit of its content changed": (
        lambda client: flipped(client.frame(b"a"), -1),
        CHANGED,
    ),
    "its nonce changed": (
        lambda client: flipped(client.frame(b"a"), 14),
        CHANGED,
    ),
    "in plain text": (lambda _: frame(b"a" * 60), PLAIN),
    "a plain command": (lambda _: ping(), PLAIN),
    "a plain ERROR": (lambda _: command(b"ERROR", b"\x00"), PLAIN),
    "empty": (lambda _: frame(b""), PLAIN),
    "only a name": (lambda _: frame(b"\x07MESSAGE"), "an encrypted frame is too short"),
    "no room for flags": (lambda _: frame(b"\x07MESSAGE" + bytes(24)), "an encrypted frame is too short"),
    "no content": (lambda _: frame(b"\x07MESSAGE" + b"\xff" * 25), CHANGED),
    "an answer of ours sent back": (
        lambda client: frame(
            b"\x07MESSAGE" + number(9) + client.box.encrypt(b"\0a", b"CurveZMQMESSAGES" + number(9)).ciphertext
        ),
        CHANGED,
    ),
    "flags that do not exist": (
        lambda client: client.frame(b"a", 4),
        "an encrypted frame has flags that do not exist",
    ),
    "a command with more to follow": (
        lambda client: client.frame(b"\x04PONG", 3),
        "an encrypted frame has flags that do not exist",
    ),
    "more outside of it": (lambda client: client.frame(b"a", outer=1), "a frame has flags that do not exist"),
    "a command without a name": (lambda client: client.frame(b"", COMMAND), "a command has no name"),
    "a long command": (
        lambda client: client.command(b"NEW", bytes(9000)),
        "a command has more than 8192 bytes",
    ),
    "a malformed PING": (lambda client: client.command(b"PING"), "a PING is malformed"),
    "an encrypted ERROR": (
        lambda client: client.command(b"ERROR", b"\0"),
        "the peer ended the connection with ERROR",
    ),
}


@pytest.mark.parametrize(("wrong", "what"), FRAMES.values(), ids=FRAMES)
@pytest.mark.parametrize("cut", [lambda data: [data], byte_by_byte], ids=["whole", "byte by byte"])
def test_a_wrong_frame_ends_the_connection_without_an_answer(
    cut: Callable[[bytes], list[bytes]], wrong: Callable[[Client], bytes], what: str
) -> None:
    client, connection = greeted()
    stream = client.message([b"before"]) + wrong(client)
    events = [event for chunk in cut(stream) for event in connection.receive(chunk)]
    assert events[0] == [b"before"]
    assert events[-1] == Violation(what)
    assert connection.data_to_send() == b""
    assert connection.pending_bytes == 0
    assert connection.receive(client.message([b"after"])) == []


def test_nonces_may_have_gaps() -> None:
    client, connection = greeted()
    assert connection.receive(client.frame(b"a", nonce=number(1000))) == [[b"a"]]
    assert connection.receive(client.frame(b"b", nonce=number((1 << 64) - 1))) == [[b"b"]]
    assert ending(connection.receive(client.frame(b"c", nonce=number(1001)))) == REPEATED


# --- limits ---------------------------------------------------------------------------------------------------

LIMITS: Final = Limits(frame_bytes_max=1000, message_bytes_max=2500, message_frames_max=10)


def test_messages_of_exactly_the_limits_are_read() -> None:
    """What fits without encryption fits with it."""
    for most in ([bytes(1000)], [b"id"] * 10, [bytes(1000), bytes(1000), bytes(473)]):
        client, connection = greeted(LIMITS)
        assert connection.receive(client.message(most)) == [most]
        stream = byte_by_byte(client.message(most))
        assert [event for byte in stream for event in connection.receive(byte)] == [most]


TOO_LARGE: Final[dict[str, tuple[Callable[[Client], bytes], str]]] = {
    "a frame": (lambda client: client.message([b"id", bytes(1001)]), "frame_bytes_max"),
    "only the head of a frame": (lambda _: b"\x02" + number(1001 + OVERHEAD_BYTES), "frame_bytes_max"),
    "a length of all ones": (lambda _: b"\x06" + b"\xff" * 8, "frame_bytes_max"),
    "bytes in several frames": (lambda client: client.message([b"id", *[bytes(1000)] * 3]), "message_bytes_max"),
    "frames": (lambda client: client.message([b"id"] * 11), "message_frames_max"),
    "frames without an end": (
        lambda client: b"".join(client.frame(b"id", MORE) for _ in range(12)),
        "message_frames_max",
    ),
    "a command between the frames": (
        lambda client: client.frame(bytes(1000), MORE) + client.command(b"NEW", bytes(1000)),
        "frame_bytes_max",
    ),
}


@pytest.mark.parametrize(("large", "limit"), TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("cut", [lambda data: [data], byte_by_byte], ids=["whole", "byte by byte"])
def test_a_message_over_a_limit_ends_the_connection(
    cut: Callable[[bytes], list[bytes]], large: Callable[[Client], bytes], limit: str
) -> None:
    client, connection = greeted(LIMITS)
    events = [event for chunk in cut(client.message([b"x"]) + large(client)) for event in connection.receive(chunk)]
    assert events[0] == [b"x"]
    assert isinstance(events[-1], Oversize)
    assert (events[-1].error.limit, events[-1].error.maximum) == (limit, getattr(LIMITS, limit))
    assert connection.pending_bytes == 0


# --- anything at all ------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.binary(max_size=40), st.sampled_from((0, MORE, COMMAND, 3, 9))), max_size=25), st.data())
def test_any_frames_at_all_are_read_within_the_limits(frames: list[tuple[bytes, int]], data: st.DataObject) -> None:
    client, connection = greeted(SMALL)
    stream = b"".join(client.frame(body, flags) for body, flags in frames)
    check(connection, cut_at(stream, data.draw(st.lists(st.integers(0, len(stream)), max_size=8))))


def test_the_fuzzer_finds_nothing() -> None:
    assert "no finds" in run(rng("CURVE").randrange(1 << 32), count=300)
