"""`penstock iterator build` on a real standalone cluster, and a worker that is killed in the middle."""

from pathlib import Path

import pytest

from penstock.testing import server
from tests.cluster.commands import BOTH, SMALL_RANGES, ended, options, standing_still, started
from tests.cluster.standalone import Cluster
from tests.lake.killing import until
from tests.spark.build_kit import Held, Place, held
from tests.spark.sink_targets import PENSTOCK, Target

pytestmark = pytest.mark.long

__all__ = ["held"]

MESSAGES = 20_000
SLOW = "if msg % 10 == 0 then for step = 1, 40000 do end end return msg * 2"
"""It takes a second for all of them: long enough to be killed in."""


@pytest.mark.timeout(900)
def test_an_index_whose_build_loses_a_worker_is_the_one_that_the_server_builds(
    cluster: Cluster, held: Held, tmp_path: Path
) -> None:
    held("double")
    with server(tmp_path / "data") as served:
        place = Place(Target(PENSTOCK, served.url, served.data))
        with place.client() as client:
            client.log("numbers").create()
            for first in range(0, MESSAGES, 5000):
                client.log("numbers").append(list(range(first, first + 5000)))
            client.iterator("double").create("numbers", "map", SLOW, indexed=True)
        build = [*SMALL_RANGES, "iterator", "build", "double", "--url", served.url, *options(cluster, BOTH)]
        with started(build, tmp_path) as building:
            until(lambda: bool(place.target.staged()) or building.poll() is not None, "the first part")
            assert building.poll() is None, ended(building)
            # Parts are staged by others, but it is this process that installs them.
            with standing_still(building):
                cluster.kill_worker(3)
                assert place.output("double") == []
            code, out, err = ended(building)
        assert code == 0, err
        assert out.startswith("20,000 messages read, 20,000 items added (")
        assert out.endswith("; iterator double has 20,000 items\n")
        assert place.target.staged() == []
        held.release()
        with place.client() as client:
            client.iterator("too").create("numbers", "map", SLOW, indexed=True)
            assert client.iterator("too").next(MESSAGES - 1, 1)
            client.log("numbers").append([MESSAGES])
            assert client.iterator("double").next(MESSAGES, 1) == client.iterator("too").next(MESSAGES, 1)
        assert place.output("double")[:MESSAGES] == place.output("too")[:MESSAGES]
