"""Workers: every event gets its outcome, and whatever stops a worker leaves nothing held."""

import asyncio
import contextlib
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry, generate_latest

import penstock
from penstock import AsyncClient, AsyncWorker, Bury, Client, Event, RetryLater, RetryPolicy, Worker, current_attempt
from penstock.client import WorkerCounts, worker
from penstock.errors import ClientClosed, InvalidRequest, QueueFilterMismatch
from penstock.testing import Server
from tests.client.conftest import WAYS
from tests.client.support import fill, some
from tests.client.test_closing import nothing_left
from tests.client.test_leases import on_loop
from tests.client.test_outcomes import AT_ONCE, info_of
from tests.gates.serving import until
from tests.test_server import PATIENCE_S, environment


class Log:
    """What a handler was given; at the last of so many calls it stops its worker."""

    def __init__(self, calls: int) -> None:
        self.calls = calls
        self.seen: list[tuple[int, int]] = []
        self.worker: Worker | AsyncWorker | None = None
        self._lock = threading.Lock()

    def note(self, event: Event) -> None:
        with self._lock:
            self.seen.append((event.json(), current_attempt()))
            if len(self.seen) == self.calls and self.worker is not None:
                self.worker.stop()


def failing(log: Log) -> Callable[[Event], None]:
    """A handler to which the number of an event says what to do."""

    def handle(event: Event) -> None:
        log.note(event)
        if event.json() == 2 and current_attempt() < 3:
            raise ValueError("not yet")
        if event.json() == 3:
            raise Bury("no customer")
        if event.json() == 4 and current_attempt() == 1:
            raise RetryLater("busy", delay=0)
        if event.json() == 5:
            raise RetryLater("tomorrow", delay=86_400)

    return handle


def left(client: Client, context: str) -> list[tuple[int, int]]:
    """What a queue still has to deliver: the number of each event, and which attempt this is."""
    found: list[tuple[int, int]] = []
    while batch := client.queue(context, "work").take():
        found += [(one.json(), batch.attempt(one)) for one in batch]
    return sorted(found)


SEEN = Counter([(1, 1), (2, 1), (2, 2), (2, 3), (3, 1), (4, 1), (4, 2), (5, 1), (6, 1)])
COUNTS = (4, 4, 1, 0, 0)


def outcomes(counts: WorkerCounts) -> tuple[int, ...]:
    return counts.acknowledged, counts.retried, counts.buried, counts.lost, counts.in_progress


@pytest.mark.over(*WAYS)
@pytest.mark.parametrize("concurrency", [1, 3])
def test_each_event_gets_the_outcome_that_the_handler_gives_it(client: Client, context: str, concurrency: int) -> None:
    fill(client, context, "s", 6)
    log = Log(sum(SEEN.values()))
    queue = client.queue(context, "work", retry=AT_ONCE)
    log.worker = Worker(queue, failing(log), concurrency=concurrency)
    counts = log.worker.run()
    assert Counter(log.seen) == SEEN
    assert outcomes(counts) == COUNTS
    assert counts.seconds > 0
    info = info_of(client, context)
    assert (info.behind, info.allocated, info.delayed, info.dead) == (0, 0, 1, 1)
    assert [one.reason for one in queue.dead_letters()] == ["no customer"]


def test_each_event_gets_the_outcome_that_the_handler_gives_it_on_a_loop(url: str, other: Client, context: str) -> None:
    fill(other, context, "s", 6)
    log = Log(sum(SEEN.values()))
    handle = failing(log)

    async def work(client: AsyncClient) -> None:
        async def handler(event: Event) -> None:
            await asyncio.sleep(0)
            handle(event)

        log.worker = AsyncWorker(client.queue(context, "work", retry=AT_ONCE), handler, concurrency=2)
        assert outcomes(await log.worker.run()) == COUNTS

    on_loop(url, work)
    assert Counter(log.seen) == SEEN


def test_handlers_work_side_by_side(client: Client, context: str) -> None:
    fill(client, context, "s", 40)
    together = threading.Barrier(4, timeout=PATIENCE_S)
    log = Log(40)

    def handle(event: Event) -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            together.wait()
        together.abort()
        log.note(event)

    log.worker = Worker(client.queue(context, "work"), handle, concurrency=4)
    assert log.worker.run().acknowledged == 40
    assert {number for number, _ in log.seen} == set(range(1, 41))


def test_events_of_one_stream_stay_in_order_whatever_fails(client: Client, context: str) -> None:
    for number in range(1, 11):
        for stream in ("a", "b", "c"):
            client.append(context, stream, some(1, number))
    done: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    running = Counter[str]()

    def handle(event: Event) -> None:
        running[event.stream] += 1
        assert running[event.stream] == 1
        try:
            if event.json() % 4 == 0 and current_attempt() < 3:
                raise ValueError("again")
            done[event.stream].append(event.json())
            if sum(map(len, done.values())) == 30:
                made.stop()
        finally:
            running[event.stream] -= 1

    made = Worker(client.queue(context, "work", ordered="stream", retry=AT_ONCE), handle, concurrency=3)
    counts = made.run()
    assert done == {stream: list(range(1, 11)) for stream in "abc"}
    assert (counts.acknowledged, counts.retried) == (30, 12)


