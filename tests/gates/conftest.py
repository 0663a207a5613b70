"""One server for each module of tests, and for each test a client and a context of its own.

Tests marked with `gates` run once over each of them, with the same meaning and errors: `res` is ZeroMQ, `mq` is Res01
in MqFrames, `mq-large` is Res01L. Others run over ZeroMQ.
"""

import itertools
from collections.abc import Iterator

import pytest

from tests.gates.mq_client import MqBinary
from tests.gates.res_client import Older, Rc01
from tests.gates.res_extensions import Extended
from tests.gates.serving import Served

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gates(*names): run over each of these gates: res, mq, mq-large")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("gates")
    if marker is not None and "gate" in metafunc.fixturenames:
        metafunc.parametrize("gate", marker.args)


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server that the tests of a module share; the module may name flags for it."""
    flags: tuple[str, ...] = getattr(request.module, "SERVER_FLAGS", ())
    with Served(tmp_path_factory.mktemp("served") / "data", *flags) as served:
        yield served
    assert "Traceback" not in served.said()


@pytest.fixture
def gate() -> str:
    """What a test's clients talk to, unless the test names others."""
    return "res"


@pytest.fixture
def client(server: Served, gate: str) -> Iterator[Extended]:
    with server.client(gate) as client:
        yield client


@pytest.fixture
def other(server: Served, gate: str) -> Iterator[Extended]:
    """Another client of the same server."""
    with server.client(gate) as client:
        yield client


@pytest.fixture
def binary(server: Served, gate: str) -> Iterator[Rc01]:
    with Rc01(server.res) if gate == "res" else MqBinary(server.mq) as connected:
        yield connected


@pytest.fixture
def older(server: Served) -> Iterator[Older]:
    with Older(server.res_legacy) as connected:
        yield connected


@pytest.fixture
def context() -> str:
    """The name of a context that no other test uses."""
    return f"shop-{next(_numbers):04}"
