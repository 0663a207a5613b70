"""What Lua workers do, without the processes: erased messages, points that are kept, answers at the last moment."""

import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.engine import iterator_jobs, worker_protocol
from penstock.engine.iterator_jobs import LAST, Built, PageRequest, Point, StepLimits, build_index, read_kept, run_page
from penstock.engine.iterators import POINT_BYTES, START, Points
from penstock.engine.worker_protocol import Unframer, load_answer
from penstock.errors import FunctionFailed, IteratorNotFound
from penstock.lua import LuaLimits, Program, RunResult
from penstock.model import ItemPage, IteratorKind
from penstock.store.contract import AddIterator, IteratorState, ReadLimits
from penstock.store.sqlite import SqliteStore
from tests.store.kit import append, do_one, event

STEP = StepLimits(10.0, 100, 1 << 20, LuaLimits())
KINDS = {
    IteratorKind.MAP: "return msg.body",
    IteratorKind.FILTER: "return true",
    IteratorKind.REDUCE: "return (acc or '') .. msg.body",
}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as opened:
        yield opened


@pytest.fixture
def unwatched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions that do not hang need no thread that watches them; it would stay in this process."""
    monkeypatch.setattr(iterator_jobs.FunctionRun, "_stuck", None)


def add_iterator(store: SqliteStore, kind: IteratorKind, function: str, *, indexed: bool = True) -> IteratorState:
    made = do_one(store, AddIterator("it", "shop/s", kind, function, indexed))
    assert isinstance(made, IteratorState)
    return made


def erase(store: SqliteStore, last: int, done: int) -> None:
    """Erase the events of a stream from `done` + 1 up to `last`, as a deletion would."""
    store.db.connection.execute(
        "INSERT INTO erasures (context, stream, last, done, requested) VALUES ('shop', 's', ?, ?, 0)", (last, done)
    )


@pytest.mark.usefixtures("unwatched")
@pytest.mark.parametrize(
    ("kind", "right"),
    [
        (IteratorKind.MAP, [None, None, "c", "d"]),
        (IteratorKind.FILTER, ["c", "d"]),
        (IteratorKind.REDUCE, [None, None, "c", "cd"]),
    ],
)
def test_an_erased_event_keeps_its_place_and_gives_nothing(store: SqliteStore, kind: IteratorKind, right: Any) -> None:
    for body in b"abcd":
        append(store, "s", [event(body=bytes([body]))])
    erase(store, 2, 0)
    made = add_iterator(store, kind, KINDS[kind])

    def shown(items: Any) -> list[Any]:
        values = map(cbor2.loads, items)
        return [value["body"] if isinstance(value, dict) else value for value in values]

    paged = run_page(store, "it", made.id, START, PageRequest(0, None, None), STEP)
    assert isinstance(paged.page, ItemPage)
    assert shown(paged.page.items) == right
    built = build_index(store, "it", made.id, STEP)
    assert built is not None
    assert shown(built.output.items) == right
    assert (built.read, built.head, built.output.next_source) == (4, 4, 4)
    for number in range(4):
        found = iterator_jobs.read_source(store, made, number, ReadLimits())
        assert [message is None for message in found] == [number + n < 2 for n in range(4 - number)]


def test_an_iterator_that_was_made_again_is_another(store: SqliteStore) -> None:
    made = add_iterator(store, IteratorKind.MAP, "return msg")
    for number in (made.id + 1, 0):
        with pytest.raises(IteratorNotFound):
            run_page(store, "it", number, START, PageRequest(0, None, None), STEP)
        for ordinal in (0, LAST):
            with pytest.raises(IteratorNotFound):
                read_kept(store, "it", number, PageRequest(ordinal, None, None), ReadLimits())
        with pytest.raises(IteratorNotFound):
            build_index(store, "it", number, STEP)


def test_compiled_functions_are_kept_and_only_so_many(monkeypatch: pytest.MonkeyPatch) -> None:
    iterator_jobs.program_of.cache_clear()
    first = iterator_jobs.program_of(IteratorKind.MAP, "return msg", LuaLimits())
    assert iterator_jobs.program_of(IteratorKind.MAP, "return msg", LuaLimits()) is first
    for number in range(iterator_jobs.PROGRAMS_MAX + 5):
        iterator_jobs.program_of(IteratorKind.MAP, f"return {number}", LuaLimits())
    assert iterator_jobs.program_of.cache_info().currsize == iterator_jobs.PROGRAMS_MAX
    iterator_jobs.program_of.cache_clear()


def test_a_stuck_step_answers_what_it_had_and_says_that_its_worker_leaves(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for body in b"abc":
        append(store, "s", [event(body=bytes([body]))])
    made = add_iterator(store, IteratorKind.MAP, "return msg.body")
    sent: list[bytes] = []

    class Left(BaseException):
        """The process would be gone."""

    def leave(_code: int) -> None:
        raise Left

    def stuck_at_the_third(program: Program, messages: Any, state: Any, stuck: Any) -> None:
        stuck(RunResult([cbor2.dumps("a"), cbor2.dumps("b")], None, FunctionFailed("stuck", 2)))

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(Program, "run", stuck_at_the_third)
    worker_protocol.connected(sent.append)
    with pytest.raises(Left):
        build_index(store, "it", made.id, STEP)
    (data,) = sent
    unframer = Unframer(lambda answer: load_answer(answer, Built))
    answers: list[Any] = []
    while data:
        size = len(unframer.space)
        unframer.space[:] = data[:size]
        data = data[size:]
        answers += unframer.received(size)
    ((succeeded, built, stays),) = answers
    assert (succeeded, stays) == (True, False)
    assert [cbor2.loads(item) if item else "failed" for item in built.output.items] == ["a", "b", "failed"]


# --- points ---------------------------------------------------------------------------------------------------


def test_the_nearest_point_before_an_item_is_found() -> None:
    points = Points(100, 1 << 20)
    assert points.best(1, 5) == points.best(1, None) == START
    points.add(1, [Point(10, 3), Point(20, 6), Point(15, 6), Point(40, 9)])
    assert [points.best(1, ordinal).source for ordinal in (0, 2, 3, 5, 6, 8, 9, 100)] == [0, 0, 10, 10, 20, 20, 40, 40]
    assert points.best(1, None) == Point(40, 9)
    assert points.best(2, 100) == START
    points.add(1, [Point(25, 6)])
    assert points.best(1, 6) == Point(25, 6)
    points.forget(1)
    points.forget(1)
    assert len(points) == 0
    assert points.best(1, 100) == START


def test_points_are_bounded_in_number_and_bytes_and_the_oldest_go_first() -> None:
    points = Points(3, 1 << 20)
    points.add(1, [Point(n, n) for n in range(1, 4)])
    assert points.best(1, 1).source == 1, "using it makes it young again"
    points.add(2, [Point(7, 7)])
    assert [points.best(1, n).source for n in (1, 2, 3)] == [1, 1, 3]
    small = Points(100, 2 * POINT_BYTES + 100)
    small.add(1, [Point(1, 1, b"x" * 90), Point(2, 2, b"x" * 10)])
    assert len(small) == 2
    small.add(1, [Point(2, 2, b"x" * 9), Point(3, 3)])
    assert [small.best(1, n).source for n in (1, 2, 3)] == [0, 2, 3]
    small.add(1, [Point(4, 4, b"x" * 1000)])
    assert len(small) == 0