def test_a_slow_consumer_gives_back_what_others_can_do(
    client: Client, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "HOLD_S_MAX", 0.0)
    fill(client, context, "s", 6)
    lost = client.queue(context, "work")
    lost.release(lost.take(), delay=0)
    log = Log(6)
    log.worker = Worker(client.queue(context, "work"), log.note)
    counts = log.worker.run()
    # They come again together, as they were, and still each of them is tried once.
    assert log.seen == [(number, 2) for number in range(1, 7)]
    assert (counts.acknowledged, counts.given_back) == (6, 5 + 4 + 3 + 2 + 1)


# ---------------------------------------------------------------- stopping

PROGRAM = """
import sys, time
import penstock

def handle(event):
    print(event.json(), flush=True)
    sys.stdin.readline()

with penstock.connect(sys.argv[1]) as client:
    queue = client.queue(sys.argv[2], "work", dead_after=1)
    print(penstock.run_worker(queue, handle, concurrency=int(sys.argv[3])).acknowledged)
"""
ASYNC_PROGRAM = """
import asyncio, sys
import penstock

async def handle(event):
    print(event.json(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)

async def main():
    async with penstock.aconnect(sys.argv[1]) as client:
        queue = client.queue(sys.argv[2], "work", dead_after=1)
        print((await penstock.run_worker(queue, handle, concurrency=int(sys.argv[3]))).acknowledged)

asyncio.run(main())
"""


