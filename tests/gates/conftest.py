"""One server for each module of tests, and for each test a client and a context of its own."""

import itertools
from collections.abc import Iterator

import pytest

from tests.gates.res_client import Older, Rc01
from tests.gates.res_extensions import Extended
from tests.gates.serving import Served

_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that the tests of a module share; the module may name flags for it."""
    flags: tuple[str, ...] = getattr(request.module, "SERVER_FLAGS", ())
    with Served(tmp_path_factory.mktemp("served") / "data", *flags) as served:
        yield served
    assert "Traceback" not in served.said()


@pytest.fixture
def client(server: Served) -> Iterator[Extended]:
    with Extended(server.res) as connected:
        yield connected


@pytest.fixture
def other(server: Served) -> Iterator[Extended]:
    """Another client of the same server."""
    with Extended(server.res) as connected:
        yield connected


@pytest.fixture
def binary(server: Served) -> Iterator[Rc01]:
    with Rc01(server.res) as connected:
        yield connected


@pytest.fixture
def older(server: Served) -> Iterator[Older]:
    with Older(server.res_legacy) as connected:
        yield connected


@pytest.fixture
def context() -> str:
    """The name of a context that no other test uses."""
    return f"shop-{next(_numbers):04}"
