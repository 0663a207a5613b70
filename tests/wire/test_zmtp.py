"""ZMTP, byte by byte: handshakes of all versions, frames, limits, heartbeats, and what is refused."""

from collections.abc import Callable
from struct import pack
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.wire import zmtp
from penstock.wire.zmtp import Connection, Limits, Message, Oversize, Ping, Ready, Violation
from tests.fuzz.zmtp import CORPUS, fuzz_one, mutations, run
from tests.seeds import rng
from tests.wire.zmtp_checks import (
    ANSWERS,
    COMMAND,
    HANDSHAKES,
    LONG,
    MORE,
    OUR_GREETING_3,
    OUR_READY,
    OUR_SIGNATURE,
    REQ,
    ROUTER,
    SIGNATURE,
    SMALL,
    byte_by_byte,
    check,
    command,
    cut_at,
    frame,
    greeting_2,
    greeting_3,
    message,
    ping,
    properties,
    ready,
    received,
)

MESSAGES: Final[dict[str, tuple[bytes, Message]]] = {
    "one frame": (bytes.fromhex("00 01 61"), [b"a"]),
    "one empty frame": (bytes.fromhex("00 00"), [b""]),
    "two frames": (bytes.fromhex("01 02 6162 00 01 63"), [b"ab", b"c"]),
    "an envelope": (bytes.fromhex("01 00 00 01 61"), [b"", b"a"]),
    "empty frames": (bytes.fromhex("01 00 01 00 00 00"), [b""] * 3),
    "bodies that look like frames": (bytes.fromhex("01 03 000161 00 02 0100"), [b"\0\1a", b"\1\0"]),
    "255 bytes": (b"\x00\xff" + bytes(255), [bytes(255)]),
    "256 bytes": (b"\x02" + pack(">Q", 256) + bytes(256), [bytes(256)]),
    "a long frame and a short one": (b"\x03" + pack(">Q", 300) + bytes(300) + b"\x00\x01a", [bytes(300), b"a"]),
    "a long frame that could be short": (b"\x02" + pack(">Q", 1) + b"a", [b"a"]),
    "a long frame that is empty": (b"\x02" + pack(">Q", 0), [b""]),
}
NEXT: Final = bytes.fromhex("01 01 78 00 01 79")
NEXT_MESSAGE: Final = [b"x", b"y"]
every_message = pytest.mark.parametrize(("data", "expected"), MESSAGES.values(), ids=MESSAGES)
every_version = pytest.mark.parametrize("version", HANDSHAKES)


def greeted(version: str = "3.1", limits: Limits = Limits()) -> Connection:  # noqa: B008
    """A connection whose handshake is complete, and that has said all it had to say."""
    connection = Connection(limits)
    assert connection.receive(HANDSHAKES[version]) == [Ready(version, "DEALER", b"")]
    connection.data_to_send()
    return connection


# --- handshakes -----------------------------------------------------------------------------------------------


@every_version
def test_a_handshake_is_answered_in_its_version(version: str) -> None:
    outcome = received([HANDSHAKES[version]])
    assert outcome == ([Ready(version, "DEALER", b"")], b"".join(ANSWERS[version]), 0)


@every_version
def test_a_handshake_may_be_cut_at_every_byte(version: str) -> None:
    data = HANDSHAKES[version] + NEXT
    whole = received([data])
    assert whole.events == [Ready(version, "DEALER", b""), NEXT_MESSAGE]
    assert received(byte_by_byte(data)) == whole
    for place in range(len(data)):
        assert received(cut_at(data, [place])) == whole


@every_version
def test_the_server_says_each_part_when_the_peer_has_said_enough_and_not_before(version: str) -> None:
    connection, said = Connection(), []
    moments = [0, 11, *([] if version == "2.0" else [64]), len(HANDSHAKES[version])]
    for at in range(len(HANDSHAKES[version]) + 1):
        if at:
            connection.receive(HANDSHAKES[version][at - 1 : at])
        if data := connection.data_to_send():
            said.append((at, data))
    assert said == list(zip(moments, ANSWERS[version], strict=True))


def test_our_greeting_has_the_lengths_of_the_specification() -> None:
    assert (len(OUR_SIGNATURE), len(OUR_SIGNATURE + OUR_GREETING_3)) == (10, 64)


def test_the_padding_of_the_signature_means_nothing() -> None:
    data = b"\xff" + b"whatever" + b"\x7f" + HANDSHAKES["3.1"][10:]
    assert received([data]).events == [Ready("3.1", "DEALER", b"")]


