"""One cluster for all tests that need one; `tests.scheduling` has them run in one process."""

from collections.abc import Iterator

import pytest

from tests.cluster.standalone import Cluster, standalone


@pytest.fixture(scope="session")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with standalone(tmp_path_factory.mktemp("cluster")) as started:
        yield started


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """The cluster, with all of its workers."""
    shared_cluster.mend()
    return shared_cluster