@contextlib.contextmanager
def program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("code", [PROGRAM, ASYNC_PROGRAM], ids=["plain", "loop"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_event_at_hand_finish(
    client: Client, context: str, code: str, number: signal.Signals
) -> None:
    fill(client, context, "s", 20)
    # One event is taken first; then two at once.
    with program(code, client.url, context, 1) as process:
        assert process.stdin
        assert process.stdout
        for wanted in ("1\n", "2\n"):
            assert process.stdout.readline() == wanted
            if wanted == "1\n":
                process.stdin.write("\n")
                process.stdin.flush()
        process.send_signal(number)
        # It may take a moment until the signal is noticed.
        out, err = process.communicate("\n\n\n", timeout=PATIENCE_S)
    *_, acknowledged = map(int, out.split())
    assert (err, process.returncode) == ("", 0)
    assert acknowledged >= 2
    info = info_of(client, context)
    assert (info.allocated, info.dead) == (0, 0)
    assert left(client, context) == [(number, 1) for number in range(acknowledged + 1, 21)]


@pytest.mark.parametrize("code", [PROGRAM, ASYNC_PROGRAM], ids=["plain", "loop"])
def test_a_second_signal_gives_the_event_at_hand_back(client: Client, context: str, code: str) -> None:
    fill(client, context, "s", 2)
    with program(code, client.url, context, 2) as process:
        assert process.stdout
        assert {process.stdout.readline() for _ in range(2)} == {"1\n", "2\n"}
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        until(lambda: info_of(client, context).allocated == 0)
        process.communicate("\n\n", timeout=PATIENCE_S)
    assert left(client, context) == [(1, 1), (2, 1)]


def test_what_a_handler_does_after_the_end_counts_for_nothing(client: Client, context: str) -> None:
    fill(client, context, "s", 3)
    begun, go_on = threading.Event(), threading.Event()

    def handle(event: Event) -> None:
        begun.set()
        go_on.wait(PATIENCE_S)

    made = Worker(client.queue(context, "work", dead_after=1), handle, grace=0)

    def stop() -> None:
        begun.wait(PATIENCE_S)
        made.stop()

    stopper = threading.Thread(target=stop)
    stopper.start()
    counts = made.run()
    stopper.join()
    assert (counts.acknowledged, counts.given_back) == (0, 1)
    assert left(client, context) == [(1, 1), (2, 1), (3, 1)]
    go_on.set()
    until(lambda: made.counts.in_progress == 0)
    assert info_of(client, context).allocated == 3


def test_a_cancelled_worker_acknowledges_what_it_has_done(url: str, other: Client, context: str) -> None:
    fill(other, context, "s", 5)

    async def work(client: AsyncClient) -> None:
        held = asyncio.Event()

        async def handle(event: Event) -> None:
            if event.json() == 3:
                held.set()
                await asyncio.Event().wait()

        made = AsyncWorker(client.queue(context, "work", dead_after=1), handle)
        task = asyncio.create_task(made.run())
        await held.wait()
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
        assert made.counts.acknowledged == 2

    on_loop(url, work)
    assert left(other, context) == [(3, 1), (4, 1), (5, 1)]


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_handler_may_end_the_program(client: Client, context: str, ending: type[BaseException]) -> None:
    fill(client, context, "s", 3)

    def handle(event: Event) -> None:
        raise ending(3)

    with pytest.raises(ending):
        penstock.run_worker(client.queue(context, "work", dead_after=1), handle)
    assert left(client, context) == [(1, 1), (2, 1), (3, 1)]


def test_signals_are_what_they_were(client: Client, context: str) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    fill(client, context, "s", 1)
    log = Log(1)
    log.worker = Worker(client.queue(context, "work"), log.note)
    log.worker.run()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before
    made = Worker(client.queue(context, "work"), log.note)
    made.stop()
    assert made.run() == WorkerCounts()


@pytest.mark.over("penstock", "zmq+tcp")
def test_nothing_is_left_of_a_worker(client: Client, context: str, url: str) -> None:
    def work(number: int) -> None:
        log = Log(3)
        fill(client, context, "s", 3)
        with penstock.connect(url) as own:
            log.worker = Worker(own.queue(context, f"work-{number}"), log.note, concurrency=2)
            log.worker.run()

    work(1)
    with nothing_left():
        work(2)


# ---------------------------------------------------------------- when something goes wrong


def test_a_worker_outlives_a_server_that_is_restarted(
    penstock_server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(worker, "PAUSE_S_MIN", 0.01)
    with penstock.connect(penstock_server.url, timeout=0.5) as client:
        fill(client, "shop", "s", 5)
        log = Log(10)
        log.worker = made = Worker(client.queue("shop", "work"), log.note)
        running = threading.Thread(target=made.run)
        running.start()
        until(lambda: made.counts.acknowledged == 5 or not running.is_alive())
        assert made.counts.acknowledged == 5
        penstock_server.kill()
        until(lambda: any("could be taken" in record.getMessage() for record in caplog.records))
        penstock_server.restart()
        fill(client, "shop", "s", 5)
        running.join(PATIENCE_S)
        assert not running.is_alive()
        assert made.counts.acknowledged == 10


def test_what_cannot_help_itself_ends_the_worker(client: Client, context: str) -> None:
    client.queue(context, "work", filter="order-").declare()
    with pytest.raises(QueueFilterMismatch):
        penstock.run_worker(client.queue(context, "work", filter="cart-"), print, concurrency=3)
    with pytest.raises(InvalidRequest, match="concurrency"):
        penstock.run_worker(client.queue(context, "work"), print, concurrency=0)


def test_a_closed_client_ends_the_worker(url: str, context: str) -> None:
    client = penstock.connect(url)
    made = Worker(client.queue(context, "work"), print, signals=False)
    closer = threading.Timer(0.1, client.close)
    closer.start()
    with pytest.raises(ClientClosed):
        made.run()
    closer.join()


def test_a_batch_whose_lease_was_lost_is_counted_as_lost(client: Client, context: str) -> None:
    fill(client, context, "s", 1)

    def handle(event: Event) -> None:
        if current_attempt() == 1 and not made.counts.lost and not log.seen:
            client.queue(context, "work").reset()
        log.note(event)

    log = Log(2)
    log.worker = made = Worker(client.queue(context, "work"), handle)
    counts = made.run()
    assert (counts.lost, counts.acknowledged) == (1, 1)


# ---------------------------------------------------------------- figures


def test_the_figures_of_workers_are_in_a_registry(client: Client, context: str) -> None:
    fill(client, context, "s", 6)
    registry, workers = CollectorRegistry(), list[Worker]()
    place = f'context="{context}",'
    for total in (3, 6):
        log = Log(3)
        queue = client.queue(context, "work", count=1)
        workers.append(Worker(queue, log.note, registry=registry))
        log.worker = workers[-1]
        assert log.worker.run().acknowledged == 3
        shown = generate_latest(registry).decode()
        assert f'penstock_worker_events_total{{{place}outcome="acknowledged",queue="work"}} {total}.0' in shown
        assert f'penstock_worker_in_progress{{{place}queue="work"}} 0.0' in shown


def test_a_failure_is_logged_with_its_event(client: Client, context: str, caplog: pytest.LogCaptureFixture) -> None:
    fill(client, context, "s", 1)

    def handle(event: Event) -> None:
        log.note(event)
        raise ValueError("no such order")

    log = Log(1)
    queue = client.queue(context, "work", retry=RetryPolicy(delay=600))
    log.worker = made = Worker(queue, handle)
    made.run()
    (record,) = caplog.records
    assert f"({context}/s 1) failed at attempt 1: ValueError: no such order" in record.getMessage()
    assert record.exc_info
