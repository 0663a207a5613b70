"""How far queues and subscriptions are behind: in lists, and as metrics."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from penstock.engine import Engine, jobs, lags
from penstock.engine.lags import LagCollector, Lags
from penstock.errors import ReaderBusy
from penstock.gates.http import HttpGate
from penstock.model import ListPage, ListQueues, ListSubscriptions, QueueInfo, Right
from penstock.store.contract import DeclareQueue
from penstock.store.sqlite import SqliteStore
from tests.engine.caller import Caller, events, principal
from tests.engine.logs import until
from tests.store.kit import append, do_one, some


@pytest.fixture
async def http(engine: Engine) -> AsyncIterator[httpx.AsyncClient]:
    gate = HttpGate(engine)
    await gate.start()
    async with httpx.AsyncClient(base_url=f"http://{gate.address}", timeout=30) as client:
        yield client
    await gate.stop()


@pytest.fixture
async def consumers(caller: Caller) -> Caller:
    """A queue that has taken one of three events, a subscription to two of them, and 50 events of others."""
    await caller.append("s-1", events("a", "b"))
    await caller.append("t-1", events("c"))
    await caller.append("s-1", events(*"x" * 50), context="else")
    await caller.subscribe("one", 1)
    await caller.register("me", "s-")
    return caller


async def scraped(http: httpx.AsyncClient) -> dict[str, float]:
    """The metrics of lags."""
    text = (await http.get("/metrics")).text
    found = re.findall(r"^(penstock_\w*lag\w*_(?:events|seconds|exact|out)(?:\{.*\})?) (\S+)$", text, re.MULTILINE)
    return {name: float(value) for name, value in found if "seal" not in name}


async def test_a_list_says_how_many_events_are_left_and_since_when(consumers: Caller) -> None:
    (queue,) = (await consumers.ask(ListPage, ListQueues())).items
    (subscription,) = (await consumers.ask(ListPage, ListSubscriptions())).items
    assert (queue.behind, queue.behind_is_exact, queue.allocated) == (2, True, 1)
    assert (subscription.behind, subscription.behind_is_exact) == (2, True)
    assert 0 <= queue.behind_ms <= subscription.behind_ms + 1000 < 60_000


async def test_lags_are_metrics(consumers: Caller, http: httpx.AsyncClient) -> None:
    found = await scraped(http)
    for labels in (
        'queue_lag_{}{{context="shop",queue="q"}}',
        'subscription_lag_{}{{context="shop",filter="s-",subscriber="me"}}',
    ):
        number, exact, seconds = (
            found.pop(f"penstock_{labels.format(what)}") for what in ("events", "exact", "seconds")
        )
        assert (number, exact) == (2, 1)
        assert 0 <= seconds < 60
    assert found == {"penstock_lags_left_out": 0}


async def test_scrapes_of_some_seconds_share_one_count(
    engine: Engine, consumers: Caller, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = engine.metrics.readers.jobs
    first, *others = await asyncio.gather(*(scraped(http) for _ in range(5)))
    assert all(other == first for other in others)
    # One for queues, one for subscriptions, and one for watermarks, which are shared too.
    assert engine.metrics.readers.jobs == before + 3
    monkeypatch.setattr(engine.lags, "_due", 0.0)
    await consumers.append("s-2", events("d"))
    await scraped(http)
    assert engine.metrics.readers.jobs == before + 5


async def test_so_many_queues_have_metrics_and_no_more(
    consumers: Caller, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lags, "LAGS_MAX", 2)
    for name in ("q2", "q3"):
        await consumers.subscribe("one", 1, queue=name)
    found = await scraped(http)
    assert sum(name.startswith("penstock_queue_lag_events") for name in found) == 2
    assert found["penstock_lags_left_out"] == 1


async def test_without_workers_metrics_go_on_without_lags(
    engine: Engine, consumers: Caller, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(*_: object) -> None:
        raise ReaderBusy(1)

    with monkeypatch.context() as patched:
        patched.setattr(engine.pool, "run", busy)
        answer = await http.get("/metrics")
        assert (answer.status_code, "penstock_store_up 1.0" in answer.text) == (200, True)
        assert await scraped(http) == {}
    monkeypatch.setattr(engine.lags, "_due", 0.0)
    assert await scraped(http) != {}


async def test_a_scrape_does_not_wait_for_a_slow_count(
    engine: Engine, consumers: Caller, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = await scraped(http)
    run, may_run = engine.pool.run, asyncio.Event()

    async def slow(*arguments: object) -> object:
        await may_run.wait()
        return await run(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lags, "WAIT_S_MAX", 0.01)
    monkeypatch.setattr(engine.pool, "run", slow)
    monkeypatch.setattr(engine.lags, "_due", 0.0)
    await consumers.append("s-2", events("d"))
    assert await scraped(http) == known
    may_run.set()
    await until(lambda: engine.lags._counting is None)
    assert await scraped(http) != known


def test_a_principal_gets_metrics_of_what_it_may_see() -> None:
    queues = [QueueInfo(n, context, "q", "", 1, 5, 0, 0, 0, 0, None, True, 0) for n, context in enumerate(("a", "b"))]
    view = principal("eve", "read:a").views[Right.READ]
    found = [
        sample.labels["context"]
        for family in LagCollector(Lags(queues, [], True), view).collect()
        for sample in family.samples
        if sample.name == "penstock_queue_lag_events"
    ]
    assert found == ["a"]


def test_a_page_of_lags_ends_when_its_time_is_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqliteStore(tmp_path)
    append(store, "s", some(3))
    for name in ("a", "b", "c"):
        do_one(store, DeclareQueue("shop", name, "", 1))
    monkeypatch.setattr(jobs, "STEP_S_MAX", -1.0)
    names: list[str] = []
    after, end = 0, False
    while not end:
        page = jobs.list_queues(store, ListQueues(after), 100, None)
        (info,) = page.items
        assert (info.behind, info.behind_is_exact) == (3, True)
        names.append(info.name)
        after, end = info.id, page.end
    assert names == ["a", "b", "c"]
    store.close()
