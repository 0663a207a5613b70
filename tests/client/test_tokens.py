"""Clients show their token on each connection, and what happens when the server does not take it, or not any more."""

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Client, model
from penstock.errors import (
    BadUrl,
    ClientClosed,
    InvalidRequest,
    NotAllowed,
    NotAppended,
    NotAuthenticated,
    OverLimit,
)
from penstock.model import Done, now_ticks
from penstock.model.address import TOKEN_ENVIRONMENT as ENVIRONMENT
from penstock.model.times import TICKS_PER_SECOND
from penstock.testing import Server
from tests.client.conftest import NETWORKS, Connect, Way
from tests.client.fakes import FakeMq
from tests.client.support import calls_of, numbers, one, some
from tests.gates.broker import broker
from tests.gates.serving import until
from tests.principals import ask, closed, issue, put

pytestmark = pytest.mark.over(*NETWORKS, both=True)

SHOP = "read,append,consume:shop"
WRONG = "0a1b2c3d4e5f607182.kS2hJ3sVbq0mY7cQwXn4uT8eRzL1pGdA9fN6iKoBvE0"


class Guarded:
    """A server with principals, and how a test reaches it."""

    def __init__(self, data: Path) -> None:
        self.token = closed(data, shop=SHOP, other="read:other")
        self.server = Server(data)
        self.scheme = "penstock"

    @property
    def url(self) -> str:
        return self.server.url if self.scheme == "penstock" else self.server.zmq_url

    @contextlib.contextmanager
    def as_root(self) -> Iterator[Client]:
        with penstock.connect(self.server.url, token=self.token("root")) as client:
            yield client

    def revoke(self, name: str) -> None:
        with self.as_root() as root:
            ask(root, model.DropPrincipal(name), Done)

    def sessions(self) -> int:
        """How many connections it has."""
        running = self.server._running
        assert running is not None
        return len(running.mq._sessions) + len(running.res._sessions)


@pytest.fixture
def guarded(way: Way, tmp_path: Path) -> Iterator[Guarded]:
    """A server of its own, for tests that kill it, revoke principals or count its requests."""
    guarded = Guarded(tmp_path / "data")
    guarded.scheme = way.scheme
    with guarded.server:
        yield guarded


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    standing = Guarded(tmp_path_factory.mktemp("standing") / "data")
    with standing.server:
        yield standing


@pytest.fixture
def lasting(way: Way, standing: Guarded) -> Guarded:
    """A server for tests that leave its principals alone: without connections, because tests count them."""
    standing.scheme = way.scheme
    until(lambda: not standing.sessions())
    return standing


# ---------------------------------------------------------------- who one is


def test_a_client_says_who_it_is(client: Client) -> None:
    found = client.whoami()
    assert (found.principal, found.grants, found.is_closed, found.sees_all) == ("anonymous", ("all:*",), False, True)


def test_a_client_with_a_token_is_its_principal(lasting: Guarded, connect: Connect) -> None:
    client = connect(lasting.url, token=lasting.token("shop"))
    found = client.whoami()
    assert (found.principal, found.grants, found.is_closed, found.sees_all) == ("shop", (SHOP,), True, False)
    client.append("shop", "s", one())
    with pytest.raises(NotAllowed):
        client.append("other", "s", one())


def test_the_variable_is_the_token_of_clients_that_are_given_none(
    lasting: Guarded, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENVIRONMENT, lasting.token("shop"))
    assert connect(lasting.url).whoami().principal == "shop"
    assert connect(lasting.url, token=lasting.token("other")).whoami().principal == "other"
    with pytest.raises(NotAuthenticated, match="has not authenticated"):
        connect(lasting.url, token="").stats()


def test_an_open_server_does_not_ask_for_the_token(client: Client, connect: Connect) -> None:
    assert connect(client.url, token=WRONG).whoami().principal == "anonymous"


# ---------------------------------------------------------------- refused tokens