@pytest.mark.parametrize(("revision", "minor", "version"), [(3, 0, "3.0"), (3, 1, "3.1"), (3, 9, "3.1"), (4, 0, "3.1")])
def test_newer_peers_are_spoken_to_in_the_newest_version_that_we_have(revision: int, minor: int, version: str) -> None:
    data = SIGNATURE + bytes([revision, minor]) + greeting_3()[12:] + ready()
    outcome = received([data])
    assert outcome.events == [Ready(version, "DEALER", b"")]
    assert outcome.sent == OUR_SIGNATURE + OUR_GREETING_3 + OUR_READY


@pytest.mark.parametrize("revision", [1, 2])
def test_revisions_1_and_2_are_zmtp_2(revision: int) -> None:
    data = SIGNATURE + bytes([revision, REQ]) + frame(b"me") + NEXT
    assert received([data]) == ([Ready("2.0", "REQ", b"me"), NEXT_MESSAGE], OUR_SIGNATURE + b"\x01\x06\x00\x00", 0)


@pytest.mark.parametrize("socket_type", [b"REQ", b"DEALER", b"ROUTER"])
def test_the_peer_may_be_a_req_a_dealer_or_a_router_and_have_an_identity(socket_type: bytes) -> None:
    outcome = received([greeting_3() + ready(socket_type, b"\x01identity")])
    assert outcome.events == [Ready("3.1", socket_type.decode(), b"\x01identity")]


def test_names_of_metadata_have_no_case_and_unknown_ones_mean_nothing() -> None:
    metadata = properties(sOCKET_tYPE=b"REQ", X_Color=b"", Resource=b"a/b", IDENTITY=b"i")
    outcome = received([greeting_3() + command(b"READY", metadata)])
    assert outcome.events == [Ready("3.1", "REQ", b"i")]


def test_metadata_may_be_missing_or_long() -> None:
    assert received([greeting_3() + command(b"READY")]).events == [Ready("3.1", "DEALER", b"")]
    long = properties(X_Long=bytes(1000), Socket_Type=b"ROUTER")
    assert received(byte_by_byte(greeting_3() + command(b"READY", long))).events == [Ready("3.1", "ROUTER", b"")]


NOT_ZMTP = "the peer does not speak ZMTP 2.0 or newer"
REFUSED: Final[dict[str, tuple[bytes, str]]] = {
    "HTTP": (b"GET / HTTP/1.1\r\n", NOT_ZMTP),
    "TLS": (b"\x16\x03\x01\x02\x00", NOT_ZMTP),
    "1.0 with a short identity": (b"\x01\x00", NOT_ZMTP),
    "1.0 with a long identity": (b"\xff" + pack(">Q", 300) + b"\x00" + bytes(299), NOT_ZMTP),
    "revision 0": (SIGNATURE + b"\x00", "the peer speaks ZMTP 1.0"),
    "PLAIN": (
        greeting_3(mechanism=b"PLAIN"),
        "the peer asks for the security mechanism PLAIN; this server has NULL",
    ),
    "CURVE": (
        greeting_3(mechanism=b"CURVE"),
        "the peer asks for the security mechanism CURVE; this server has NULL: "
        "start it with --curve-secret-key FILE, or connect without the keys of CURVE",
    ),
    "an unknown mechanism": (
        greeting_3(mechanism=b"\xffOURS"),
        "the peer asks for the security mechanism unknown; this server has NULL",
    ),
    "a publisher": (greeting_3() + ready(b"PUB"), "the peer is no REQ, DEALER or ROUTER"),
    "a publisher of 2.0": (greeting_2(1) + frame(b""), "the peer is no REQ, DEALER or ROUTER"),
    "a socket type that 2.0 does not have": (greeting_2(200) + frame(b""), "the peer is no REQ, DEALER or ROUTER"),
    "a message before READY": (greeting_3() + NEXT, "a message came before the handshake was complete"),
    "another command before READY": (greeting_3() + ping(), "the handshake does not begin with READY"),
    "an error in place of READY": (
        greeting_3() + command(b"ERROR", b"\x02no"),
        "the peer refused the handshake with ERROR",
    ),
    "an identity of several frames": (greeting_2() + NEXT, "the handshake does not begin with an identity"),
    "a command in 2.0": (greeting_2() + ready(), "a frame has flags that do not exist"),
    "an identity that is too long": (
        greeting_3() + ready(identity=bytes(256)),
        "the identity of the peer has more than 255 bytes",
    ),
    "a command without a name": (greeting_3() + frame(b"", COMMAND), "a command has no name"),
    "a command with an empty name": (greeting_3() + frame(b"\x00READY", COMMAND), "a command has no name"),
    "a name longer than the command": (greeting_3() + frame(b"\x06READY", COMMAND), "a command has no name"),
    "a property without a name": (
        greeting_3() + command(b"READY", b"\x00" + bytes(4)),
        "the metadata of the peer is malformed",
    ),
    "half a property": (
        greeting_3() + command(b"READY", properties(Socket_Type=b"REQ")[:-1]),
        "the metadata of the peer is malformed",
    ),
    "a property that ends before its length": (
        greeting_3() + command(b"READY", b"\x01X\0\0\0"),
        "the metadata of the peer is malformed",
    ),
    "a READY that is too long": (
        greeting_3() + command(b"READY", properties(X=bytes(9000))),
        "a command has more than 8192 bytes",
    ),
}


