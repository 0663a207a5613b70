"""What all tests share: how hard Hypothesis tries, and one PostgreSQL for each process of a test run.

Hypothesis takes the same examples in every run. To look further: pytest --hypothesis-profile=thorough.
"""

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import Postgres, Schemas, postgres

# A busy machine is no reason to fail.
BUSY = [HealthCheck.too_slow]
settings.register_profile("penstock", deadline=None, suppress_health_check=BUSY, derandomize=True)
settings.register_profile("thorough", deadline=None, suppress_health_check=BUSY, max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[Postgres]:
    """Started when the first test asks for it."""
    with postgres() as started:
        yield started


@pytest.fixture(scope="session")
def all_schemas(postgres_server: Postgres) -> Schemas:
    return Schemas(postgres_server)


@pytest.fixture
def schemas(all_schemas: Schemas) -> Iterator[Schemas]:
    """Stores by place, all of them new."""
    yield all_schemas
    all_schemas.give_back()
