"""TLS on the MQ, Remits and HTTP gates: certificates of both sides, failed handshakes, and what plain text is told."""

import contextlib
import logging
import shutil
import socket
import ssl
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest

import penstock
from penstock.errors import InvalidRequest, NotAuthenticated, OverLimit
from penstock.gates import tls
from penstock.gates.tls import ServerTls
from penstock.settings import Settings, load
from penstock.tcp import CloseReason
from penstock.testing import Server
from tests.certificates import DAY, NOW, Authority, Files
from tests.gates.mq_client import joined, message, parted
from tests.gates.remits_client import ERROR, LOG_LIST, request

HOST: Final = "127.0.0.1"
PATIENCE_S: Final = 30.0
GATES: Final = ("mq", "remits", "http")


class World:
    """An authority that is trusted, one that is not, and what they have signed."""

    def __init__(self, folder: Path) -> None:
        self.authority, self.stranger = Authority(folder), Authority(folder, "stranger")
        self.server = self.authority.issue("server", "localhost", HOST)
        self.named = self.authority.issue("named", common="worker")
        self.by_uri = self.authority.issue("by-uri", "spiffe://example/worker", "other.example")
        self.pinned = self.authority.issue("pinned", common="nobody-knows")
        self.unknown = self.authority.issue("unknown", common="unknown")
        self.forger = self.authority.issue("forger", f"sha256:{self.pinned.fingerprint}")
        self.foreign = self.stranger.issue("foreign", common="worker")
        self.access = folder / "access.toml"
        self.grant("worker", "spiffe://example/worker", f"sha256:{self.pinned.fingerprint}")

    def grant(self, *certificates: str) -> None:
        """Give a principal these certificates."""
        listed = ", ".join(f'"{name}"' for name in certificates)
        new = self.access.with_suffix(".new")
        new.write_text(f'[principals.worker]\ngrants = ["read,append,admin"]\ncertificates = [{listed}]\n')
        new.replace(self.access)

    def context(self, own: Files | None = None) -> ssl.SSLContext:
        """What a client of this authority uses."""
        context = ssl.create_default_context(cafile=str(self.authority.cert))
        if own is not None:
            context.load_cert_chain(own.cert, own.key)
        return context

    def serve(self, **others: Any) -> Server:
        files = {"tls_cert": self.server.cert, "tls_key": self.server.key, "tls_client_ca": self.authority.cert}
        return Server(**{name: str(value) for name, value in {**files, **others}.items()})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(world: World) -> Iterator[Server]:
    """Every client may do everything."""
    with world.serve() as server:
        yield server


@pytest.fixture(scope="module")
def guarded(world: World) -> Iterator[Server]:
    """Only principals may do something."""
    with world.serve(access_file=world.access) as server:
        yield server


@pytest.fixture(scope="module")
def plain() -> Iterator[Server]:
    with Server() as server:
        yield server


def place(server: Server, gate: str) -> tuple[str, int]:
    address = {"mq": server.url, "remits": f"//{server.remits}", "http": server.http}[gate]
    host, _, port = address.partition("//")[2].partition("?")[0].rpartition(":")
    return host, int(port)


def url_of(server: Server, world: World, own: Files | None = None) -> str:
    host, port = place(server, "mq")
    mine = "" if own is None else f"&tls_cert={own.cert}&tls_key={own.key}"
    return f"penstock://{host}:{port}?tls&tls_ca={world.authority.cert}{mine}"


@contextlib.contextmanager
def wrapped(server: Server, gate: str, context: ssl.SSLContext) -> Iterator[ssl.SSLSocket]:
    with (
        socket.create_connection(place(server, gate), timeout=PATIENCE_S) as raw,
        context.wrap_socket(raw, server_hostname=HOST) as inside,
    ):
        yield inside


def rest(raw: socket.socket) -> bytes:
    """All that the server sends until it closes."""
    heard = bytearray()
    with contextlib.suppress(ConnectionResetError):
        while piece := raw.recv(65536):
            heard += piece
    return bytes(heard)