@pytest.mark.parametrize(("data", "what"), REFUSED.values(), ids=REFUSED)
def test_a_peer_that_cannot_be_served_is_refused_with_a_reason(data: bytes, what: str) -> None:
    for chunks in ([data], byte_by_byte(data), [data + NEXT]):
        assert received(chunks).events == [Violation(what)]


def test_a_peer_with_the_wrong_mechanism_still_gets_our_whole_greeting_and_an_error() -> None:
    has = b"this server has NULL"
    error = command(b"ERROR", bytes([len(has)]) + has)
    assert received([greeting_3(mechanism=b"PLAIN")]).sent == OUR_SIGNATURE + OUR_GREETING_3 + error


def test_a_socket_that_does_not_fit_is_told_so_with_an_error() -> None:
    reason = b"a ROUTER talks to REQ, DEALER and ROUTER"
    sent = received([greeting_3() + ready(b"SUB")]).sent
    assert sent == OUR_SIGNATURE + OUR_GREETING_3 + command(b"ERROR", bytes([len(reason)]) + reason)


class Password:
    """A mechanism of two steps, as CURVE has them, without its encryption."""

    name = b"PASSWORD"
    box = None

    def receive(self, name: bytes, data: bytes) -> bytes | dict[bytes, bytes]:
        if name == b"HELLO":
            return command(b"WELCOME")
        if name != b"INITIATE" or not data.startswith(b"sesame"):
            raise zmtp.PeerError("the password is wrong")
        return zmtp.decode_metadata(data[6:])

    def ready(self, properties: dict[bytes, bytes]) -> bytes:
        return command(b"READY", b"sealed" + zmtp.encode_metadata(properties))


def test_there_is_room_for_other_mechanisms() -> None:
    connection = Connection(mechanism=Password())
    assert connection.receive(greeting_3(mechanism=b"PASSWORD") + command(b"HELLO")) == []
    assert connection.data_to_send().endswith(command(b"WELCOME"))
    initiate = command(b"INITIATE", b"sesame" + properties(Socket_Type=b"REQ"))
    assert connection.receive(initiate + NEXT) == [Ready("3.1", "REQ", b""), NEXT_MESSAGE]
    assert b"sealed" in connection.data_to_send()
    other = Connection(mechanism=Password())
    assert other.receive(greeting_3()) == [
        Violation("the peer asks for the security mechanism NULL; this server has PASSWORD")
    ]


# --- messages -------------------------------------------------------------------------------------------------


@every_message
@every_version
def test_a_message_is_read_whole_and_with_the_next_one_behind(version: str, data: bytes, expected: Message) -> None:
    assert greeted(version).receive(data) == [expected]
    assert greeted(version).receive(data + NEXT + data) == [expected, NEXT_MESSAGE, expected]


@every_message
def test_a_message_may_be_cut_at_every_byte(data: bytes, expected: Message) -> None:
    stream = data + NEXT
    for place in range(len(stream) + 1):
        connection = greeted()
        events = [event for chunk in cut_at(stream, [place]) for event in connection.receive(chunk)]
        assert events == [expected, NEXT_MESSAGE]
        assert connection.pending_bytes == 0


@every_message
def test_a_message_is_given_with_its_last_byte_and_not_before(data: bytes, expected: Message) -> None:
    connection = greeted()
    for at in range(len(data) - 1):
        assert connection.receive(data[at : at + 1]) == []
        assert connection.pending_bytes > 0
    assert connection.receive(data[-1:]) == [expected]
    assert connection.pending_bytes == 0


