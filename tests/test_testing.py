"""A server of one's own: it is a real one, it can be killed, and nothing is left of it."""

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock
from penstock.engine.metrics import PoolCounts
from penstock.errors import (
    CannotConnect,
    CannotListen,
    Closed,
    ConnectionLost,
    LimitExceeded,
    ReaderBusy,
    StorageFailure,
    StoreInUse,
)
from penstock.settings import BadSetting, Settings
from penstock.store import open_store, store_url
from penstock.testing import Server, server
from penstock.testing.harness import ThreadPool
from tests.test_server import PATIENCE_S, children, environment, until

pytest_plugins = ["penstock.testing.plugin"]

Url = Callable[[Server], str]
URLS = [pytest.param(lambda served: served.url, id="mq"), pytest.param(lambda served: served.zmq_url, id="zmq")]


def placed(number: int = 1) -> penstock.NewEvent:
    return penstock.event("OrderPlaced", {"number": number})


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture(scope="module", autouse=True)
def _what_a_process_opens_once_and_keeps() -> None:
    """Libraries open some files when they are first used; those are not what a server leaves behind."""
    with server() as served, penstock.connect(served.url) as client:
        client.append("shop", "order-1", [placed()])
        assert len(list(client.read_all())) == 1
        assert httpx.get(served.http + "/health").status_code == 200


@contextmanager
def nothing_stays_behind() -> Iterator[None]:
    """Threads, processes and open files are the same before and after."""
    threads, files, processes = set(threading.enumerate()), descriptors(), set(children(os.getpid()))
    yield
    until(lambda: set(threading.enumerate()) <= threads)
    until(lambda: descriptors() <= files)
    until(lambda: set(children(os.getpid())) <= processes)


# ---------------------------------------------------------------- the fixtures


def test_a_test_has_a_server_of_its_own(penstock_server: Server, tmp_path: Path) -> None:
    assert penstock_server.is_running
    assert penstock_server.data.parent == tmp_path
    with penstock.connect(penstock_server.url) as client:
        assert client.stats().head == 0


def test_a_test_has_a_client_of_its_server(penstock_client: penstock.Client, penstock_server: Server) -> None:
    penstock_client.append("shop", "order-1", [placed()], expected=penstock.NEW)
    with penstock.connect(penstock_server.zmq_url) as another:
        assert [event.json() for event in another.read_all()] == [{"number": 1}]


def test_the_fixtures_import_nothing_before_they_are_used() -> None:
    code = "import sys, penstock.testing.plugin; print(sorted(name for name in sys.modules if 'penstock' in name))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert result.stdout == "['penstock', 'penstock.lazy', 'penstock.testing', 'penstock.testing.plugin']\n"


def test_pytest_finds_the_fixtures_by_their_entry_point(tmp_path: Path) -> None:
    about = tmp_path / "installed-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: installed\nVersion: 1\n")
    # Under the name of its module: a test may also name it in `pytest_plugins`.
    (about / "entry_points.txt").write_text("[pytest11]\npenstock.testing.plugin = penstock.testing.plugin\n")
    (tmp_path / "test_found.py").write_text(
        'pytest_plugins = ["penstock.testing.plugin"]\n'
        "def test_it(penstock_client):\n    assert penstock_client.stats().head == 0\n"
    )
    paths = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}", str(tmp_path)]
    result = subprocess.run(
        command, capture_output=True, text=True, env={**environment(), "PYTHONPATH": paths}, timeout=PATIENCE_S
    )
    assert "1 passed" in result.stdout, result.stdout + result.stderr


# ---------------------------------------------------------------- what it is


@pytest.mark.parametrize("url", URLS)
def test_it_does_what_a_server_does(penstock_server: Server, url: Url) -> None:
    with penstock.connect(url(penstock_server)) as client:
        client.append_many(("shop", f"order-{number}", [placed(number)]) for number in range(100))
        assert {event.json()["number"] for event in client.read_all(context="shop")} == set(range(100))
        queue = client.queue("shop", "shipping")
        with queue.next() as batch:
            assert len(batch) == 100
        assert [event.sequence for event in client.subscription("list", context="shop", follow=False)] == [1] * 100
        with pytest.raises(penstock.errors.VersionConflict):
            client.append("shop", "order-1", [placed()], expected=penstock.NEW)


