"""Two engines in this process on one PostgreSQL: what one does the other must know."""

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack

import pytest

from penstock.engine import Engine
from penstock.settings import Settings
from tests.engine.caller import Caller
from tests.engine.logs import Remits
from tests.nursery import fast_workers, nursery, real_workers
from tests.postgres import Schemas

__all__ = ["fast_workers", "nursery", "real_workers"]


@pytest.fixture
def url(schemas: Schemas) -> str:
    """A place for a new store."""
    return schemas.url()


@pytest.fixture
def settings() -> Settings:
    return Settings(workers=1, lua_workers=1)


@pytest.fixture
async def engines(url: str, settings: Settings) -> AsyncIterator[tuple[Engine, Engine]]:
    async with AsyncExitStack() as stack:
        one = await stack.enter_async_context(Engine(url, settings))
        two = await stack.enter_async_context(Engine(url, settings))
        yield one, two


@pytest.fixture
def callers(engines: tuple[Engine, Engine]) -> tuple[Caller, Caller]:
    one, two = engines
    return Caller(one), Caller(two)


@pytest.fixture
def clients(engines: tuple[Engine, Engine]) -> tuple[Remits, Remits]:
    one, two = engines
    return Remits(one), Remits(two)


@pytest.fixture
def an_engine(url: str, settings: Settings) -> Callable[[], Engine]:
    """One more on the same store, not started."""
    return lambda: Engine(url, settings)