@every_message
def test_a_message_is_written_as_by_hand_and_read_back(data: bytes, expected: Message) -> None:
    written = b"".join(greeted().send(expected))
    assert written == message(expected)
    assert greeted().receive(written) == [expected]


@given(st.lists(st.lists(st.binary(max_size=300), min_size=1, max_size=8), max_size=6), st.data())
def test_messages_arrive_in_order_however_they_are_cut(sent: list[Message], data: st.DataObject) -> None:
    connection = greeted()
    stream = b"".join(b"".join(connection.send(each)) for each in sent)
    places = data.draw(st.lists(st.integers(0, len(stream)), max_size=12))
    assert [event for chunk in cut_at(stream, places) for event in connection.receive(chunk)] == sent


@pytest.mark.parametrize("flags", [5, 7, 8, 16, 32, 64, 128, 255])
def test_flags_that_do_not_exist_end_the_connection(flags: int) -> None:
    for data in (bytes([flags]), bytes([flags, 0]), bytes([flags]) + bytes(20)):
        assert greeted().receive(NEXT + data) == [NEXT_MESSAGE, Violation("a frame has flags that do not exist")]


def test_after_the_end_nothing_is_read_or_kept() -> None:
    connection = greeted()
    connection.receive(message([b"a"] * 5)[:-1])
    connection.receive(b"\xff" * 100)
    assert connection.is_closed
    assert connection.receive(NEXT) == []
    assert connection.pending_bytes == 0


def test_a_connection_can_be_told_to_forget_what_it_has() -> None:
    connection = greeted()
    connection.receive(frame(bytes(1000), MORE) + frame(bytes(1000), MORE)[:500])
    assert connection.pending_bytes > 1500
    connection.forget()
    assert connection.pending_bytes == 0
    assert connection.receive(bytes(1000)) == []


# --- heartbeats -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["3.0", "3.1"])
@pytest.mark.parametrize("context", [b"", b"now", bytes(16)])
def test_a_ping_is_answered_with_its_context(version: str, context: bytes) -> None:
    connection = greeted(version)
    assert connection.receive(ping(25, context)) == [Ping(2500)]
    assert connection.data_to_send() == command(b"PONG", context)


def test_pings_may_come_between_the_frames_of_a_message() -> None:
    connection = greeted()
    stream = frame(b"a", MORE) + ping() + frame(bytes(300), MORE) + ping(1, b"c") + frame(b"b")
    for chunks in ([stream], byte_by_byte(stream)):
        events = [event for chunk in chunks for event in connection.receive(chunk)]
        assert events == [Ping(0), Ping(100), [b"a", bytes(300), b"b"]]
        assert connection.data_to_send() == command(b"PONG") + command(b"PONG", b"c")


@pytest.mark.parametrize("data", [b"", b"\0", b"\0\0" + bytes(17)])
def test_a_malformed_ping_ends_the_connection(data: bytes) -> None:
    assert greeted().receive(command(b"PING", data)) == [Violation("a PING is malformed")]


def test_pongs_and_unknown_commands_mean_nothing() -> None:
    stream = command(b"PONG", b"x") + command(b"SUBSCRIBE", b"all") + command(b"NEW", bytes(1000)) + NEXT
    connection = greeted()
    assert connection.receive(stream) == [NEXT_MESSAGE]
    assert connection.data_to_send() == b""


def test_an_error_of_the_peer_ends_the_connection() -> None:
    found = greeted().receive(command(b"ERROR", b"\x00") + NEXT)
    assert found == [Violation("the peer ended the connection with ERROR")]


def test_only_peers_that_must_know_a_ping_get_one() -> None:
    assert greeted("3.1").ping() == command(b"PING", b"\0\0")
    assert {greeted("3.0").ping(), greeted("2.0").ping(), Connection().ping()} == {b""}


# --- limits ---------------------------------------------------------------------------------------------------

LIMITS: Final = Limits(frame_bytes_max=1000, message_bytes_max=2500, message_frames_max=10)
TOO_LARGE: Final[dict[str, tuple[bytes, str, list[bytes]]]] = {
    "a frame": (frame(b"id", MORE) + frame(bytes(1001)), "frame_bytes_max", [b"id"]),
    "only the head of a frame": (pack(">BQ", LONG, 1001), "frame_bytes_max", []),
    "a length of all ones": (pack(">BQ", LONG | MORE, (1 << 64) - 1), "frame_bytes_max", []),
    "bytes in several frames": (message([b"id", *[bytes(1000)] * 3]), "message_bytes_max", [b"id"]),
    "frames": (message([b"id"] * 11), "message_frames_max", [b"id"]),
    "frames without an end": (frame(b"id", MORE) * 12, "message_frames_max", [b"id"]),
}


