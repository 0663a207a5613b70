"""CURVE on the ZeroMQ gates: libzmq's own clients, keys that stand for principals, and what the other side is told."""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest
import zmq
from nacl.public import PrivateKey, PublicKey
from zmq.utils.monitor import recv_monitor_message

import penstock
from penstock import model, testing
from penstock.engine import Engine
from penstock.errors import CannotListen, NotLoopback
from penstock.gates import ZeromqGate
from penstock.settings import load
from penstock.wire.curve import key_of
from tests.gates import zmtp
from tests.gates.res_client import PATIENCE_S
from tests.gates.serving import Served, until
from tests.principals import ask, put
from tests.wire.curve_checks import GREETING, Client
from tests.wire.zmtp_checks import OUR_SIGNATURE, greeting_2

MS: Final = int(PATIENCE_S * 1000)
MIB: Final = 1 << 20


class Pair(NamedTuple):
    public: bytes
    secret: bytes


def pair() -> Pair:
    return Pair(*zmq.curve_keypair())


SERVER: Final = pair()
ANN: Final = pair()
"""Her key stands for the principal `ann`."""
UNKNOWN: Final = pair()


def key_file(folder: Path, secret: bytes = SERVER.secret) -> Path:
    path = folder / "curve.key"
    path.write_bytes(secret + b"\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Server]:
    """One without principals, on both ZeroMQ gates."""
    key = key_file(tmp_path_factory.mktemp("keys"))
    with testing.server(curve_secret_key=key, res_legacy="tcp://127.0.0.1:0", res_handshake_ms_max=1000) as served:
        yield served


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[testing.Server]:
    """One with principals."""
    data, key = tmp_path_factory.mktemp("data"), key_file(tmp_path_factory.mktemp("keys"))
    with penstock.connect(f"sqlite:///{data}") as client:
        put(client, "root", "all")
        put(client, "ann", "read,append:shop")
        ask(client, model.AddCredential("ann", f"curve:{ANN.public.decode()}"), model.Done)
        token = ask(client, model.IssueToken("ann"), model.IssuedToken).token
    with testing.server(data, curve_secret_key=key) as served:
        served.token = token  # type: ignore[attr-defined]
        yield served


def endpoint(server: testing.Server) -> str:
    return server.zmq_url.removeprefix("zmq+").partition("?")[0]


@contextlib.contextmanager
def dealer(place: str, keys: Pair = ANN, **options: int) -> Iterator[zmq.Socket[bytes]]:
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        for name, value in {"LINGER": 0, "RCVTIMEO": MS, **options}.items():
            peer.setsockopt(getattr(zmq, name), value)
        peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = SERVER.public, *keys
        peer.connect(place)
        yield peer


def answered(peer: zmq.Socket[bytes], command: bytes, *fields: bytes, request_id: bytes = b"id") -> list[bytes]:
    peer.send_multipart([b"", b"Res01", command, request_id, *fields])
    answer = peer.recv_multipart()
    assert answer[:3] == [b"", b"Res01", request_id]
    return answer[3:]


def commit(context: bytes, body: bytes) -> list[bytes]:
    return [context, b"s", b"-1", b"1", os.urandom(16), b"5250989155635817646", b"T", b"", body]


def failure(place: str, keys: Pair | None = ANN, server: Pair = SERVER) -> tuple[int, int]:
    """How a handshake fails, and the number that says why."""
    failures = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    )
    with zmq.Context() as context, context.socket(zmq.DEALER) as peer:
        peer.linger = 0
        if keys is not None:
            peer.curve_serverkey, peer.curve_publickey, peer.curve_secretkey = server.public, *keys
        with peer.get_monitor_socket(failures | zmq.EVENT_HANDSHAKE_SUCCEEDED) as monitor:
            peer.connect(place)
            assert monitor.poll(MS)
            event = recv_monitor_message(monitor)
            peer.disable_monitor()
            return int(event["event"]), int(event["value"])


# ---------------------------------------------------------------- libzmq's own clients


def test_a_client_of_libzmq_is_served(server: testing.Server) -> None:
    with dealer(endpoint(server)) as peer:
        assert answered(peer, b"AC", *commit(b"libzmq", b"secret"))[0] == b"CR"
        assert answered(peer, b"QS", b"libzmq", b"s", b"1", b"")[-1] == b"secret"


