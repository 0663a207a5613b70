"""One PostgreSQL for each process of a test run, started when the first test asks for it."""

from collections.abc import Iterator

import pytest

from tests.postgres import Postgres, Schemas, postgres


@pytest.fixture(scope="session")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture(scope="session")
def all_schemas(server: Postgres) -> Schemas:
    return Schemas(server)


@pytest.fixture
def schemas(all_schemas: Schemas) -> Iterator[Schemas]:
    """Stores by place, all of them new."""
    yield all_schemas
    all_schemas.give_back()


@pytest.fixture
def url(schemas: Schemas) -> str:
    """A place for a new store."""
    return schemas.url()
