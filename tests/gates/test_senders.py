"""Senders that become others: their long polls do not outlive the right to wait."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

import penstock
from penstock import model
from penstock.errors import PenstockError
from penstock.gates import logins
from penstock.testing import Server
from tests.gates.res_client import PATIENCE_S, Answer
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import an_event
from tests.gates.serving import until
from tests.principals import ask, closed, issue

BEHIND = (b"one",)
OTHER = (b"two",)


class Guarded(NamedTuple):
    server: Server
    root: penstock.Client

    def token(self, name: str) -> str:
        return issue(self.root, name).token

    def client(self, routing: tuple[bytes, ...] = ()) -> Extended:
        return Extended(self.server.zmq_url.removeprefix("zmq+"), routing=routing)


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[Guarded]:
    token = closed(tmp_path / "data", shop="read,append:shop", other="read:other")("root")
    with Server(tmp_path / "data") as server, penstock.connect(server.url, token=token) as root:
        yield Guarded(server, root)


def authenticate(client: Extended, token: str) -> bytes:
    return client.send("AU", token.encode())


def as_shop(client: Extended, guarded: Guarded) -> bytes:
    """Authenticate, and wait for an event; the id of the poll."""
    client.answer_to(authenticate(client, guarded.token("shop"))).of("IA")
    return client.send_read_all(1, "shop", wait_ms=60_000)


def answers(client: Extended, count: int) -> dict[bytes, Answer]:
    return {answer.request_id: answer for answer in (client.receive() for _ in range(count))}


@pytest.mark.parametrize("routing", [(), BEHIND])
def test_a_sender_that_becomes_another_principal_waits_no_more(routing: tuple[bytes, ...], guarded: Guarded) -> None:
    with guarded.client(routing) as client:
        poll = as_shop(client, guarded)
        shown = authenticate(client, guarded.token("other"))
        found = answers(client, 2)
        assert found[shown].command == b"IA"
        assert "was revoked or changed" in str(found[poll].error())


@pytest.mark.parametrize("routing", [(), BEHIND])
def test_a_sender_that_shows_another_token_of_its_principal_goes_on_waiting_until_that_ends_too(
    routing: tuple[bytes, ...], guarded: Guarded
) -> None:
    with guarded.client(routing) as client:
        poll = as_shop(client, guarded)
        second = issue(guarded.root, "shop")
        client.answer_to(authenticate(client, second.token)).of("IA")
        guarded.root.append("shop", "s", [model.new_event("Happened", b"{}")])
        found = client.records(client.answer_to(poll))
        assert len(found.records) == 1
        if routing:
            again = client.send_read_all(found.next, "shop", wait_ms=60_000)
            client.answer_to(authenticate(client, guarded.token("shop"))).of("IA")
            ask(guarded.root, model.DropPrincipal("shop"), model.Done)
            assert "was revoked or changed" in str(client.answer_to(again).error())


def test_a_sender_behind_a_broker_that_is_forgotten_waits_no_more(
    guarded: Guarded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logins, "SENDERS_MAX", 1)
    with guarded.client(BEHIND) as client:
        poll = as_shop(client, guarded)
        client.routing = OTHER
        shown = authenticate(client, guarded.token("other"))
        found = answers(client, 2)
        assert found[shown].command == b"IA"
        assert "was revoked or changed" in str(found[poll].error())
        client.routing = BEHIND
        with pytest.raises(Exception, match="has not authenticated"):
            client.append("shop", "s", 1, an_event())


@pytest.mark.parametrize("routing", [(b"x" * 4096,), (b"x",) * 64])
def test_a_sender_with_more_routing_frames_than_are_remembered_is_refused(
    routing: tuple[bytes, ...], guarded: Guarded
) -> None:
    with guarded.client(routing) as client:
        with pytest.raises(Exception, match="sender_bytes_max"):
            client.answer_to(authenticate(client, guarded.token("shop"))).of("IA")
        with pytest.raises(Exception, match="has not authenticated"):
            client.append("shop", "s", 1, an_event())
        # ZeroMQ's own frames, behind as many brokers as anybody has.
        client.routing = (b"x" * 255,) * 12
        client.answer_to(authenticate(client, guarded.token("shop"))).of("IA")
        client.append("shop", "s", 1, an_event())


def test_who_has_a_leaked_token_of_an_administrator_makes_no_other_once_that_is_rotated_without_grace(
    guarded: Guarded,
) -> None:
    leaked, mine = guarded.token("root"), guarded.token("root")
    made: list[str] = []

    def steal() -> None:
        with penstock.connect(guarded.server.url, token=leaked) as thief, suppress(PenstockError):
            while True:
                made.append(issue(thief, "root").id)

    with ThreadPoolExecutor() as threads, penstock.connect(guarded.server.url, token=mine) as client:
        stealing = threads.submit(steal)
        until(lambda: len(made) > 10)
        kept = issue(client, "root", rotate=0)
        stealing.result(PATIENCE_S)
    with penstock.connect(guarded.server.url, token=kept.token) as client:
        valid = [one.id for one in client.access.credentials("root") if one.expires is None]
    assert valid == [kept.id]


def test_a_replay_of_one_that_may_not_append_uses_no_mark_of_those_that_may(guarded: Guarded) -> None:
    ask(guarded.root, model.PutPrincipal("auditor", ("consume", "audit")), model.Done)
    mark = model.ProducerMark("writer", 7)
    with penstock.connect(guarded.server.url, token=guarded.token("auditor")) as client:
        ask(client, model.SubscribeQueue("shop", "q", "me", "", 0, 1, -1), model.Delivery)
        guarded.root.append("shop", "s", [model.new_event("Happened", b"{}")])
        ask(client, model.SubscribeQueue("shop", "q", "me", "", 0, 1, 1), model.Delivery)
        ask(client, model.ReplayQueue("shop", "q", 1, 1, mark), model.Replayed)
    append = model.Append("shop", "s", (model.new_event("Happened", b"{}"),), model.ANY, mark)
    assert not ask(guarded.root, append, model.Appended).repeated