def test_a_message_of_a_megabyte_and_frames_of_every_length_come_back(server: testing.Server) -> None:
    with dealer(endpoint(server)) as peer:
        body = os.urandom(MIB)
        assert answered(peer, b"AC", *commit(b"large", body))[0] == b"CR"
        assert answered(peer, b"QS", b"large", b"s", b"1", b"")[-1] == body
        for size in (1, 221, 222, 223, 254, 255, 256, 65_536, MIB):
            peer.send_multipart([b"r" * size, b"", b"Res01", b"GS", b"i" * size])
            routing, _, _, request_id, *_ = peer.recv_multipart()
            assert (routing, request_id) == (b"r" * size, b"i" * size)


def test_many_requests_may_be_in_flight(server: testing.Server) -> None:
    with dealer(endpoint(server)) as peer:
        for at in range(3000):
            peer.send_multipart([b"", b"Res01", b"GS", b"%d" % at])
        assert {peer.recv_multipart()[2] for _ in range(3000)} == {b"%d" % at for at in range(3000)}


def test_clients_with_the_same_key_are_served_beside_each_other(server: testing.Server) -> None:
    with dealer(endpoint(server)) as one, dealer(endpoint(server)) as other:
        for _ in range(20):
            assert answered(one, b"GS")[0] == answered(other, b"GS")[0] == b"SG"


def test_heartbeats_keep_the_connection(server: testing.Server) -> None:
    gate = server._running.res  # type: ignore[union-attr]
    with dealer(endpoint(server), HEARTBEAT_IVL=20, HEARTBEAT_TIMEOUT=MS, HEARTBEAT_TTL=MS) as peer:
        answered(peer, b"GS")
        (session,) = [info.id for info in gate.sessions()]
        before = gate.sessions()[0].bytes_received
        # An encrypted PING has 42 bytes.
        until(lambda: gate.sessions()[0].bytes_received > before + 42 * 20)
        answered(peer, b"GS")
        assert [info.id for info in gate.sessions()] == [session]


def test_a_silent_client_is_pinged_and_stays(tmp_path: Path) -> None:
    with testing.server(curve_secret_key=key_file(tmp_path), res_idle_ms_max=400) as served:
        gate = served._running.res  # type: ignore[union-attr]
        with dealer(endpoint(served)) as peer:
            answered(peer, b"GS")
            (info,) = gate.sessions()
            # An encrypted PONG has 40 bytes.
            until(lambda: gate.sessions()[0].bytes_received >= info.bytes_received + 40 * 4)
            answered(peer, b"GS")
            assert gate.sessions()[0].id == info.id


def test_a_client_connects_again_after_its_connection_is_lost(server: testing.Server) -> None:
    gate = server._running.res  # type: ignore[union-attr]

    async def cut_off_all() -> set[str]:
        sessions = {info.id for info in gate.sessions()}
        for session in sessions:
            gate.kick(session)
        return sessions

    with dealer(endpoint(server)) as peer:
        answered(peer, b"GS")
        before = server._portal.run(cut_off_all())
        until(lambda: not before & {info.id for info in gate.sessions()})
        answered(peer, b"GS", request_id=b"again")


def test_both_gates_of_a_server_speak_curve_and_its_log_names_the_public_key(tmp_path: Path) -> None:
    served = Served(tmp_path / "data", "--curve-secret-key", str(key_file(tmp_path)))
    try:
        for place in (served.res, served.res_legacy):
            with dealer(place) as peer:
                assert answered(peer, b"AC", *commit(b"c", b"x"))[0] == b"CR"
            assert failure(place, None)[0] == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        for gate in ("res", "res-legacy"):
            assert f"the gate {gate} speaks CURVE; its public key is {SERVER.public.decode()}" in served.said()
        assert SERVER.secret.decode() not in served.said()
        assert SERVER.secret not in Path(f"/proc/{served.process.pid}/cmdline").read_bytes()
    finally:
        served.end()


# ---------------------------------------------------------------- who is told what


def is_logged(caplog: pytest.LogCaptureFixture, what: str) -> None:
    until(lambda: what in caplog.text)


