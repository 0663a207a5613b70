"""What all tests share: how hard Hypothesis tries, and one PostgreSQL for each process of a test run.

The tiers of the tests are in `tests.tiers`, the seed of a run in `tests.seeds`. `make test-all` has
Hypothesis try more examples; `make test ARGS=--hypothesis-profile=thorough` has it try very many.
"""

import gc
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests import tiers
from tests.postgres import Postgres, Schemas, postgres

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what runs in the background so, and whatever the tests start would be deaf to Ctrl-C as well.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Every run has a new seed, so a few examples each time are many in a week. A busy machine is no reason to fail.
# `print_blob`: what CI has found can be had here again.
settings.register_profile(
    "penstock", max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("more", settings.get_profile("penstock"), max_examples=100)
settings.register_profile("thorough", settings.get_profile("penstock"), max_examples=1000)

if settings.get_current_profile_name() in {"default", "ci"}:
    settings.load_profile("penstock")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(tiers)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    # Fifteen thousand collected tests are half a million objects that stay. Every full collection of garbage looked at
    # them all, which took a sixth of the CPU of a run, and a fifth of that of collecting the tests.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


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
