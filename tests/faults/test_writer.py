"""The writer under stress: a full queue, requests that are too old, and one that breaks a batch."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.engine import Engine, writer
from penstock.errors import PenstockError, StorageFailure, Unexpected, WriterBusy, WriterTimeout
from penstock.model import ANONYMOUS, ANY, AddMessages, Append, Appended, CreateLog, new_event
from penstock.store.sqlite import SqliteStore
from tests.faults.support import SlowStore, append, append_or_error, ask, engine_on, findings, run, until


def _refused(engine: Engine) -> float | None:
    return engine.metrics.registry.get_sample_value("penstock_refused_total", {"reason": "writer_busy"})


def test_a_full_writer_queue_answers_busy_and_loses_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStore(monkeypatch)

    async def scenario() -> None:
        async with engine_on(tmp_path, writer_queue_max=4) as engine:
            waiting = [asyncio.ensure_future(append_or_error(engine))]
            await slow.taken()
            waiting += [asyncio.ensure_future(append_or_error(engine)) for _ in range(6)]
            await until(lambda: sum(task.done() for task in waiting) == 3)
            assert [type(task.result()) for task in waiting if task.done()] == [WriterBusy] * 3
            assert _refused(engine) == 3
            slow.gate.set()
            taken = [answer for answer in await asyncio.gather(*waiting) if isinstance(answer, Appended)]
            assert [answer.position for answer in taken] == [1, 2, 3, 4]
            assert (await append(engine)).position == 5

    run(scenario())


def test_many_bytes_that_wait_answer_busy_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStore(monkeypatch)

    async def scenario() -> None:
        async with engine_on(tmp_path, writer_queue_bytes_max=10_000) as engine:
            waiting = asyncio.ensure_future(append(engine, body=bytes(8000)))
            await slow.taken()
            assert isinstance(await append_or_error(engine, body=bytes(8000)), WriterBusy)
            small = asyncio.ensure_future(append(engine, body=bytes(100)))
            slow.gate.set()
            assert ((await waiting).position, (await small).position) == (1, 2)
            assert (await append(engine, body=bytes(8000))).position == 3

    run(scenario())


class Batches:
    """The batches that a store has written: how many transactions, and whether on the event loop's thread.

    Each can be told to take a while, or to fail.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.written: list[tuple[int, bool]] = []
        self.pause_s = 0.0
        self.error: BaseException | None = None
        loop = threading.current_thread()
        write: Callable[..., Any] = SqliteStore.write

        def writing(store: SqliteStore, transactions: Any) -> Any:
            self.written.append((len(transactions), threading.current_thread() is loop))
            time.sleep(self.pause_s)
            if self.error is not None:
                error, self.error = self.error, None
                raise error
            return write(store, transactions)

        monkeypatch.setattr(SqliteStore, "write", writing)

    def are_inline(self) -> list[bool]:
        """Of the batches since the last call."""
        inline, self.written = [inline for _, inline in self.written], []
        return inline


LONG_US = 60_000_000
"""No commit takes as long, however busy the machine is."""


def test_the_loop_writes_small_commits_itself_and_leaves_the_others_to_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        batches = Batches(monkeypatch)
        async with engine_on(tmp_path, inline_commit_us_max=LONG_US) as engine:
            await append(engine)
            await append(engine, body=bytes(writer.INLINE_BYTES_MAX))
            assert batches.are_inline() == [True, False]
            await asyncio.gather(*(append(engine, f"s-{number}") for number in range(100)))
            assert sum(requests for requests, _ in batches.written) == 100
            assert batches.written[0] == (writer.PART_REQUESTS_MIN, True)
            batches.are_inline()
            await ask(engine, CreateLog("log"))
            assert batches.are_inline() == [False]
            await ask(engine, AddMessages("log", (b"\x01",)))
            assert batches.are_inline() == [True]
        async with engine_on(tmp_path, inline_commit_us_max=0) as engine:
            await append(engine)
            assert batches.are_inline() == [False]

    run(scenario())
    assert findings(tmp_path) == []