def test_a_client_with_a_wrong_server_key_is_refused_and_the_log_says_why(
    server: testing.Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert failure(endpoint(server), server=UNKNOWN)[0] == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    is_logged(caplog, "give the client the public key that the server's log names")


MISMATCH: Final = zmq.Event.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


def test_a_client_without_keys_is_refused_and_the_log_says_what_to_change(
    server: testing.Server, caplog: pytest.LogCaptureFixture
) -> None:
    assert failure(endpoint(server), None) == (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, MISMATCH)
    is_logged(caplog, "this server has CURVE: give the client the public key of the server, and a key pair of its own")


def test_a_client_with_keys_at_a_gate_without_is_told_what_to_change(caplog: pytest.LogCaptureFixture) -> None:
    with testing.server() as plain:
        assert failure(endpoint(plain)) == (zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, MISMATCH)
        is_logged(caplog, "start it with --curve-secret-key FILE, or connect without the keys of CURVE")


def test_a_client_of_zmtp_2_is_refused(server: testing.Server, caplog: pytest.LogCaptureFixture) -> None:
    with zmtp.connected(endpoint(server)) as connection:
        connection.sendall(greeting_2() + zmtp.frame(b"") + zmtp.message([b"", b"Res01", b"GS", b"1"]))
        assert zmtp.rest(connection) == OUR_SIGNATURE + b"\x01\x06"
    is_logged(caplog, "the peer speaks ZMTP 2.0, which has no security; this server has CURVE")


# ---------------------------------------------------------------- principals


def who(peer: zmq.Socket[bytes]) -> bytes:
    return answered(peer, b"WI")[1]


def test_a_key_stands_for_its_principal(closed: testing.Server) -> None:
    with dealer(endpoint(closed)) as peer:
        assert who(peer) == b"ann"
        assert answered(peer, b"AC", *commit(b"shop", b"x"))[0] == b"CR"
        assert answered(peer, b"AC", *commit(b"other", b"x"))[0] == b"ER"


def test_another_key_is_nobody_until_it_sends_a_token(closed: testing.Server) -> None:
    token: str = closed.token  # type: ignore[attr-defined]
    with dealer(endpoint(closed), UNKNOWN) as peer:
        assert answered(peer, b"AC", *commit(b"shop", b"x"))[0] == b"ER"
        assert answered(peer, b"AU", token.encode())[1] == b"ann"
        assert answered(peer, b"AC", *commit(b"shop", b"x"))[0] == b"CR"


def test_a_gate_may_take_known_keys_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'data'}") as client:
        put(client, "root", "all")
        ask(client, model.AddCredential("root", f"curve:{ANN.public.decode()}"), model.Done)
    with testing.server(tmp_path / "data", curve_secret_key=key_file(tmp_path), curve_known_only=True) as served:
        assert failure(endpoint(served), UNKNOWN) == (zmq.EVENT_HANDSHAKE_FAILED_AUTH, 400)
        is_logged(caplog, "the key of the client stands for no principal, and this gate takes no other")
        with dealer(endpoint(served)) as peer:
            assert who(peer) == b"root"


def test_a_known_key_whose_principal_has_too_many_connections_is_busy_and_not_unknown(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'data'}") as client:
        put(client, "root", "all")
        client.access.put("ann", ["read:shop"], limits=model.Limits(connections_max=1))
        ask(client, model.AddCredential("ann", f"curve:{ANN.public.decode()}"), model.Done)
    with testing.server(tmp_path / "data", curve_secret_key=key_file(tmp_path), curve_known_only=True) as served:
        place = endpoint(served)
        with dealer(place) as first:
            assert who(first) == b"ann"
            with dealer(place) as second:
                assert answered(second, b"WI")[:2] == [b"ER", b"10"]
                first.close()
                until(lambda: answered(second, b"WI")[1] == b"ann")


def test_a_key_that_is_taken_from_its_principal_loses_its_connection_within_a_second(tmp_path: Path) -> None:
    with penstock.connect(f"sqlite:///{tmp_path / 'data'}") as client:
        put(client, "root", "all")
        put(client, "ann", "read:shop")
        ask(client, model.AddCredential("ann", f"curve:{ANN.public.decode()}"), model.Done)
        token = ask(client, model.IssueToken("root"), model.IssuedToken).token
    with (
        testing.server(tmp_path / "data", curve_secret_key=key_file(tmp_path)) as served,
        dealer(endpoint(served)) as peer,
        dealer(endpoint(served), UNKNOWN) as root,
    ):
        assert who(peer) == b"ann"
        answered(root, b"AU", token.encode())
        with peer.get_monitor_socket(zmq.EVENT_DISCONNECTED) as monitor:
            answered(root, b"XK", f"curve:{ANN.public.decode()}".encode())
            assert monitor.poll(1500)
            peer.disable_monitor()
        # The library connects again; the key is nobody's now.
        assert answered(peer, b"GS")[0] == b"ER"


# ---------------------------------------------------------------- hostile peers


def by_hand(server: testing.Server) -> tuple[socket.socket, Client]:
    """A connection whose greetings and HELLO are exchanged, and its client."""
    connection, client = (
        zmtp.connected(endpoint(server)),
        Client(PublicKey(key_of(SERVER.public.decode())), PrivateKey.generate()),
    )
    connection.sendall(GREETING + client.hello())
    zmtp.read_exactly(connection, 64)
    client.welcome(zmtp.read_exactly(connection, 170))
    return connection, client