def exchange(server: Server, gate: str, world: World, own: Files | None = None) -> str:
    """Ask a gate something that needs a right; "ok", or what was wrong."""
    if gate == "mq":
        try:
            with penstock.connect(url_of(server, world, own)) as client:
                client.contexts()
        except NotAuthenticated:
            return "refused"
        return "ok"
    with wrapped(server, gate, world.context(own)) as inside:
        if gate == "http":
            inside.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return {b"200": "ok", b"401": "refused"}[rest(inside).split(b" ")[1]]
        inside.sendall(request(LOG_LIST))
        return "refused" if inside.recv(6)[4] == ERROR else "ok"


def until(condition: Any) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


# ---------------------------------------------------------------- encryption


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
@pytest.mark.parametrize("gate", GATES)
def test_a_gate_speaks_tls(secure: Server, world: World, gate: str, version: ssl.TLSVersion) -> None:
    context = world.context()
    context.minimum_version = context.maximum_version = version
    with wrapped(secure, gate, context) as inside:
        assert inside.version() == version.name.replace("_", ".")
    assert exchange(secure, gate, world) == "ok"


@pytest.mark.parametrize("gate", GATES)
def test_tls_before_1_2_is_refused(secure: Server, world: World, gate: str) -> None:
    context = world.context()
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"(?i)protocol.version"), wrapped(secure, gate, context):
        pass


