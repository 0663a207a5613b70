"""`penstock pipeline run` on a real standalone cluster, and a worker that is killed in the middle."""

from pathlib import Path

import pytest

from penstock.model import new_event
from penstock.pipelines.scaffold import make_project
from tests.cluster.commands import BOTH, PENSTOCK, ended, options, standing_still, started, url_of
from tests.cluster.standalone import Cluster
from tests.lake.killing import until
from tests.pipelines.support import in_batches_of, positions, sell
from tests.pipelines.test_kills import committed
from tests.test_server import Served

pytestmark = pytest.mark.long

EVENTS, MISFITS, BATCH = 400, 20, 100


@pytest.mark.timeout(900)
def test_tables_have_every_event_once_when_a_worker_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    folder, data = tmp_path / "shop", tmp_path / "data"
    sell(data, 1, EVENTS, *(new_event("OrderPlaced", b"garbage") for _ in range(MISFITS)))
    with Served(data) as served:
        make_project(folder, url_of(served))
        in_batches_of(folder, BATCH)
        with started([*PENSTOCK, "pipeline", "run", str(folder), *options(cluster, BOTH)]) as running:
            until(lambda: committed(folder, "bronze") >= 0 or running.poll() is not None, "a batch")
            assert running.poll() is None, ended(running)
            with standing_still(served.process):
                cluster.kill_worker(2)
                assert len(positions(folder, "bronze")) < EVENTS + MISFITS
            code, out, err = ended(running)
    assert code == 0, err
    assert "bronze: completed, 420 rows (420 new)\n" in out
    everything = list(range(1, EVENTS + MISFITS + 1))
    assert positions(folder, "bronze") == everything
    assert positions(folder, "order_placed") == everything[:EVENTS]
    assert positions(folder, "quarantine") == everything[EVENTS:]
