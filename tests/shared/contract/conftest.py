"""The engine on PostgreSQL, by the names that the engine's own tests have for it."""

from collections.abc import AsyncIterator

import pytest

from penstock.engine import Engine
from penstock.settings import Settings
from tests.engine.caller import Caller


@pytest.fixture
async def engine(url: str, settings: Settings) -> AsyncIterator[Engine]:
    async with Engine(url, settings) as running:
        yield running


@pytest.fixture
def caller(engine: Engine) -> Caller:
    return Caller(engine)