@pytest.mark.parametrize("token", [WRONG, "no-point", f"{WRONG}x", "." * 200])
def test_a_wrong_token_is_refused_at_once(lasting: Guarded, connect: Connect, token: str) -> None:
    with pytest.raises(NotAuthenticated, match="is not valid here") as refused:
        connect(lasting.url, token=token)
    assert token not in str(refused.value)
    until(lambda: not lasting.sessions())


def test_without_a_token_calls_fail_and_the_connection_stays(lasting: Guarded, connect: Connect) -> None:
    client = connect(lasting.url)
    for _ in range(12):
        with pytest.raises(NotAuthenticated, match="has not authenticated"):
            client.stats()
    assert client.whoami().principal == "nobody"
    assert lasting.sessions() == 1


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (7, "is int"),
        (lambda: None, "is NoneType"),
        (f"{WRONG}\n", "has characters"),
        (f" {WRONG}", "has characters"),
        ("schlüssel", "has characters"),
        ("\udc80", "has characters"),
        ("x" * 201, "has 201 characters"),
    ],
)
def test_what_cannot_be_a_token_is_not_sent(lasting: Guarded, connect: Connect, token: Any, why: str) -> None:
    with pytest.raises(InvalidRequest, match=f"token {why}") as refused:
        connect(lasting.url, token=token)
    assert WRONG not in str(refused.value)
    assert not lasting.sessions()


@pytest.mark.parametrize("place", ["{0}@{1}", "user:{0}@{1}", "{1}/{0}", "{1}?token={0}", "{1}?{0}", "{1}#{0}"])
def test_a_url_takes_no_token_and_the_error_shows_none(lasting: Guarded, connect: Connect, place: str) -> None:
    scheme, _, address = lasting.url.partition("://")
    with pytest.raises(BadUrl, match=ENVIRONMENT) as refused:
        connect(f"{scheme}://{place.format(WRONG, address)}")
    assert address in str(refused.value)
    assert WRONG not in str(refused.value)


def test_neither_a_client_nor_its_request_shows_the_token(lasting: Guarded, connect: Connect) -> None:
    token = lasting.token("shop")
    client = connect(lasting.url, token=token)
    transport = calls_of(client).transport
    shown = f"{client!r} {transport!r} {transport.token!r} {transport.token()!r}"
    assert token not in shown
    assert token.partition(".")[2] not in shown


# ---------------------------------------------------------------- again on each connection