def test_it_serves_health_and_metrics_when_somebody_asks_where(penstock_server: Server) -> None:
    with penstock.connect(penstock_server.url):
        assert httpx.get(penstock_server.http + "/health").json()["status"] == "ok"
        assert len(httpx.get(penstock_server.http + "/sessions").json()["sessions"]) == 1
    penstock_server.restart()
    assert httpx.get(penstock_server.http + "/health").json()["status"] == "ok"


def test_it_has_logs_and_iterators(penstock_server: Server, penstock_client: penstock.Client) -> None:
    log, large = penstock_client.log("readings"), penstock_client.iterator("large")
    log.create()
    log.append([1, 20, 3, 40])
    large.create("readings", "filter", "return msg > 10")
    assert list(large) == [20, 40]
    penstock_server.kill()
    penstock_server.restart()
    assert list(large) == [20, 40]


def test_it_speaks_remits(penstock_server: Server) -> None:
    host, port = penstock_server.remits.split(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as connection:
        sessions = httpx.get(penstock_server.http + "/sessions").json()["sessions"]
        assert [session["id"] for session in sessions] == ["remits-1"]
        penstock_server.kill()
        with suppress(ConnectionResetError):
            assert connection.recv(1) == b""


def test_each_has_a_store_and_addresses_of_its_own() -> None:
    with server() as one, server() as other:
        assert len({one.url, other.url, one.zmq_url, other.zmq_url, str(one.data), str(other.data)}) == 6
        with penstock.connect(one.url) as client, penstock.connect(other.url) as another:
            client.append("shop", "order-1", [placed()])
            assert (client.stats().head, another.stats().head) == (1, 0)


def test_threads_may_have_one_each() -> None:
    def serve(number: int) -> int:
        with server() as served, penstock.connect(served.url) as client:
            client.append("shop", "order-1", [placed(number)])
            return sum(event.json()["number"] for event in client.read_all())

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(serve, range(8))) == list(range(8))


def test_it_owns_its_store(penstock_server: Server) -> None:
    with pytest.raises(StoreInUse), nothing_stays_behind():
        server(penstock_server.data)


def test_settings_go_by_their_names() -> None:
    too_large = [penstock.event("Large", bytes(2000))]
    with server(event_bytes_max="1KiB") as served, penstock.connect(served.url) as client, pytest.raises(LimitExceeded):
        client.append("shop", "order-1", too_large)


@pytest.mark.parametrize("wrong", [{"event_bytes": 7}, {"event_bytes_max": "much"}])
def test_a_wrong_setting_is_named_and_nothing_is_started(wrong: dict[str, Any]) -> None:
    with nothing_stays_behind(), pytest.raises(BadSetting, match=next(iter(wrong))):
        server(**wrong)


@pytest.mark.parametrize("gate", ["mq", "remits", "res"])
def test_an_address_in_use_is_named_and_nothing_is_started(
    penstock_server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: str
) -> None:
    taken = penstock_server.url.removeprefix("penstock://")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with nothing_stays_behind(), pytest.raises(CannotListen, match="in use"):
        server(**{gate: f"tcp://{taken}" if gate == "res" else taken})
    assert list(tmp_path.glob("penstock-*")) == []


# ---------------------------------------------------------------- killed and started again


@pytest.mark.parametrize("url", URLS)
def test_what_was_acknowledged_is_there_after_a_kill(penstock_server: Server, url: Url) -> None:
    with penstock.connect(url(penstock_server)) as client:
        client.append("shop", "order-1", [placed()], expected=1)
        penstock_server.kill()
        assert not penstock_server.is_running
        penstock_server.restart()
        client.append("shop", "order-1", [placed()], expected=2)
        assert [event.sequence for event in client.read_stream("shop", "order-1")] == [1, 2]


@pytest.mark.parametrize("url", URLS)
def test_nothing_is_lost_or_doubled_when_it_is_killed_amid_appends(penstock_server: Server, url: Url) -> None:
    sent, kills = 300, {60, 150, 240}

    def commits() -> Iterator[tuple[str, str, list[penstock.NewEvent]]]:
        for number in range(sent):
            if number in kills:
                threading.Thread(target=kill_and_restart).start()
            yield "shop", f"order-{number % 7}", [placed(number)]

    turns = threading.Lock()

    def kill_and_restart() -> None:
        with turns:
            penstock_server.kill()
            penstock_server.restart()

    with penstock.connect(url(penstock_server)) as client:
        client.append_many(commits(), in_flight=8)
        with turns:
            numbers = [event.json()["number"] for event in client.read_all()]
        assert sorted(numbers) == list(range(sent))


