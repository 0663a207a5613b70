"""The PostgreSQL of a test run, by the names that tests of the store have for it."""

import pytest

from tests.postgres import Postgres, Schemas


@pytest.fixture(scope="session")
def server(postgres_server: Postgres) -> Postgres:
    return postgres_server


@pytest.fixture
def url(schemas: Schemas) -> str:
    """A place for a new store."""
    return schemas.url()