@pytest.mark.parametrize(("data", "limit", "head"), TOO_LARGE.values(), ids=TOO_LARGE)
@pytest.mark.parametrize("cut", [lambda data: [data], byte_by_byte], ids=["whole", "byte by byte"])
def test_a_message_over_a_limit_ends_the_connection_and_its_head_is_given(
    cut: Callable[[bytes], list[bytes]], data: bytes, limit: str, head: list[bytes]
) -> None:
    connection = greeted(limits=LIMITS)
    events = [event for chunk in cut(NEXT + data + NEXT) for event in connection.receive(chunk)]
    assert events[:-1] == [NEXT_MESSAGE]
    assert isinstance(events[-1], Oversize)
    error = events[-1].error
    assert (error.limit, error.maximum) == (limit, getattr(LIMITS, limit))
    assert error.value > error.maximum
    assert error.__traceback__ is None
    assert events[-1].head[:1] == head
    assert connection.pending_bytes == 0


def test_messages_of_exactly_the_limits_are_read() -> None:
    most = [[bytes(1000)], [b"id"] * 10, [bytes(1000), bytes(1000), bytes(473)]]
    assert len(message(most[2])) == 2500
    for each in most:
        assert greeted(limits=LIMITS).receive(message(each)) == [each]
        connection = greeted(limits=LIMITS)
        assert [event for byte in byte_by_byte(message(each)) for event in connection.receive(byte)] == [each]


def test_the_head_of_a_message_of_many_frames_is_short() -> None:
    (event,) = greeted(limits=Limits(message_frames_max=5000)).receive(frame(b"x", MORE) * 6000)
    assert isinstance(event, Oversize)
    assert event.head == [b"x"] * zmtp.HEAD_FRAMES_MAX


def test_frames_count_with_what_they_take_in_memory() -> None:
    connection = greeted()
    connection.receive(frame(b"", MORE) * 100)
    assert connection.pending_bytes == 100 * (2 + zmtp.FRAME_OVERHEAD_BYTES)


# --- anything at all ------------------------------------------------------------------------------------------

pieces = st.one_of(
    st.lists(st.binary(max_size=12), min_size=1, max_size=6).map(message),
    st.binary(max_size=20).map(lambda body: frame(body, MORE)),
    st.binary(max_size=20).map(lambda body: frame(body, COMMAND)),
    st.sampled_from(
        [ping(), ping(3, b"c"), b"\x03", pack(">BQ", 3, 290), frame(bytes(270), MORE), frame(b"", MORE) * 20]
    ),
    st.binary(max_size=5),
)


@given(st.sampled_from([*HANDSHAKES.values(), b""]), st.lists(pieces, max_size=30), st.data())
def test_any_frames_at_all_are_read_within_the_limits(start: bytes, stream: list[bytes], data: st.DataObject) -> None:
    joined = start + b"".join(stream)
    check(cut_at(joined, data.draw(st.lists(st.integers(0, len(joined)), max_size=12))))


@given(st.sampled_from([SIGNATURE, greeting_2(ROUTER), greeting_3(), b""]), st.binary(max_size=600), st.data())
def test_any_bytes_at_all_are_read_within_the_limits(start: bytes, stream: bytes, data: st.DataObject) -> None:
    joined = start + stream
    check(cut_at(joined, data.draw(st.lists(st.integers(0, len(joined)), max_size=12))), SMALL)


@given(st.sampled_from(CORPUS), st.integers(0, 255), st.integers(0, 1 << 32))
def test_valid_streams_with_bytes_changed_are_read_within_the_limits(stream: bytes, size: int, seed: int) -> None:
    for mutated in mutations(stream * 3, seed, count=3):
        fuzz_one(bytes([size]) + mutated)


def test_the_fuzzer_finds_nothing_in_a_short_run() -> None:
    summary = run(rng("the fuzzer of ZMTP").randrange(1 << 32), count=3000)
    assert summary.startswith("zmtp: 3000 streams")
    for kind in ("message", "open", "oversize", "ping", "ready", "violation"):
        assert summary.count(f"{kind} ") == 1


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_fuzzer_finds_nothing_in_a_million_streams() -> None:
    summary = run(rng("the fuzzer of ZMTP, long").randrange(1 << 32), count=1_000_000)
    assert summary.startswith("zmtp: 1000000 streams")
