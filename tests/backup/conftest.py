"""Tests that ask for `stores` run on every backend."""

from pathlib import Path

import pytest

from tests.backup.support import PostgresStores, Stores


@pytest.fixture(params=["sqlite", "postgres"])
def stores(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    if request.param == "sqlite":
        return Stores(tmp_path)
    return PostgresStores(tmp_path, request.getfixturevalue("schemas"))
