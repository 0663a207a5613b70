"""Commands that the other tests call in their own process, run for real: in a shell, their output in a pipe."""

import json
from pathlib import Path

import penstock
from penstock.testing import Server
from tests.cli.support import called, shell
from tests.postgres import Schemas
from tests.test_server import PENSTOCK


def test_what_is_listed_shown_and_deleted_goes_through_pipes(served: Server, client: penstock.Client) -> None:
    client.log("readings").create()
    client.log("readings").append([{"celsius": 4}])
    client.iterator("doubled").create("readings", "map", "return msg.celsius * 2")
    done = shell("penstock log list --json | cat && penstock iterator delete doubled | cat", served.url)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert json.loads(first)["iterators"] == ["doubled"]
    assert second == "deleted iterator doubled"


def test_connections_are_listed_and_cut_through_pipes(served: Server) -> None:
    at = f"--http {served.http.removeprefix('http://')}"
    wanted = "import json, sys; print(json.load(sys.stdin)[-1]['id'])"
    with penstock.connect(served.url) as client:
        client.stats()
        done = shell(f'penstock sessions --json {at} | python3 -c "{wanted}" | xargs {" ".join(PENSTOCK)} kick {at}')
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("kicked mq-")
    listed = called("sessions", *at.split())
    assert listed.code == 0
    assert done.out.removeprefix("kicked ").strip() not in listed.out


def test_a_store_is_backed_up_restored_and_moved_through_pipes(schemas: Schemas, tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    with penstock.connect(f"sqlite:///{data}") as client:
        client.append("shop", "s", [penstock.event("T"), penstock.event("T")])
    done = shell(
        f"penstock backup {backups} --data {data} | cat && penstock restore {backups} --data {tmp_path}/copy | cat && "
        f"penstock migrate-store {data} '{schemas.url()}' | cat"
    )
    assert (done.code, done.err) == (0, "")
    backed_up, restored, moved = done.out.splitlines()
    assert backed_up.startswith("backup 1: 2 new of 2 events, ")
    assert restored == "restored backup 1: 2 events, now on timeline 2, 0 erasures replayed"
    assert moved.startswith("moved 2 events and ")
