"""Staging in the engine: its limits, and what becomes of jobs that nobody publishes."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.engine import staging as staged
from penstock.errors import InvalidRequest, LimitExceeded, OverLimit, StageLost
from penstock.model import (
    ANONYMOUS,
    EventPage,
    Grant,
    Limits,
    Principal,
    ProducerMark,
    Published,
    PublishStages,
    ReadAll,
    StageEvents,
    Winner,
    new_event,
    now_ticks,
)
from penstock.model.times import TICKS_PER_MS
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.stages import make_unit

SETTINGS = Settings(workers=1, stage_bytes_max=4096, stage_units_max=3, commit_events_max=4, event_bytes_max=2000)
PUBLISH = PublishStages("job", (Winner(0, "a", 1),), ProducerMark("job", 1))


def staging(events: int = 1, size: int = 10, units: int = 1, number: int = 0) -> StageEvents:
    unit = make_unit("shop", "s", [new_event("T", b"x" * size) for _ in range(events)])
    return StageEvents("job", 0, "a", number, (unit,) * units)


@pytest.mark.parametrize(
    ("request_", "limit"),
    [
        (staging(events=4097), "unit_events_max"),
        (staging(size=2001), "event_bytes_max"),
        (staging(events=5, size=1000), "stage_bytes_max"),
        (staging(units=4), "stage_units_max"),
    ],
)
async def test_a_job_may_stage_only_so_much(tmp_path: Path, request_: StageEvents, limit: str) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        with pytest.raises(LimitExceeded) as caught:
            await engine.execute(ANONYMOUS, request_)
        assert caught.value.limit == limit
        with pytest.raises(StageLost):
            await engine.execute(ANONYMOUS, PUBLISH)


async def test_a_principal_may_stage_only_so_much_in_all_its_jobs(tmp_path: Path) -> None:
    loader = Principal("loader", (Grant.of("append:shop"),), Limits(staged_bytes_max=1000))
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(loader, staging(size=500))
        with pytest.raises(OverLimit) as caught:
            await engine.execute(loader, replace(staging(size=500), job="another"))
        assert (caught.value.principal, caught.value.limit, caught.value.maximum) == (
            "loader",
            "staged_bytes_max",
            1000,
        )
        await engine.execute(replace(loader, name="other"), staging(size=500))


async def test_too_many_units_or_winners_in_one_request_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staged, "REQUEST_UNITS_MAX", 1)
    monkeypatch.setattr(staged, "WINNERS_MAX", 1)
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        for request in (staging(units=2), replace(PUBLISH, winners=PUBLISH.winners * 2)):
            with pytest.raises(LimitExceeded):
                await engine.execute(ANONYMOUS, request)


async def test_an_origin_is_a_name_or_nothing(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, staging())
        for origin in ("\udc00", "x" * 513):
            with pytest.raises(InvalidRequest, match="origin"):
                await engine.execute(ANONYMOUS, replace(PUBLISH, origin=origin))
        assert await engine.execute(ANONYMOUS, PUBLISH) == Published(1, 1, 1)


async def test_what_is_never_published_expires(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, staging())
        await engine._forget_idle(now_ticks())
        await engine.execute(ANONYMOUS, staging(number=1))
        await engine._forget_idle(now_ticks() + SETTINGS.stage_idle_ms_max * TICKS_PER_MS + 1)
        with pytest.raises(StageLost):
            await engine.execute(ANONYMOUS, replace(PUBLISH, winners=(Winner(0, "a", 2),)))


async def test_a_lost_stage_is_told_by_the_name_that_the_client_gave(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        with pytest.raises(StageLost) as caught:
            await engine.execute(Principal("loader", (Grant.of("append:shop"),)), PUBLISH)
        assert caught.value.job == PUBLISH.job


async def test_metrics_and_those_who_wait_hear_of_a_publication(tmp_path: Path) -> None:

    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        waiting = asyncio.ensure_future(engine.execute(ANONYMOUS, ReadAll(1, "shop", wait_ms=60_000)))
        await engine.execute(ANONYMOUS, staging(events=2))
        assert await engine.execute(ANONYMOUS, PUBLISH) == Published(1, 1, 2)
        page = await waiting
        assert isinstance(page, EventPage)
        assert len(page.events) == 2
        assert (engine.metrics.commits, engine.metrics.events) == (1, 2)
