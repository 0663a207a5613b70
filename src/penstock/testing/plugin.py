"""Fixtures for pytest: a server for one test, and a client of it."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from penstock import Client
    from penstock.testing import Server


@pytest.fixture
def penstock_server(tmp_path: Path) -> "Iterator[Server]":
    """A Penstock server for this test alone, with its store in `tmp_path`."""
    from penstock.testing import server  # noqa: PLC0415

    with server(tmp_path / "penstock") as served:
        yield served


@pytest.fixture
def penstock_client(penstock_server: "Server") -> "Iterator[Client]":
    """A client of the test's server."""
    from penstock import connect  # noqa: PLC0415

    with connect(penstock_server.url) as client:
        yield client