def test_a_kill_cuts_off_who_waits(penstock_server: Server) -> None:
    with ThreadPoolExecutor(1) as thread, penstock.connect(penstock_server.url, retries=False) as client:
        waiting = thread.submit(lambda: next(client.follow()))
        until(lambda: "penstock_waiting_polls 1.0" in httpx.get(penstock_server.http + "/metrics").text)
        penstock_server.kill()
        with pytest.raises(ConnectionLost):
            waiting.result(PATIENCE_S)


def test_nobody_is_there_after_a_kill(penstock_server: Server) -> None:
    penstock_server.kill()
    penstock_server.kill()
    with pytest.raises(CannotConnect):
        penstock.connect(penstock_server.url, timeout=0.1)
    with pytest.raises(Closed):
        _ = penstock_server.http


async def test_a_kill_waits_for_nobody_on_the_same_event_loop(penstock_server: Server) -> None:
    async with penstock.aconnect(penstock_server.url) as client:
        await client.append("shop", "order-1", [placed()])
        penstock_server.kill()
        penstock_server.restart()
        assert (await client.stats()).head == 1


def test_one_that_runs_is_stopped_before_it_is_started_again(penstock_server: Server) -> None:
    address = penstock_server.url
    with penstock.connect(address) as client:
        client.append("shop", "order-1", [placed()])
        penstock_server.restart()
        assert penstock_server.url == address
        assert client.stats().head == 1


# ---------------------------------------------------------------- what is left of it


@pytest.mark.parametrize("url", URLS)
@pytest.mark.parametrize("killed", [False, True])
def test_nothing_is_left_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: Url, killed: bool) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with nothing_stays_behind(), server() as served:
        with penstock.connect(url(served)) as client:
            client.append("shop", "order-1", [placed()])
            assert len(list(client.read_all())) == 1
            assert httpx.get(served.http + "/health").status_code == 200
        if killed:
            served.kill()
    assert list(tmp_path.iterdir()) == []
    served.close()


def test_a_client_that_is_still_there_does_not_keep_it() -> None:
    served = server()
    with penstock.connect(served.url) as client:
        with nothing_stays_behind_of(served):
            served.close()
        with pytest.raises(CannotConnect):
            client.append("shop", "order-1", [placed()], expected=1, timeout=0.1)


@contextmanager
def nothing_stays_behind_of(served: Server) -> Iterator[None]:
    yield
    assert not served.data.exists()
    assert not served.is_running


def test_a_store_in_a_given_place_stays(tmp_path: Path) -> None:
    for expected in (1, 2):
        with server(tmp_path / "kept") as served, penstock.connect(served.url) as client:
            client.append("shop", "order-1", [placed()], expected=expected)
    assert (tmp_path / "kept").is_dir()


# ---------------------------------------------------------------- its threads


async def pool_of(tmp_path: Path, **settings: int) -> ThreadPool:
    url = store_url(tmp_path / "store")
    open_store(url, stream_cache_max=10, wal_bytes_max=1 << 20).close()
    return ThreadPool(url, Settings(**settings), settings["workers"], PoolCounts())  # type: ignore[arg-type]


def identity_of(store: Any) -> int:
    return id(store)


def fail(_store: Any, error: Exception) -> None:
    raise error


async def test_a_connection_is_used_again_unless_its_job_left_it_in_doubt(tmp_path: Path) -> None:
    pool = await pool_of(tmp_path, workers=1)
    first = await pool.run(identity_of)
    with pytest.raises(ReaderBusy):
        await pool.run(fail, ReaderBusy(1))
    assert await pool.run(identity_of) == first
    assert pool._readers.qsize() == 1
    for error in (StorageFailure("the disk is gone"), ZeroDivisionError()):
        with pytest.raises(type(error)):
            await pool.run(fail, error)
        assert pool._readers.qsize() == 0
        await pool.run(identity_of)
    await pool.close()


async def test_too_many_reads_are_answered_busy(tmp_path: Path) -> None:
    pool = await pool_of(tmp_path, workers=1, reader_queue_max=1)
    go_on = threading.Event()
    begun = [pool.run(hold, go_on) for _ in range(2)]
    with pytest.raises(ReaderBusy):
        pool.run(hold, go_on)
    go_on.set()
    assert await asyncio.gather(*begun) == [True, True]
    await pool.close()
    with pytest.raises(Closed):
        pool.run(hold, go_on)


def hold(_store: Any, go_on: threading.Event) -> bool:
    return go_on.wait(PATIENCE_S)
