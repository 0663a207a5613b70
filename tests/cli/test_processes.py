"""Commands that the other tests call in their own process, run for real: in a shell, their output in a pipe."""

import json
from pathlib import Path

import penstock
from penstock.testing import Server
from tests.cli.support import shell
from tests.postgres import Schemas
from tests.test_server import PENSTOCK


def test_what_is_listed_shown_and_deleted_goes_through_pipes(served: Server, client: penstock.Client) -> None:
    client.log("readings").create()
    client.log("readings").append([{"celsius": 4}])
    client.iterator("doubled").create("readings", "map", "return msg.celsius * 2")
    done = shell(
        "penstock log list --json | cat && penstock log show readings | cat && "
        "penstock iterator list --json | cat && penstock iterator show doubled | cat && "
        "penstock iterator delete doubled | cat",
        served.url,
    )
    assert (done.code, done.err) == (0, "")
    first, *shown = done.out.splitlines()
    assert json.loads(first)["iterators"] == ["doubled"]
    assert shown[0] == "log        readings"
    assert json.loads(shown[4])["iterator"] == "doubled"
    assert "function  return msg.celsius * 2" in shown
    assert shown[-1] == "iterator doubled is deleted"


def test_connections_are_listed_and_cut_through_pipes(served: Server) -> None:
    at = f"--http {served.http.removeprefix('http://')}"
    wanted = "import json, sys; print(json.load(sys.stdin)[-1]['id'])"
    with penstock.connect(served.url) as client:
        client.stats()
        done = shell(f'penstock sessions --json {at} | python3 -c "{wanted}" | xargs {" ".join(PENSTOCK)} kick {at}')
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith("kicked mq-")
    listed = shell(f"penstock sessions {at} | cat")
    assert listed.code == 0
    assert done.out.removeprefix("kicked ").strip() not in listed.out


def test_a_store_is_looked_at_backed_up_and_moved_through_pipes(schemas: Schemas, tmp_path: Path) -> None:
    data, backups = tmp_path / "data", tmp_path / "backups"
    with penstock.connect(f"sqlite:///{data}") as client:
        client.append("shop", "s", [penstock.event("T")])
    done = shell(
        f"penstock doctor --data {data} --json | cat && penstock backup {backups} --data {data} | cat && "
        f"penstock backups {backups} --json | cat && penstock migrate-store {data} '{schemas.url()}' | cat"
    )
    assert (done.code, done.err) == (0, "")
    decoder = json.JSONDecoder()
    examined, end = decoder.raw_decode(done.out)
    assert [check["status"] for check in examined["checks"] if check["check"] == "store"] == ["ok"]
    backed_up, _, rest = done.out[end:].lstrip().partition("\n")
    assert backed_up.startswith("backup 1: 1 new of 1 event, ")
    listed, end = decoder.raw_decode(rest)
    assert [(backup["number"], backup["head"]) for backup in listed] == [(1, 1)]
    assert rest[end:].strip().startswith("moved 1 event and ")