def test_a_slow_commit_moves_the_next_ones_to_the_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        batches = Batches(monkeypatch)
        async with engine_on(tmp_path, inline_commit_us_max=LONG_US) as engine:
            engine._writer._inline_s_max = 0.02
            batches.pause_s = 0.5
            await append(engine)
            batches.pause_s = 0.0
            engine._writer._inline_s_max = LONG_US / 1e6
            await append(engine)
            assert batches.are_inline() == [True, False]
            monkeypatch.setattr(writer, "time", Later(writer.INLINE_PAUSE * 60))
            await append(engine)
            assert batches.are_inline() == [True]

    run(scenario())


def test_a_failure_on_the_loops_thread_is_cured_by_the_writers_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> None:
        batches = Batches(monkeypatch)
        cures: list[str] = []
        recover: Callable[..., Any] = SqliteStore.recover

        def recovering(store: SqliteStore) -> None:
            cures.append(threading.current_thread().name)
            recover(store)

        monkeypatch.setattr(SqliteStore, "recover", recovering)
        async with engine_on(tmp_path, inline_commit_us_max=LONG_US) as engine:
            batches.error = StorageFailure("a cable was loose")
            assert isinstance(await append_or_error(engine), StorageFailure)
            await until(lambda: engine.trouble is None)
            assert cures == ["penstock-writer"]
            assert (await append(engine)).position == 1
            assert batches.are_inline() == [True, True]

    run(scenario())
    assert findings(tmp_path) == []


def test_an_interrupt_of_the_program_during_a_write_leaves_a_sound_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an embedded engine, whose loop runs on the main thread. The commit is on disk when the interrupt comes."""

    async def scenario() -> None:
        async with engine_on(tmp_path, inline_commit_us_max=LONG_US) as engine:
            await append(engine)
            write: Callable[..., Any] = SqliteStore.write

            def interrupted(store: SqliteStore, transactions: Any) -> Any:
                monkeypatch.setattr(SqliteStore, "write", write)
                command: Callable[..., Any] = store.db.command

                def commit(text: str) -> None:
                    command(text)
                    if text == "COMMIT":
                        raise KeyboardInterrupt

                monkeypatch.setattr(store.db, "command", commit)
                return write(store, transactions)

            monkeypatch.setattr(SqliteStore, "write", interrupted)
            answers: list[object] = []
            engine.submit(
                ANONYMOUS, Append("c", "s", [new_event("made", b"2"), new_event("made", b"3")], ANY), answers.append
            )
            with pytest.raises(KeyboardInterrupt):
                engine._writer._end_turn()
            assert [type(answer) for answer in answers] == [Unexpected]
            assert engine._writer.waiting == 0
            await until(lambda: engine.trouble is None)
            last = await append(engine)
            assert (last.position, last.sequence) == (4, 4)

    run(scenario())
    assert findings(tmp_path) == []


class Later:
    """The module `time`, some time later."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() + self._seconds


def test_a_write_that_waited_too_long_is_told_and_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = SlowStore(monkeypatch)

    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            first = asyncio.ensure_future(append(engine))
            await slow.taken()
            late = [asyncio.ensure_future(append_or_error(engine, "late")) for _ in range(3)]
            await until(lambda: engine._writer.waiting == 4)
            monkeypatch.setattr(writer, "time", Later(engine.settings.writer_wait_ms_max / 1000))
            slow.gate.set()
            assert (await first).position == 1
            assert [type(answer) for answer in await asyncio.gather(*late)] == [WriterTimeout] * 3
            assert (await append(engine, "late")).position == 2

    run(scenario())
    assert findings(tmp_path) == []


def test_an_error_that_nobody_foresaw_in_a_batch_spares_its_neighbours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write: Callable[..., Any] = SqliteStore.write

    def touchy(store: SqliteStore, transactions: Any) -> Any:
        if any(op.stream == "bad" for transaction in transactions for op in transaction.operations):
            raise ZeroDivisionError
        return write(store, transactions)

    monkeypatch.setattr(SqliteStore, "write", touchy)

    async def scenario() -> None:
        async with engine_on(tmp_path) as engine:
            streams = ["s", "bad", "s", "s", "bad"]
            answers = await asyncio.gather(*(append_or_error(engine, stream) for stream in streams))
            assert [isinstance(answer, PenstockError) for answer in answers] == [stream == "bad" for stream in streams]
            assert engine.trouble is None

    run(scenario())
    assert findings(tmp_path) == []
