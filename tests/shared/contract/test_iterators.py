"""What the engine promises of iterators, on PostgreSQL: the same tests."""

import os
from collections.abc import AsyncIterator

import pytest_asyncio

from penstock.engine import Engine
from penstock.settings import Settings
from tests.engine.test_iterators import *  # noqa: F403
from tests.postgres import Postgres


@pytest_asyncio.fixture(scope="module", loop_scope="module")  # type: ignore[no-redef]
async def engine(postgres_server: Postgres) -> AsyncIterator[Engine]:
    async with Engine(postgres_server.url(f"iterators_{os.getpid()}"), Settings()) as running:
        yield running
