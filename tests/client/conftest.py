"""One suite over three URLs and both clients: servers and clients that all tests of a worker share.

A test gets a client and a context of its own; `connect` makes more clients of the same kind.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock import Client
from tests.client.driven import DrivenClient, driven_connect
from tests.gates.serving import Served

WAYS = ("penstock", "zmq+tcp", "sqlite")
NETWORKS = ("penstock", "zmq+tcp")
MAKERS: dict[str, Callable[..., Client]] = {"plain": penstock.connect, "loop": driven_connect}
Connect = Callable[..., Client]

_numbers = itertools.count(1)


class Way(NamedTuple):
    """How a test reaches its Penstock: the URL's scheme, and which client."""

    scheme: str
    flavour: str


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over(*schemes): run over these URLs only")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("over")
        ways = [Way(scheme, flavour) for scheme in (marker.args if marker else WAYS) for flavour in MAKERS]
        metafunc.parametrize("way", ways, ids=["-".join(way) for way in ways], scope="session")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that do it no harm."""
    with Served(tmp_path_factory.mktemp("served") / "data") as server:
        yield server
    assert "Traceback" not in server.said()


def url_of(served: Served, scheme: str) -> str:
    """Where a server is, over a gate."""
    return f"penstock://{served.mq}" if scheme == "penstock" else f"zmq+{served.res}"


@pytest.fixture(scope="session")
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Way], Client]]:
    """One client of each kind. That of an embedded store is the only one that it can have."""
    clients: dict[Way, Client] = {}

    def client(way: Way) -> Client:
        if way not in clients:
            if way.scheme == "sqlite":
                url = f"sqlite:///{tmp_path_factory.mktemp('embedded')}"
            else:
                url = url_of(request.getfixturevalue("served"), way.scheme)
            clients[way] = MAKERS[way.flavour](url)
        return clients[way]

    yield client
    for each in clients.values():
        end(each)


def end(client: Client) -> None:
    """Close a client and whatever a test has put around it."""
    if isinstance(client, DrivenClient):
        client.end()
    else:
        client.close()


@pytest.fixture
def client(way: Way, shared: Callable[[Way], Client]) -> Client:
    return shared(way)


@pytest.fixture
def connect(way: Way) -> Iterator[Connect]:
    """Connects to a URL with the client that the test is for; what is still open is closed in the end."""
    made: list[Client] = []

    def make(url: str, **options: Any) -> Client:
        made.append(MAKERS[way.flavour](url, **options))
        return made[-1]

    yield make
    for each in made:
        end(each)


@pytest.fixture
def other(client: Client, way: Way, connect: Connect) -> Client:
    """Another client of the same store; the same one where a store can have only one."""
    return client if way.scheme == "sqlite" else connect(client.url)


@pytest.fixture
def url(way: Way, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a client can connect to: the shared server, or a store of the test's own."""
    if way.scheme == "sqlite":
        return f"sqlite:///{tmp_path / 'own'}"
    return url_of(request.getfixturevalue("served"), way.scheme)


@pytest.fixture
def context() -> str:
    """The name of a context that no other test uses."""
    return f"shop-{next(_numbers):04}"
