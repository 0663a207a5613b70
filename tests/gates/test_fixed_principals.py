"""Gates that stand for a principal (`--res-as NAME`): original clients have exactly its rights."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import httpx
import pytest

import penstock
from penstock.errors import CannotListen, NotAllowed, NotAuthenticated
from penstock.testing import server as tested
from tests.cli.support import run
from tests.gates.mq_client import MqBinary, MqClient
from tests.gates.remits_client import Failure, Remits
from tests.gates.res_client import PATIENCE_S, Client, Older, Rc01, Res01, WithOriginalTag
from tests.gates.res_frames import Refused, an_event
from tests.gates.serving import Served, until
from tests.principals import closed

NOT_ALLOWED: Final = 12
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
