"""A real engine per test: its own directory, its own writer thread, its own worker processes."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.settings import Settings
from penstock.store import store_url
from tests.engine.caller import Caller
from tests.engine.logs import Remits
from tests.nursery import fast_workers, nursery, real_workers

__all__ = ["fast_workers", "nursery", "real_workers"]


@pytest.fixture
def settings() -> Settings:
    """What the engine is started with; a test module may override it. Turns come late on a busy machine."""
    return Settings(reader_wait_ms_max=60_000)


@pytest.fixture
async def engine(tmp_path: Path, settings: Settings) -> AsyncIterator[Engine]:
    async with Engine(store_url(tmp_path / "store"), settings) as running:
        yield running


@pytest.fixture
def caller(engine: Engine) -> Caller:
    return Caller(engine)


@pytest.fixture
def remits(engine: Engine) -> Remits:
    return Remits(engine)
