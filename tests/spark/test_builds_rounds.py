"""Builds of more than may be staged at once, and of functions that are slow: in rounds, and in parts of parts."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.errors import IteratorNotFound, LimitExceeded
from penstock.spark import build_tasks, builds
from penstock.testing import server
from tests.spark.build_kit import Held, Place, answers, built, meanwhile, place_of
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, SQLITE, Target
from tests.spark.support import fill
from tests.spark.test_builds import FUNCTIONS, MESSAGES, make

KINDS = ["map", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("reduce", "filter"))]


@pytest.mark.parametrize("kind", KINDS)
def test_more_than_may_be_staged_at_once_is_built_and_installed_in_rounds(
    spark: SparkSession, tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    held("log-it")
    rounds: list[int] = []
    with server(tmp_path / "data", stage_bytes_max="1KiB") as own:
        here = Place(Target(PENSTOCK, own.url, own.data))
        with here.client() as client:
            make(client, "log", kind, FUNCTIONS[kind], range(120))
            meanwhile(monkeypatch, after=lambda: rounds.append(here.state("log-it").source))
            outcome = built(spark, here, "log-it", 20)
            assert (outcome.messages, outcome.installed.messages) == (120, 120)
            assert outcome.failed == (12 if kind == "map" else 0)
            assert outcome.items == outcome.installed.added == outcome.installed.items == here.state("log-it").outputs
            assert len({*rounds}) > 1
            held.release()
            client.iterator("other").create("log", kind, FUNCTIONS[kind], indexed=True)
            assert answers(client, "log-it", 125) == answers(client, "other", 125)


def test_a_message_that_alone_is_more_than_may_be_staged_is_refused(tmp_path: Path, held: Held) -> None:
    held("log-it")
    with server(tmp_path / "data", stage_bytes_max="1KiB") as own:
        here = Place(Target(PENSTOCK, own.url, own.data))
        with here.client() as client:
            make(client, "log", "map", "return string.rep('x', 2000)")
        with pytest.raises(LimitExceeded, match="stage_bytes_max"):
            built(None, here, "log-it")
        assert here.state("log-it").outputs == 0


def test_little_is_run_twice_once_it_is_known_how_much_may_be_staged(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held("log-it")
    ran: list[int] = []
    with server(tmp_path / "data", stage_bytes_max="64KiB") as own:
        here = Place(Target(PENSTOCK, own.url, own.data))
        with here.client() as client:
            make(client, "log", "map", "return string.rep('x', 100)", range(3000))
        meanwhile(monkeypatch, after=lambda: ran.append(here.state("log-it").source))
        assert built(None, here, "log-it", 3000).installed.added == 3000
    # All messages at once are too many. From then on each round fits, and they are about as large as may be.
    assert ran[:2] == [0, 0]
    assert all(300 < other - one < 600 for one, other in pairwise(ran[1:]))


@pytest.mark.parametrize("way", [PENSTOCK, SQLITE])
def test_a_build_in_rounds_does_not_go_on_with_another_iterator_of_the_same_name(
    tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    held("log-it")
    monkeypatch.setattr("penstock.spark.stages.OWNED", (1024, 1000))
    install, place = builds._install, place_of(tmp_path / "data")

    def install_and_make_anew(*given: Any) -> Any:
        outcome = install(*given)
        with place.client() as client:
            client.iterator("log-it").delete("log")
            client.iterator("log-it").create("log", "map", "return 'another'", indexed=True)
        return outcome

    def run() -> None:
        with place.client() as client:
            make(client, "log", "map", "return string.rep('x', 100)")
        monkeypatch.setattr(builds, "_install", install_and_make_anew)
        with pytest.raises(IteratorNotFound):
            built(None, place, "log-it", MESSAGES)
        assert place.target.staged() == []
        assert place.output("log-it") == []

    if way == SQLITE:
        fill(tmp_path / "data", [])
        run()
        return
    with server(tmp_path / "data", stage_bytes_max="1KiB") as own:
        place = Place(Target(PENSTOCK, own.url, own.data))
        run()


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_that_takes_long_is_back_before_its_end_and_another_goes_on(
    spark: SparkSession, tmp_path: Path, held: Held, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    held("log-it")
    told: list[tuple[int, int]] = []
    # Of two parts with eight messages.
    monkeypatch.setattr(builds, "TASK_S", 0.0)
    with server(tmp_path / "data") as own, builds.begin_build(own.url, one_of(own.url, kind)) as begun:
        outcome = begun.run(spark, lambda done, total: told.append((done, total)), 4)
        assert (outcome.messages, outcome.failed, begun.failed) == ((8, 1, 1) if kind == "map" else (8, 0, 0))
        # Some messages are read before others; in the end it is all of them.
        assert told == [(number, 8) for number in range(1, 9)]
        here = Place(Target(PENSTOCK, own.url, own.data))
        assert here.target.staged() == []
        with here.client() as client:
            client.iterator("other").create("log", kind, FUNCTIONS[kind], indexed=True)
            held.release()
            assert answers(client, "log-it", 9) == answers(client, "other", 9)


def one_of(url: str, kind: str) -> str:
    with Place(Target(PENSTOCK, url)).client() as client:
        return make(client, "log", kind, FUNCTIONS[kind], range(8))


def test_processes_that_wait_for_another_part_end_with_this_one(tmp_path: Path, held: Held) -> None:
    held("log-it")
    fill(tmp_path / "data", [])
    place = place_of(tmp_path / "data")
    with place.client() as client:
        make(client, "log", "map", "return msg", range(3))
    assert built(None, place, "log-it").installed.added == 3
    waiting = list(build_tasks._idle)
    assert waiting
    build_tasks._end_idle()
    assert not any(child.is_alive for child in waiting)
    assert all(child._process.stdin and child._process.stdin.closed for child in waiting)
    assert not build_tasks._idle
