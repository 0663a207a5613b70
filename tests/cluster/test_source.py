"""The data source and the sink on a real standalone cluster, through a server and on PostgreSQL, executors killed.

Executors know nothing but the URL: the store of the server is in a directory that is never told to them.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.model import EventFilter
from penstock.store import store_url
from penstock.testing import server
from tests.cluster.commands import BOTH, ended, started
from tests.cluster.source_driver import COPIED
from tests.cluster.standalone import SMALL_APPLICATION, Cluster
from tests.lake.killing import until
from tests.postgres import Schemas
from tests.spark.support import counted, fill, history

pytestmark = pytest.mark.long

EVENTS = 20_000
PARTS = 5
"""A partition ends where a block of 4,096 positions does."""
CONF = {**SMALL_APPLICATION, **BOTH, "spark.ui.enabled": "false", "spark.log.level": "ERROR"}


def begun(folder: Path) -> int:
    """How many attempts are in the middle of their rows."""
    return len(list(folder.glob("begun-*")))


def kill_in_the_middle(cluster: Cluster, driver: "subprocess.Popen[str]", folder: Path) -> None:
    """Kill an executor while both are at work, and let the others go on."""
    until(lambda: begun(folder) == 2 or driver.poll() is not None, "the first two tasks")
    assert driver.poll() is None, ended(driver)
    cluster.kill_executor(3)
    (folder / "go").touch()


@pytest.mark.timeout(900)
def test_copies_whose_executors_are_killed_in_the_middle_have_every_event_once(
    cluster: Cluster, tmp_path: Path, schemas: Schemas
) -> None:
    commits = [("shop", f"s-{number % 7}", counted(500, start=number * 500)) for number in range(EVENTS // 500)]
    data, shared = tmp_path / "data", fill(schemas.url(tmp_path), commits)
    fill(data, commits)
    folders = [tmp_path / "served", tmp_path / "shared"]
    for folder in folders:
        folder.mkdir()
    with server(data) as served:
        copies = list(zip((served.url, shared), map(str, folders), strict=True))
        plan = tmp_path / "plan.json"
        plan.write_text(json.dumps({"master": cluster.master, "conf": CONF, "copies": copies}))
        with started([sys.executable, "-m", "tests.cluster.source_driver", str(plan)]) as driver:
            for folder in folders:
                kill_in_the_middle(cluster, driver, folder)
            code, out, err = ended(driver)
    assert code == 0, err
    whole = {"parts": PARTS, "read": [EVENTS, EVENTS, EVENTS * (EVENTS + 1) // 2]}
    assert [json.loads(line) for line in out.splitlines()] == [whole, whole]
    for place in (store_url(data), shared):
        assert by_stream(place, COPIED) == by_stream(place, "shop")


def by_stream(place: str, context: str) -> dict[str, list[bytes]]:
    """What a context has, in the order of each stream."""
    found: dict[str, list[bytes]] = {}
    for event in history(place, EventFilter(context)):
        found.setdefault(event.stream, []).append(event.body)
    return found
