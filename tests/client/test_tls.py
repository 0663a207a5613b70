"""TLS in the client: what URLs say, errors that name the side to change, and what travels over it."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Client
from penstock.client.transport import MqTransport, transport_to
from penstock.errors import BadUrl, CannotConnect, ConnectionLost, DeadlinePassed, PenstockError, Retry, TlsFailed
from penstock.history.source import open_history
from penstock.testing import Server
from tests.certificates import DAY, NOW, Authority, Files
from tests.cli.support import called
from tests.client.conftest import MAKERS
from tests.client.support import some

# The same tests as without TLS, with the clients of this module.
from tests.client.test_connection import (  # noqa: F401
    test_a_long_poll_does_not_hold_up_other_threads,
    test_another_thread_reads_when_the_one_that_read_has_its_answer,
    test_answers_go_to_the_threads_that_asked,
    test_interrupts_at_any_moment_mix_nothing_up,
)

PATIENT_S = 30.0


class World:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority, self.stranger = Authority(folder), Authority(folder, "stranger")
        self.good = self.authority.issue("good", "localhost", "127.0.0.1")
        self.shop = self.authority.issue("shop", common="shop")
        self.foreign = self.stranger.issue("foreign", common="shop")

    def serve(self, files: Files, **others: Any) -> Server:
        return Server(tls_cert=str(files.cert), tls_key=str(files.key), **others)

    def url(self, server: Server, *parameters: str) -> str:
        place = server.url.partition("?")[0]
        return "?".join((place, "&".join(("tls", f"tls_ca={self.authority.cert}", *parameters))))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def secure(world: World) -> Iterator[Server]:
    with world.serve(world.good, tls_client_ca=str(world.authority.cert)) as server:
        yield server


@pytest.fixture
def url(world: World, secure: Server) -> str:
    return world.url(secure)


@pytest.fixture
def plain(url: str) -> Iterator[Client]:
    with penstock.connect(url, timeout=PATIENT_S) as client:
        yield client


@pytest.fixture(params=MAKERS)
def connect(request: pytest.FixtureRequest) -> Callable[..., Client]:
    """Connects with the one client or the other."""
    return MAKERS[request.param]


def failure(connect: Callable[..., Client], url: str) -> str:
    """How an attempt to connect fails; it must fail at once and for good."""
    with pytest.raises(TlsFailed) as caught, connect(url, timeout=PATIENT_S) as client:
        client.stats()
    assert caught.value.retry is Retry.NEVER
    assert str(caught.value) == f"no encrypted connection to {url}: {caught.value.reason}"
    return caught.value.reason


# ---------------------------------------------------------------- URLs


@pytest.mark.parametrize(
    ("query", "ca", "cert", "key"),
    [
        ("tls", None, None, None),
        ("tls&tls_ca=/a/ca.pem", "/a/ca.pem", None, None),
        ("tls_ca=ca%26b%2525+.pem", "ca&b%25+.pem", None, None),
        ("tls&tls_cert=c&tls_key=k", None, "c", "k"),
        ("tls_key=k&tls_cert=c", None, "c", "k"),
    ],
)
def test_a_url_says_how_to_encrypt(query: str, ca: str | None, cert: str | None, key: str | None) -> None:
    transport = transport_to(f"penstock://localhost?{query}")
    assert isinstance(transport, MqTransport)
    assert transport.tls == (ca, cert, key)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("penstock://h?tls=1", "tls has no value"),
        ("penstock://h?tls&tls", "it has tls twice"),
        ("penstock://h?tls_ca", "tls_ca needs a file"),
        ("penstock://h?tls_key=k", "tls_key needs tls_cert"),
        ("penstock://h?TLS", "there are tls, tls_ca, tls_cert, tls_key"),
        ("penstock://h?tls&", "there are tls, tls_ca, tls_cert, tls_key"),
        ("penstock://h?token=secret", "there are tls, tls_ca, tls_cert, tls_key"),
        ("zmq+tcp://h?tls", "only penstock:// has TLS"),
    ],
)
def test_a_url_that_says_something_else_is_refused(url: str, reason: str) -> None:
    with pytest.raises(BadUrl, match=reason) as caught:
        transport_to(url)
    assert "secret" not in str(caught.value)


# ---------------------------------------------------------------- errors


def test_an_authority_that_is_not_known_is_asked_for(
    connect: Callable[..., Client], world: World, secure: Server
) -> None:
    place = secure.url.partition("?")[0]
    for url in (f"{place}?tls", f"{place}?tls&tls_ca={world.stranger.cert}"):
        assert failure(connect, url) == "the certificate of 127.0.0.1 is not trusted: give its CA with tls_ca=FILE"


def test_a_server_can_be_trusted_by_its_own_certificate(
    connect: Callable[..., Client], world: World, secure: Server
) -> None:
    with connect(f"{secure.url.partition('?')[0]}?tls&tls_ca={world.good.cert}") as client:
        client.stats()


def test_a_certificate_for_another_host_says_for_which(connect: Callable[..., Client], world: World) -> None:
    with world.serve(world.authority.issue("elsewhere", "a.example", "b.example", "192.0.2.1")) as server:
        assert failure(connect, world.url(server)) == (
            "the certificate is for a.example, b.example, 192.0.2.1, not 127.0.0.1: "
            "connect by a name that it has, or reissue it for this one"
        )


def test_an_expired_certificate_says_since_when(connect: Callable[..., Client], world: World) -> None:
    with world.serve(world.authority.issue("expired", "127.0.0.1", begin=NOW - 2 * DAY, end=NOW - DAY)) as server:
        reason = failure(connect, world.url(server))
    assert reason.startswith(f"the certificate of 127.0.0.1 expired on {NOW - DAY:%b} ")
    assert reason.endswith(": the server has to renew it")
    assert f"{NOW - DAY:%H:%M:%S %Y} GMT" in reason


def test_a_certificate_of_the_future_says_from_when(connect: Callable[..., Client], world: World) -> None:
    with world.serve(world.authority.issue("future", "127.0.0.1", begin=NOW + DAY)) as server:
        reason = failure(connect, world.url(server))
    assert reason.startswith(f"the certificate of 127.0.0.1 is not valid before {NOW + DAY:%b} ")


def test_a_server_without_tls_is_said_to_be_one(connect: Callable[..., Client], world: World) -> None:
    with Server() as server:
        place = server.url.removeprefix("penstock://")
        assert failure(connect, world.url(server)) == (
            f"the server at {place} does not speak TLS: drop ?tls, or give the server --tls-cert and --tls-key"
        )


def test_a_server_with_tls_is_said_to_be_one(connect: Callable[..., Client], secure: Server) -> None:
    url = secure.url.partition("?")[0]
    assert failure(connect, url) == f"the server at {url.removeprefix('penstock://')} speaks TLS: add ?tls"


def test_a_client_certificate_that_is_refused_says_so(
    connect: Callable[..., Client], world: World, secure: Server
) -> None:
    own = world.foreign
    reason = failure(connect, world.url(secure, f"tls_cert={own.cert}", f"tls_key={own.key}"))
    assert reason.startswith(
        "the server refused the client certificate (unknown ca): give one that an authority in its"
    )
    with connect(world.url(secure, f"tls_cert={world.shop.cert}", f"tls_key={world.shop.key}")) as client:
        client.stats()


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ("tls_ca=none.pem", "tls_ca none.pem cannot be read: no such file or directory"),
        ("tls_ca={shop.key}", "tls_ca {shop.key} cannot be used: it must be PEM"),
        (
            "tls_cert={shop.cert}",
            "tls_cert {shop.cert} cannot be used: it must be PEM, with the key in it or in tls_key",
        ),
        ("tls_cert=none.pem", "tls_cert none.pem with its key cannot be read: no such file or directory"),
        ("tls_cert={shop.cert}&tls_key={foreign.key}", "tls_cert {shop.cert} with its key do not belong together"),
    ],
)
def test_files_of_a_client_that_cannot_be_used_are_named(
    connect: Callable[..., Client], world: World, secure: Server, parameters: str, reason: str
) -> None:
    names = {"shop": world.shop, "foreign": world.foreign}
    place = secure.url.partition("?")[0]
    assert failure(connect, f"{place}?{parameters.format(**names)}") == reason.format(**names)


def test_a_server_that_ends_a_handshake_is_tried_again(connect: Callable[..., Client], url: str) -> None:

    with socket.create_server(("127.0.0.1", 0)) as listening:

        def refuse() -> None:
            for _ in range(2):
                accepted, _ = listening.accept()
                accepted.recv(1000)
                accepted.close()

        refusing = threading.Thread(target=refuse, daemon=True)
        refusing.start()
        there = f"penstock://127.0.0.1:{listening.getsockname()[1]}?{url.partition('?')[2]}"
        with pytest.raises(CannotConnect, match="ended the connection in the TLS handshake") as caught:
            connect(there, timeout=PATIENT_S)
        assert caught.value.retry is Retry.SAFE


def test_a_handshake_that_stalls_ends_with_the_time_of_the_call(connect: Callable[..., Client], url: str) -> None:

    with socket.create_server(("127.0.0.1", 0)) as mute:
        there = f"penstock://127.0.0.1:{mute.getsockname()[1]}?{url.partition('?')[2]}"
        with pytest.raises((CannotConnect, DeadlinePassed)):
            connect(there, timeout=0.3)


# ---------------------------------------------------------------- what travels over it


def test_everything_travels_over_it(connect: Callable[..., Client], url: str, context: str) -> None:
    commits = [(context, f"s-{number % 7}", some(3, number)) for number in range(300)]
    with connect(url) as client:
        assert client.append_many(commits).commits == 300
        assert sum(1 for _ in client.read_all(context=context)) == 900
        assert sum(batch.num_rows for batch in client.arrow_batches(context=context)) == 900
        followed: Any = client.follow(context=context)
        with closing(followed):
            assert next(followed).context == context
        with client.queue(context, "work").next(wait=1.0) as batch:
            assert batch
        log = client.log(f"log-{context}")
        log.create()
        log.append([1, 2, 3])


def test_a_client_reconnects(connect: Callable[..., Client], world: World, context: str) -> None:
    with world.serve(world.good) as server, connect(world.url(server), timeout=PATIENT_S) as client:
        client.append(context, "s", some(1))
        server.restart()
        client.append(context, "s", some(1))
        assert sum(1 for _ in client.read_stream(context, "s")) == 2
        server.kill()
        with pytest.raises(PenstockError) as caught:
            client.append(context, "s", some(1), timeout=0.5)
        assert isinstance(caught.value, CannotConnect | ConnectionLost | DeadlinePassed)


def test_a_history_is_read_over_it(url: str, plain: Client, context: str) -> None:
    """As Spark, SQL and exports read it."""
    plain.append(context, "s", some(5))
    with closing(open_history(url)) as history:
        assert history.now().head >= 5


def test_commands_travel_over_it(world: World, url: str, context: str, tmp_path: Path) -> None:
    done = called("append", context, "s", "Placed", '{"a": 1}', "--url", url)
    assert done.code == 0, done.err
    file = tmp_path / "events.jsonl"
    done = called("export", file, "--context", context, "--url", url)
    assert done.code == 0, done.err
    with world.serve(world.good) as other:
        done = called("import", file, "--url", world.url(other))
        assert done.code == 0, done.err
        done = called("read", context, "s", "--json", "--url", world.url(other))
        assert '"Placed"' in done.out
        with Server() as target:
            done = called("replay", "--url", world.url(other), "--to-url", target.url)
            assert done.code == 0, done.err
    wrong = called("stats", "--url", url.partition("?")[0])
    assert (wrong.code, wrong.out) == (1, "")
    assert "speaks TLS: add ?tls" in wrong.err


def test_commands_take_the_certificate_from_the_settings(
    world: World, secure: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PENSTOCK_TLS_CERT", str(world.good.cert))
    monkeypatch.setenv("PENSTOCK_MQ", secure.url.partition("?")[0].removeprefix("penstock://"))
    done = called("stats", "--json")
    assert done.code == 0, done.err
    http = secure.http.removeprefix("https://")
    assert called("sessions", "--http", http).code == 0
    monkeypatch.delenv("PENSTOCK_TLS_CERT")
    assert called("sessions", "--http", f"{http}?tls&tls_ca={world.authority.cert}").code == 0
    wrong = called("sessions", "--http", f"{http}?tls")
    assert wrong.code == 1
    assert "the certificate of 127.0.0.1 is not trusted: give its CA with tls_ca=FILE" in wrong.err
