"""Gates that stand for a principal (`--res-as NAME`): original clients have exactly its rights."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

import penstock
from penstock.errors import CannotListen, NotAllowed, NotAuthenticated, OverLimit
from penstock.model import Limits
from penstock.testing import server as tested
from tests.cli.support import run
from tests.gates.mq_client import MqBinary, MqClient
from tests.gates.remits_client import INFO, TOKEN, Failure, Remits
from tests.gates.res_client import PATIENCE_S, Client, Older, Rc01, Res01, WithOriginalTag
from tests.gates.res_frames import Refused, an_event
from tests.gates.serving import Served, until
from tests.principals import closed

BUSY: Final = 10
NOT_ALLOWED: Final = 12
REMITS_BUSY: Final = 33
REMITS_NOT_ALLOWED: Final = 35
AS_SHOP: Final = [f"--{gate}-as=shop" for gate in ("res", "res-legacy", "mq", "remits")]
SHOP: Final = "read,append:shop read,append:log:visits read,append:old"
CLIENTS: Final[dict[str, tuple[type[Client], str]]] = {
    "text": (Res01, "res"),
    "original text": (WithOriginalTag, "res"),
    "original binary": (Rc01, "res"),
    "mq": (MqClient, "mq"),
    "mq binary": (MqBinary, "mq"),
}


class Bound(Served):
    """A server whose store has the principals `root`, `shop` and `probe`, and whose gates are `shop` and `probe`."""

    def __init__(self, data: Path) -> None:
        self.token = closed(data, shop=SHOP, probe="read")
        super().__init__(data, *AS_SHOP, "--http-as=probe")

    def root(self) -> penstock.Client:
        return penstock.connect(f"penstock://{self.mq}", token=self.token("root"))

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(f"http://{self.http}{path}", headers=headers, timeout=PATIENCE_S)

    def connections(self, name: str) -> float:
        """How many connections of a principal the server counts."""
        line = f'penstock_principal_connections{{principal="{name}"}} '
        return float(self.get("/metrics").text.partition(line)[2].split()[0])


@contextlib.contextmanager
def limited(bound: Bound) -> Iterator[None]:
    """The principal of the gates may have one connection; all that it has now end."""
    with bound.root() as root:
        root.access.put("shop", SHOP.split(), limits=Limits(connections_max=1))
    until(lambda: not bound.connections("shop"))
    yield
    with bound.root() as root:
        root.access.put("shop", SHOP.split(), limits=Limits())


@pytest.fixture(scope="module")
def bound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bound]:
    with Bound(tmp_path_factory.mktemp("bound") / "data") as server:
        yield server


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_without_credentials_has_the_rights_of_the_gate_and_no_others(name: str, bound: Bound) -> None:
    kind, gate = CLIENTS[name]
    stream = name.replace(" ", "-")
    with kind(getattr(bound, gate)) as client:
        client.append("shop", stream, 1, an_event())
        assert [event.stream for event in client.read("shop", stream)] == [stream]
        with pytest.raises(Refused, match="shop may not do this: it needs the right append on other/s") as refused:
            client.append("other", "s", 1, an_event())
        assert refused.value.code == NOT_ALLOWED
        with pytest.raises(Refused) as refused:
            client.read("other", "s")
        assert refused.value.code == NOT_ALLOWED
        # The connection goes on.
        client.append("shop", stream, 2, an_event())


def test_the_gate_with_the_older_results_refuses_with_the_code_in_them(bound: Bound) -> None:
    with Older(bound.res_legacy) as client:
        assert client.try_append("old", "s", 1, an_event()).result == ""
        refused = client.try_append("other", "s", 1, an_event())
        assert (refused.result, refused.commit.int) == (str(NOT_ALLOWED), 0)
        assert "shop may not do this" in refused.error


def test_a_client_of_remits_sees_and_writes_the_logs_of_its_principal_only(bound: Bound) -> None:
    with bound.root() as root:
        root.log("others").create()
    with Remits(bound.remits) as client:
        client.log_add("visits")
        client.add("visits", 1)
        assert client.log_list() == ["visits"]
        with pytest.raises(Failure) as refused:
            client.add("others", 1)
        assert refused.value.code == REMITS_NOT_ALLOWED
        with pytest.raises(Failure) as refused:
            client.log_show("others")
        assert refused.value.code == REMITS_NOT_ALLOWED


def test_requests_over_http_are_the_principal_of_that_gate_or_of_their_token(bound: Bound) -> None:
    assert bound.get("/metrics").status_code == 200
    assert "store_id" in bound.get("/health").json()
    refused = bound.get("/sessions")
    assert refused.status_code == 403
    assert refused.json()["error"] == str(NotAllowed("probe", "admin"))
    assert bound.get("/sessions", authorization=f"Bearer {bound.token('root')}").status_code == 200
    assert bound.get("/metrics", authorization=f"Bearer {bound.token('shop')}").status_code == 403
    assert bound.get("/metrics", authorization="Bearer wrong").status_code == 401


def test_a_client_with_a_token_is_the_tokens_principal_at_a_gate_of_another(bound: Bound) -> None:
    with penstock.connect(f"penstock://{bound.mq}", token="") as client:
        assert client.whoami().principal == "shop"
        with pytest.raises(NotAllowed):
            client.append("other", "s", [penstock.event("T")])
    with bound.root() as root:
        assert root.whoami().principal == "root"
        root.append("other", "s", [penstock.event("T")])


@pytest.mark.parametrize("name", CLIENTS)
def test_a_connection_too_many_is_busy_and_is_let_in_when_there_is_room(name: str, bound: Bound) -> None:
    kind, gate = CLIENTS[name]
    stream = f"room-for-{name.replace(' ', '-')}"
    with limited(bound), kind(getattr(bound, gate)) as first:
        first.append("shop", stream, 1, an_event())
        with kind(getattr(bound, gate)) as second:
            for _ in range(2):
                with pytest.raises(Refused, match="shop is over its limit connections_max") as refused:
                    second.append("shop", stream, 2, an_event())
                assert refused.value.code == BUSY
            first.close()
            until(lambda: not bound.connections("shop"))
            second.append("shop", stream, 2, an_event())


def test_a_connection_too_many_of_remits_is_busy_and_is_let_in_when_there_is_room(bound: Bound) -> None:
    with limited(bound), Remits(bound.remits) as first:
        first.log_list()
        with Remits(bound.remits) as second, Remits(bound.remits) as third:
            for refused in (second, third):
                with pytest.raises(Failure) as failure:
                    refused.log_list()
                assert failure.value.code == REMITS_BUSY
            assert second.ask(TOKEN, {"token": bound.token("probe")}).kind == INFO
            first.close()
            until(lambda: not bound.connections("shop"))
            third.log_list()


def test_a_connection_with_a_token_takes_no_room_of_the_principal_of_its_gate(bound: Bound) -> None:
    url = f"penstock://{bound.mq}"
    with limited(bound), bound.root() as root:
        assert root.whoami().principal == "root"
        with penstock.connect(url, token="") as first, penstock.connect(url, token=bound.token("probe")) as other:
            # The second one is let in although the gate's principal has no room, since it shows a token.
            assert (first.whoami().principal, other.whoami().principal) == ("shop", "probe")
            assert bound.connections("shop") == 1
            with pytest.raises(OverLimit, match="connections_max"), penstock.connect(url, token="", timeout=1) as third:
                third.contexts()


def test_when_the_principal_is_revoked_its_gate_lets_nobody_do_anything(tmp_path: Path) -> None:
    with Bound(tmp_path / "data") as server, Rc01(server.res) as original, Remits(server.remits) as remits:
        original.append("shop", "s", 1, an_event())
        remits.log_add("visits")
        with server.root() as root:
            root.access.revoke("shop")
            # It is at the gate of a principal that is gone, and somebody else.
            root.append("shop", "s", [penstock.event("T")])
        until(remits.is_closed)
        # A ZeroMQ socket connects again by itself.
        with Rc01(server.res) as again:
            with pytest.raises(Refused, match="has not authenticated") as refused:
                again.append("shop", "s", 2, an_event())
            assert refused.value.code == NOT_ALLOWED
        with Remits(server.remits) as again, pytest.raises(Failure) as failure:
            again.log_list()
        assert failure.value.code == REMITS_NOT_ALLOWED


def test_a_closed_server_asks_original_clients_for_a_principal(tmp_path: Path) -> None:
    closed(tmp_path)
    with tested(tmp_path) as server:
        with Rc01(server.zmq_url.removeprefix("zmq+")) as original, pytest.raises(Refused) as refused:
            original.read("shop", "s")
        assert refused.value.code == NOT_ALLOWED
        with penstock.connect(server.url, token="") as client, pytest.raises(NotAuthenticated):
            client.read_event("shop", "s", 1)


def test_a_gate_cannot_stand_for_a_principal_that_does_not_exist(tmp_path: Path) -> None:
    data = f"--data {tmp_path}"
    add = f"add ann GRANT --no-token {data}"
    with pytest.raises(CannotListen) as refused:
        tested(tmp_path, mq_as="ann")
    first = f"make an administrator with penstock access init {data}, and then ann with penstock access {add}"
    assert str(refused.value).endswith(f"mq_as is ann, and there is no such principal; {first}")
    # What it says works while the server is down.
    for command in (f"init {data}", add.replace("GRANT", "read")):
        assert run("access", *command.split()).code == 0
    with tested(tmp_path, mq_as="ann") as server, penstock.connect(server.url, token="") as client:
        assert client.whoami().principal == "ann"
    with pytest.raises(CannotListen) as refused:
        tested(tmp_path, mq_as="eve")
    second = add.replace("add ann", "add eve")
    assert str(refused.value).endswith(f"no such principal; make it with penstock access {second}")
    file = tmp_path / "access.toml"
    file.write_text("")
    with pytest.raises(CannotListen, match=f"no such principal; add it to {file}"):
        tested(tmp_path, mq_as="ann", access_file=str(file))