HOSTILE: Final[dict[str, tuple[Callable[[Client], bytes], str]]] = {
    "a frame again": (lambda client: client.frame(b"a", 1) * 2, "a nonce of CURVE came again, or out of order"),
    "a changed frame": (lambda client: client.frame(b"a")[:-1] + b"x", "an encrypted frame cannot be opened"),
    "plain text": (lambda _: zmtp.message([b"Res01" * 20]), "a frame is not encrypted"),
    "an endless frame": (lambda _: b"\x02" + b"\x7f" + bytes(7), "res_frame_bytes_max"),
    "half a frame's name": (lambda _: zmtp.frame(b"\x07MESS"), "a frame is not encrypted"),
}


@pytest.mark.parametrize(("sent", "why"), HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_client_loses_its_connection_and_nobody_else_does(
    server: testing.Server, caplog: pytest.LogCaptureFixture, sent: Callable[[Client], bytes], why: str
) -> None:
    with dealer(endpoint(server)) as other:
        answered(other, b"GS")
        connection, client = by_hand(server)
        with connection:
            connection.sendall(client.initiate())
            client.ready(zmtp.frame(zmtp.read_frame(connection)[1], zmtp.COMMAND))
            connection.sendall(client.message([b"", b"Res01", b"GS", b"1"]))
            while True:
                flags, body = zmtp.read_frame(connection)
                ((inner, _),) = client.read(zmtp.frame(body, flags))
                if not inner:
                    break
            connection.sendall(sent(client))
            assert zmtp.is_closed(connection)
        is_logged(caplog, why)
        answered(other, b"GS")


def test_a_cookie_is_good_for_its_own_connection_only(server: testing.Server, caplog: pytest.LogCaptureFixture) -> None:
    (one, first), (two, second) = by_hand(server), by_hand(server)
    with one, two:
        two.sendall(second.initiate(cookie=first.cookie))
        assert zmtp.is_closed(two)
        is_logged(caplog, "the cookie in INITIATE is not of this connection")
        one.sendall(first.initiate())
        assert zmtp.read_frame(one)[1].startswith(b"\x05READY")


def test_a_handshake_that_stops_half_way_ends_after_its_time(
    server: testing.Server, caplog: pytest.LogCaptureFixture
) -> None:
    connection, _ = by_hand(server)
    with connection:
        assert zmtp.is_closed(connection)
    is_logged(caplog, "the handshake took more than res_handshake_ms_max")


# ---------------------------------------------------------------- the key, and the addresses


def gate_of(path: Path, address: str, **settings: object) -> ZeromqGate:
    return ZeromqGate(Engine("sqlite:///unused", load({"curve_secret_key": path, **settings}, environ={})), address)


def test_a_key_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = key_file(tmp_path)
    path.chmod(0o604)
    with pytest.raises(CannotListen, match=r"can be read by other users; close it with chmod 600"):
        asyncio.run(gate_of(path, "tcp://127.0.0.1:0").start())


WRONG: Final = {"empty": b"", "short": b"short", "long": ANN.secret * 2, "no text": b"\xff" * 40, "large": bytes(5000)}


@pytest.mark.parametrize("content", WRONG.values(), ids=WRONG)
def test_a_file_without_a_key_is_refused_and_its_content_is_not_shown(tmp_path: Path, content: bytes) -> None:
    path = key_file(tmp_path, content)
    with pytest.raises(CannotListen, match=r"curve_secret_key: .*curve\.key is not a ") as caught:
        asyncio.run(gate_of(path, "tcp://127.0.0.1:0").start())
    assert ANN.secret.decode() not in str(caught.value)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(CannotListen, match="no such file"):
        asyncio.run(gate_of(tmp_path / "none", "tcp://127.0.0.1:0").start())


def test_curve_counts_as_encryption_beyond_loopback(tmp_path: Path) -> None:
    with pytest.raises(NotLoopback) as caught:
        asyncio.run(ZeromqGate(Engine("sqlite:///unused", load({}, environ={})), "tcp://0.0.0.0:0").start())
    assert "--curve-secret-key FILE" in str(caught.value)
    assert "penstock access curve-keygen" in str(caught.value)
    with pytest.raises(NotLoopback) as caught:
        asyncio.run(gate_of(key_file(tmp_path), "tcp://0.0.0.0:0").start())
    assert "plain text" not in str(caught.value)
    assert "penstock access init" in str(caught.value)