@pytest.mark.parametrize("gate", GATES)
def test_a_client_can_send_byte_by_byte(secure: Server, world: World, gate: str) -> None:
    """The handshake, a request and the end, each byte alone."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = world.context().wrap_bio(incoming, outgoing, server_hostname=HOST)
    with socket.create_connection(place(secure, gate), timeout=PATIENCE_S) as raw:
        raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

        def told(step: Any) -> Any:
            while True:
                try:
                    done = step()
                except ssl.SSLWantReadError:
                    done = None
                for byte in outgoing.read():
                    raw.sendall(bytes([byte]))
                if done is not None:
                    return done
                incoming.write(raw.recv(1))

        def shake_hands() -> bool:
            tls.do_handshake()
            return True

        told(shake_hands)
        sent = {
            "mq": message([b"Res01", b"GS", b"r"]),
            "remits": request(LOG_LIST),
            "http": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        }[gate]
        assert told(lambda: tls.write(sent)) == len(sent)
        assert told(lambda: tls.read(100))


@pytest.mark.parametrize("is_async", [False, True], ids=["plain", "looped"])
@pytest.mark.parametrize("size", [1 << 20, 30 << 20], ids=["1MB", "30MB"])
def test_large_commits_go_there_and_back(secure: Server, world: World, size: int, is_async: bool) -> None:
    part = 5 << 20
    bodies = [bytes([number]) * min(part, size) for number in range(max(1, size // part))]
    stream = f"large-{size}-{is_async}"
    with penstock.connect(url_of(secure, world)) as client:
        events = [penstock.event("Large", body) for body in bodies]
        if is_async:
            client.append_many([("shop", stream, events)])
            found = [event.body for event in client.read_all(context="shop", filter=stream)]
        else:
            client.append("shop", stream, events)
            found = [event.body for event in client.read_stream("shop", stream)]
        assert found == bodies


def test_answers_that_nobody_reads_stop_the_reading_of_requests(world: World) -> None:
    with world.serve() as server, penstock.connect(url_of(server, world)) as client:
        client.append("shop", "s", [penstock.event("Large", bytes(4 << 20))])
        ask = message([b"Res01L", *parted(joined([b"GE", b"r", b"shop", b"s", b"1"]))])
        with wrapped(server, "mq", world.context()) as inside:
            inside.settimeout(0.5)
            sent = 0
            with contextlib.suppress(TimeoutError):
                while sent < 100_000:
                    inside.sendall(ask * 100)
                    sent += 100
            greedy = max(sessions(server, "mq"), key=lambda info: info.messages_received)
            assert greedy.messages_received < sent
            assert greedy.unsent_bytes < 64 << 20


def sessions(server: Server, gate: str) -> Any:
    running = server._running
    assert running is not None
    return getattr(running, gate).sessions()


# ---------------------------------------------------------------- the wrong kind of text


@pytest.mark.parametrize("gate", GATES)
def test_plain_text_at_a_port_with_tls_is_answered_and_logged(
    secure: Server, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sent = {"mq": message([b"Res01", b"GS", b"r"]), "remits": request(LOG_LIST), "http": b"GET / HTTP/1.1\r\n\r\n"}
    with socket.create_connection(place(secure, gate), timeout=PATIENCE_S) as raw:
        raw.sendall(sent[gate])
        heard = rest(raw)
    if gate == "http":
        assert heard.startswith(b"HTTP/1.1 400 ")
        assert heard.endswith(b"\r\n\r\nThis port speaks TLS: use https instead of http.\n")
    else:
        # An alert of TLS.
        assert heard[:2] == b"\x15\x03"
    until(lambda: CloseReason.PLAIN in caplog.text)


@pytest.mark.parametrize("gate", GATES)
def test_tls_at_a_port_without_it_is_answered_and_logged(
    plain: Server, world: World, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    with pytest.raises(ssl.SSLError, match="WRONG_VERSION_NUMBER"), wrapped(plain, gate, world.context()):
        pass
    until(lambda: CloseReason.NO_TLS in caplog.text)


# ---------------------------------------------------------------- handshakes


@pytest.mark.parametrize("gate", ["mq", "remits"])
@pytest.mark.parametrize("begin", [b"", b"\x16", b"\x16\x03\x01\x02\x00\x01\x00"], ids=["nothing", "a byte", "a head"])
def test_a_handshake_that_stalls_counts_as_a_connection_and_ends(
    world: World, gate: str, begin: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with world.serve(tls_handshake_ms_max="300", mq_connections_max="1", remits_connections_max="1") as server:
        with socket.create_connection(place(server, gate), timeout=PATIENCE_S) as raw:
            raw.sendall(begin)
            until(lambda: len(sessions(server, gate)) == 1)
            # The next one is refused once its own handshake is done.
            with wrapped(server, gate, world.context()) as refused:
                rest(refused)
            assert rest(raw) == b""
        assert CloseReason.HANDSHAKE_SLOW in caplog.text
        assert "handshake_ms_max is 300" in caplog.text
        assert CloseReason.REFUSED in caplog.text
        until(lambda: not sessions(server, gate))
        assert exchange(server, gate, world) == "ok"


def test_a_handshake_of_http_that_stalls_ends(world: World, caplog: pytest.LogCaptureFixture) -> None:
    with world.serve(tls_handshake_ms_max="100") as server:
        with socket.create_connection(place(server, "http"), timeout=PATIENCE_S) as raw:
            raw.sendall(b"\x16\x03\x01")
            assert rest(raw) == b""
        assert CloseReason.HANDSHAKE_SLOW in caplog.text


@pytest.mark.parametrize("gate", GATES)
def test_garbage_in_a_handshake_ends_it(
    secure: Server, world: World, gate: str, caplog: pytest.LogCaptureFixture
) -> None:
    with socket.create_connection(place(secure, gate), timeout=PATIENCE_S) as raw:
        raw.sendall(b"\x16\x03\x01\x00\x04garbage" * 10)
        assert rest(raw)[:1] == b"\x15"
    until(lambda: CloseReason.HANDSHAKE in caplog.text)
    assert exchange(secure, gate, world) == "ok"


def test_a_server_stops_although_handshakes_stall_and_tells_the_others(world: World) -> None:
    with world.serve() as server, contextlib.ExitStack() as opened:
        client = penstock.connect(url_of(server, world), timeout=5, retries=False)
        stalled = [
            opened.enter_context(socket.create_connection(place(server, gate), timeout=PATIENCE_S)) for gate in GATES
        ]
        idle = opened.enter_context(wrapped(server, "remits", world.context()))
        for each in stalled:
            each.sendall(b"\x16\x03\x01")
        until(lambda: len(sessions(server, "mq")) == 2 and len(sessions(server, "remits")) == 2)
        began = time.monotonic()
        server.close()
        # Less than the time that a request under way is given.
        assert time.monotonic() - began < 4
        assert rest(idle) == b""
        assert [rest(each) for each in stalled] == [b""] * 3
        with client, pytest.raises(penstock.PenstockError):
            client.contexts()


# ---------------------------------------------------------------- certificates of clients


@pytest.mark.parametrize("gate", GATES)
@pytest.mark.parametrize(
    ("own", "answer"),
    [
        ("named", "ok"),
        ("by_uri", "ok"),
        ("pinned", "ok"),
        ("unknown", "refused"),
        ("forger", "refused"),
        (None, "refused"),
    ],
)
def test_a_client_is_who_its_certificate_says(
    guarded: Server, world: World, gate: str, own: str | None, answer: str
) -> None:
    assert exchange(guarded, gate, world, None if own is None else getattr(world, own)) == answer


@pytest.mark.parametrize("gate", GATES)
def test_a_certificate_that_is_not_trusted_fails_the_handshake(guarded: Server, world: World, gate: str) -> None:
    with (
        wrapped(guarded, gate, world.context(world.foreign)) as inside,
        pytest.raises(ssl.SSLError, match=r"(?i)unknown.ca"),
    ):
        # A client of TLS 1.3 learns of it with the first bytes after its own part of the handshake.
        inside.recv(1)


def test_a_resumed_session_is_nobody_once_its_certificate_has_expired(
    guarded: Server, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = world.context(world.named)
    context.maximum_version = ssl.TLSVersion.TLSv1_2

    def status(session: ssl.SSLSession | None) -> tuple[bytes, bool | None, ssl.SSLSession | None]:
        with (
            socket.create_connection(place(guarded, "http"), timeout=PATIENCE_S) as raw,
            context.wrap_socket(raw, server_hostname=HOST, session=session) as inside,
        ):
            inside.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            return rest(inside).split(b" ")[1], inside.session_reused, inside.session

    *first, session = status(None)
    assert first == [b"200", False]
    assert status(session)[:2] == (b"200", True)
    names = ("monotonic", "strftime", "gmtime")
    later = SimpleNamespace(time=lambda: time.time() + 31 * DAY.total_seconds())
    vars(later).update({name: getattr(time, name) for name in names})
    monkeypatch.setattr(tls, "time", later)
    assert status(session)[:2] == (b"401", True)


@pytest.mark.parametrize("gate", ["mq", "remits"])
def test_a_certificate_whose_principal_has_too_many_connections_is_busy_and_not_nobody(
    world: World, gate: str, tmp_path: Path
) -> None:
    access = tmp_path / "access.toml"
    access.write_text(
        '[principals.worker]\ngrants = ["read"]\ncertificates = ["worker"]\nlimits = {connections_max = 1}\n'
        '[principals.other]\ngrants = ["read"]\n'
    )
    with world.serve(access_file=access, mq_as="other", remits_as="other") as server:
        with wrapped(server, gate, world.context(world.named)):
            until(lambda: len(sessions(server, gate)) == 1)
            if gate == "remits":
                assert exchange(server, gate, world, world.named) == "refused"
            else:
                own = url_of(server, world, world.named)
                with pytest.raises(OverLimit, match="worker is over"), penstock.connect(own, timeout=1) as client:
                    client.whoami()
        until(lambda: not sessions(server, gate))
        assert exchange(server, gate, world, world.named) == "ok"


def test_a_connection_ends_when_its_certificate_stands_for_nobody_any_more(world: World) -> None:
    world.grant("worker")
    with world.serve(access_file=world.access) as server:
        with (
            wrapped(server, "mq", world.context(world.named)) as mq,
            wrapped(server, "remits", world.context(world.named)) as remits,
            wrapped(server, "http", world.context(world.named)) as http,
        ):
            http.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert http.recv(12) == b"HTTP/1.1 200"
            until(lambda: len(sessions(server, "mq")) == len(sessions(server, "remits")) == 1)
            world.grant("somebody-else")
            assert rest(mq).startswith(b"\x05")
            assert rest(remits) == b""
        assert exchange(server, "http", world, world.named) == "refused"
        assert exchange(server, "mq", world, world.named) == "refused"
    world.grant("worker", "spiffe://example/worker", f"sha256:{world.pinned.fingerprint}")


# ---------------------------------------------------------------- files


def copied(files: Files, folder: Path) -> Files:
    return Files(*(Path(shutil.copy2(each, folder)) for each in files))


def shown(server: Server, gate: str, world: World) -> bytes | None:
    with wrapped(server, gate, world.context()) as inside:
        return inside.getpeercert(binary_form=True)


def test_a_renewed_certificate_is_for_new_connections_and_open_ones_stay(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ServerTls, "check_s", 0.01)
    caplog.set_level(logging.INFO)
    files = copied(world.server, tmp_path)
    with world.serve(tls_cert=files.cert, tls_key=files.key) as server:
        first = {gate: shown(server, gate, world) for gate in GATES}
        with penstock.connect(url_of(server, world), retries=False) as client:
            client.contexts()
            world.authority.issue("renewed", "localhost", HOST).move_to(files)
            until(lambda: all(shown(server, gate, world) != first[gate] for gate in GATES))
            client.contexts()
            assert caplog.text.count("new connections get the changed certificate") == 1
            files.cert.write_text("broken")
            until(lambda: "the changed certificate is not used" in caplog.text)
            for gate in GATES:
                assert exchange(server, gate, world) == "ok"
            client.contexts()
        assert caplog.text.count("the changed certificate is not used") == 1


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"tls_cert": "server.pem"}, "tls_key is missing: tls_cert is given, and TLS needs both files"),
        ({"tls_key": "server.key"}, "tls_cert is missing: tls_key is given, and TLS needs both files"),
        ({"tls_client_ca": "authority.pem"}, "tls_client_ca needs TLS: give tls_cert and tls_key too"),
        ({"tls_cert": "none.pem", "tls_key": "server.key"}, "tls_cert .*none.pem cannot be read: no such file"),
        ({"tls_cert": "server.pem", "tls_key": "none.key"}, "tls_key .*none.key cannot be read: no such file"),
        ({"tls_cert": "server.pem", "tls_key": "named.key"}, "tls_key .* does not belong to the certificate in .*"),
        ({"tls_cert": "server.key", "tls_key": "server.key"}, "tls_cert .* has no certificate in PEM"),
        ({"tls_cert": "server.pem", "tls_key": "server.pem"}, "tls_key .* has no private key in PEM"),
        ({"tls_cert": "server.pem", "tls_key": "locked.key"}, "tls_key .* has a password; write the key without one"),
        (
            {"tls_cert": "server.pem", "tls_key": "server.key", "tls_client_ca": "server.key"},
            "tls_client_ca .* has no certificate in PEM",
        ),
    ],
)
def test_files_that_cannot_be_used_are_named_with_what_to_do(
    world: World, given: dict[str, str], sentence: str
) -> None:
    folder = world.server.cert.parent
    world.authority.issue("locked", HOST, password=b"secret")
    with pytest.raises(InvalidRequest, match=sentence):
        ServerTls.of(load({name: str(folder / file) for name, file in given.items()}, {}))


def test_an_expired_certificate_and_an_open_key_are_warned_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    expired = world.authority.issue("expired", HOST, begin=NOW - 2 * DAY, end=NOW - DAY)
    expired.key.chmod(0o644)
    assert ServerTls.of(Settings(tls_cert=expired.cert, tls_key=expired.key)) is not None
    assert f"expired on {NOW - DAY:%Y-%m-%d %H:%M} UTC: clients refuse it; renew it" in caplog.text
    assert f"can read the key in {expired.key}" in caplog.text


def test_a_gate_with_tls_may_listen_beyond_loopback(world: World) -> None:
    with world.serve(mq="0.0.0.0:0", access_file=world.access) as server:
        _, port = place(server, "mq")
        url = f"penstock://{HOST}:{port}?tls&tls_ca={world.authority.cert}&tls_cert={world.named.cert}"
        with penstock.connect(f"{url}&tls_key={world.named.key}") as client:
            client.contexts()