def test_a_client_is_its_principal_again_after_the_server_was_killed(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    for number in range(1, 4):
        client.append("shop", "s", some(1, number))
        guarded.server.kill()
        guarded.server.restart()
    assert client.whoami().principal == "shop"
    assert numbers(client.read_stream("shop", "s")) == [1, 2, 3]


def test_a_function_is_asked_for_the_token_at_each_connection(guarded: Guarded, connect: Connect) -> None:
    with guarded.as_root() as root:
        tokens = [issue(root, "shop").token, issue(root, "shop").token]
    given: list[str] = []

    def next_token() -> str:
        given.append(tokens[len(given)])
        return given[-1]

    client = connect(guarded.url, token=next_token)
    client.append("shop", "s", some(1))
    assert given == tokens[:1]
    with guarded.as_root() as root:
        ask(root, model.DropCredential(tokens[0].partition(".")[0]), Done)
    assert client.whoami().principal == "shop"
    assert given == tokens


def test_what_the_function_raises_comes_to_the_caller(lasting: Guarded, connect: Connect) -> None:
    def broken() -> str:
        raise LookupError("the vault is closed")

    with pytest.raises(LookupError, match="vault"):
        connect(lasting.url, token=broken)
    assert not lasting.sessions()


def test_bulk_work_has_the_token_on_its_own_connection(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    client.append_many([("shop", f"s-{number}", some(10)) for number in range(50)])
    assert sum(1 for _ in client.read_all(context="shop")) == 500
    assert sum(batch.num_rows for batch in client.arrow_batches(context="shop")) == 500
    following = client.follow(context="shop")
    assert len(list(itertools.islice(following, 500))) == 500
    following.close()  # type: ignore[attr-defined]


def test_bulk_work_goes_on_after_the_server_was_killed(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    killed = threading.Event()

    def kill(number: int, _: object) -> None:
        if number == 20 and not killed.is_set():
            killed.set()
            guarded.server.kill()
            guarded.server.restart()

    done = client.append_many([("shop", "s", some(1, number)) for number in range(1, 201)], in_flight=8, written=kill)
    assert killed.is_set()
    assert done.commits == 200
    assert numbers(client.read_stream("shop", "s")) == list(range(1, 201))


def test_authenticating_costs_one_request_for_each_connection(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    for _ in range(20):
        client.stats()
    running = guarded.server._running
    assert running is not None
    assert running.engine.metrics.commands["AU"] == 1
    assert sum(running.engine.metrics.gate_received.values()) == 22  # hello, token, and 20 calls


# ---------------------------------------------------------------- revoked meanwhile


def refused(client: Client, use: Callable[[], object]) -> None:
    """A client whose principal was revoked learns so at once, and again at each call."""
    until(lambda: _is_refused(use))
    for _ in range(3):
        with pytest.raises(NotAuthenticated, match="is not valid here"):
            use()
    with pytest.raises(NotAuthenticated):
        client.append("shop", "s", one(), expected=0)


def _is_refused(use: Callable[[], object]) -> bool:
    try:
        use()
    except NotAuthenticated:
        return True
    return False


def test_a_revoked_client_is_refused_and_does_not_connect_without_end(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    client.stats()
    guarded.revoke("shop")
    refused(client, client.stats)
    until(lambda: not guarded.sessions())


def test_a_revoked_token_ends_bulk_reads_and_writes(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    client.append("shop", "s", some(10))
    following = client.follow(context="shop")
    assert len(list(itertools.islice(following, 10))) == 10
    threading.Timer(0.1, guarded.revoke, ("shop",)).start()
    with pytest.raises(NotAuthenticated):
        next(following)
    with pytest.raises(NotAppended, match="is not valid here"):
        client.append_many([("shop", "s", one())] * 10)


def test_an_expired_token_is_refused_and_a_new_one_is_taken(guarded: Guarded, connect: Connect) -> None:
    with guarded.as_root() as root:
        token = issue(root, "shop", expires=now_ticks() + TICKS_PER_SECOND).token
    client = connect(guarded.url, token=token)
    assert client.whoami().expires is not None
    until(lambda: _is_refused(client.stats))
    with pytest.raises(NotAuthenticated, match="has expired"):
        client.stats()
    with guarded.as_root() as root:
        assert connect(guarded.url, token=issue(root, "shop").token).whoami().principal == "shop"


def test_a_principal_whose_grants_change_goes_on_with_the_new_ones(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    client.append("shop", "s", one())
    with guarded.as_root() as root:
        put(root, "shop", "read:shop")
    until(lambda: client.whoami().grants == ("read:shop",))
    with pytest.raises(NotAllowed):
        client.append("shop", "s", one())


def test_a_client_waits_until_its_principal_may_connect_once_more(guarded: Guarded, connect: Connect) -> None:
    first, second = (connect(guarded.url, token=guarded.token("shop")) for _ in range(2))
    with guarded.as_root() as root:
        ask(root, model.PutPrincipal("shop", (SHOP,), model.Limits(connections_max=1)), Done)
    until(lambda: not guarded.sessions())
    first.stats()
    with pytest.raises(OverLimit, match="connections_max"):
        connect(guarded.url, token=guarded.token("shop"))
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(second.whoami().principal))
    thread.start()
    first.close()
    thread.join()
    assert found == ["shop"]


# ---------------------------------------------------------------- many threads, and closing


@pytest.mark.over(*NETWORKS)
def test_threads_that_share_a_client_share_its_token(guarded: Guarded, connect: Connect) -> None:
    client = connect(guarded.url, token=guarded.token("shop"))
    failures: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for version in range(1, 31):
                client.append("shop", f"s-{number}", some(1, version))
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    guarded.server.kill()
    guarded.server.restart()
    for thread in threads:
        thread.join()
    assert not failures
    assert {info.events for info in client.streams("shop")} == {30}
    guarded.revoke("shop")
    asked: list[bool] = []
    threads = [threading.Thread(target=lambda: asked.append(_is_refused(client.stats))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert asked == [True] * 8


def test_closing_a_client_that_waits_for_the_answer_to_its_token_ends_its_call() -> None:
    outcomes: list[BaseException] = []

    def answer(fields: list[bytes]) -> list[bytes] | None:
        if fields[0] == b"AU":
            return [b"IA", b"shop", b"", b"", b"1", b"1"] if len(fake.asked) == 1 else None
        raise ConnectionError  # which ends the connection

    with FakeMq(answer) as fake:
        client = penstock.connect(fake.url, token=WRONG)

        def call() -> None:
            try:
                client.stats()
            except BaseException as error:  # noqa: BLE001 - looked at below
                outcomes.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        until(lambda: [fields[0] for fields in fake.asked] == [b"AU", b"GS", b"AU"])
        client.close()
        thread.join(5)
        assert [type(error) for error in outcomes] == [ClientClosed]
        until(lambda: not fake.sessions)


# ---------------------------------------------------------------- brokers


@pytest.mark.over("zmq+tcp", both=True)
def test_behind_a_broker_each_client_is_its_own_principal(guarded: Guarded, connect: Connect) -> None:
    with broker(f"tcp://{guarded.url.rpartition('/')[2]}") as address:
        shop, other = (connect(f"zmq+{address}", token=guarded.token(name)) for name in ("shop", "other"))
        nobody = connect(f"zmq+{address}")
        for _ in range(3):
            assert [each.whoami().principal for each in (shop, other, nobody)] == ["shop", "other", "nobody"]
        with pytest.raises(NotAuthenticated):
            nobody.stats()
        with pytest.raises(NotAuthenticated, match="is not valid here"):
            connect(f"zmq+{address}", token=WRONG)


@pytest.mark.over("zmq+tcp", both=True)
def test_a_client_shows_its_token_again_when_its_broker_has_connected_again(guarded: Guarded, connect: Connect) -> None:
    with broker(f"tcp://{guarded.url.rpartition('/')[2]}") as address:
        client = connect(f"zmq+{address}", token=guarded.token("shop"))
        client.append("shop", "s", some(1))
        guarded.server.kill()
        guarded.server.restart()
        client.append("shop", "s", some(1, 2), expected=2)
        guarded.server.kill()
        guarded.server.restart()
        client.append_many([("shop", "s", some(1, number)) for number in range(3, 41)])
        assert numbers(client.read_all(context="shop")) == list(range(1, 41))


@pytest.mark.over("zmq+tcp", both=True)
def test_a_revoked_client_behind_a_broker_is_refused(guarded: Guarded, connect: Connect) -> None:
    with broker(f"tcp://{guarded.url.rpartition('/')[2]}") as address:
        client = connect(f"zmq+{address}", token=guarded.token("shop"))
        client.append("shop", "s", some(2))
        following = client.follow(context="shop")
        assert len(list(itertools.islice(following, 2))) == 2
        threading.Timer(0.1, guarded.revoke, ("shop",)).start()
        with pytest.raises(NotAuthenticated):
            next(following)
        refused(client, client.stats)
        with pytest.raises(NotAppended, match="is not valid here"):
            client.append_many([("shop", "s", one())] * 10)


# ---------------------------------------------------------------- stores without a server


@pytest.mark.over("sqlite", both=True)
def test_an_embedded_store_asks_for_no_token(connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed(tmp_path, shop=SHOP)
    monkeypatch.setenv(ENVIRONMENT, "wrong\n")
    client = connect(f"sqlite:///{tmp_path}", token=WRONG)
    assert client.whoami().principal == "anonymous"
    client.append("anywhere", "s", one())
