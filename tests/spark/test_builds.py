"""Indexes built on Spark: what a server would have built, wherever the store is and whatever happens meanwhile."""

import json
from collections.abc import Iterable, Iterator
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.errors import FunctionFailed, InvalidRequest, IteratorNotFound, StoreError, StoreInUse
from penstock.model import LOG_CONTEXT, BuildStart, IteratorKind, NewEvent, Over, new_event
from penstock.spark.build_tasks import BuildTask
from penstock.spark.builds import NUMBERS_MAX, TASK_MESSAGES_MAX, TASKS_MAX, plan_tasks
from penstock.spark.parallel import parallel_map
from penstock.store.urls import absolute_url
from penstock.testing import Server, server
from tests.postgres import Schemas
from tests.spark.build_kit import RANGE, Held, Place, answers, build, built, meanwhile, place_of
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, POSTGRESQL, SQLITE, WAYS, Target
from tests.spark.support import fill

FUNCTIONS = {
    "map": "if msg % 10 == 3 then error('three') end return msg * 2",
    "filter": "return msg % 3 ~= 0",
    "reduce": "return (acc or 0) + msg",
}
MESSAGES = 40
LONG_WAYS = [pytest.param(way, marks=pytest.mark.long) for way in WAYS if way != PENSTOCK]
ONE_WAY_FIRST = pytest.mark.parametrize("place", [PENSTOCK, *LONG_WAYS], indirect=True)
_numbers = count(1)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("served") / "data") as started:
        yield started


@pytest.fixture
def here(served: Server) -> Place:
    """The server that all share."""
    return Place(Target(PENSTOCK, served.url, served.data))


@pytest.fixture(params=WAYS)
def place(request: pytest.FixtureRequest, tmp_path: Path, here: Place, schemas: Schemas) -> Place:
    """A store of each kind."""
    if request.param == PENSTOCK:
        return here
    if request.param == SQLITE:
        fill(tmp_path / "data", [])
        return place_of(tmp_path / "data")
    return Place(Target(request.param, fill(schemas.url(tmp_path), [])))


@pytest.fixture
def name() -> str:
    """Of a log that no other test uses."""
    return f"log{next(_numbers)}"


def numbers(values: Iterable[int], subject: str = "") -> list[NewEvent]:
    headers = json.dumps({"subject": subject}) if subject else None
    return [new_event("Counted", json.dumps({"n": value}).encode(), headers) for value in values]


def make(client: penstock.Client, log: str, kind: str, function: str, values: Iterable[Any] = range(MESSAGES)) -> str:
    """A log and an indexed iterator over it."""
    client.log(log).create()
    if messages := list(values):
        client.log(log).append(messages)
    client.iterator(f"{log}-it").create(log, kind, function, indexed=True)
    return f"{log}-it"


# --- as a server does -----------------------------------------------------------------------------------------


@ONE_WAY_FIRST
def test_all_kinds_are_built_as_a_server_builds_them_which_then_goes_on(
    spark: SparkSession, place: Place, name: str, held: Held
) -> None:
    """Over a log, over items some of which failed, and over a stream of which something was erased."""
    body = "local msg = msg.body.n "
    over = {"log": name, "items": f"{name}-log-map-too", "stream": f"shop/{name}"}
    wanted = [(f"{name}-{what}-{kind}", what, kind) for what in over for kind in FUNCTIONS]
    held(*(each for each, _, _ in wanted))
    with place.client() as client:
        client.log(name).create()
        client.log(name).append(list(range(MESSAGES)))
        client.append("shop", name, [*numbers(range(9)), *numbers(range(9, 15), name), *numbers(range(15, 40))])
        assert client.erase_subject(name) == 6
        for each, what, kind in wanted:
            for made in (each, f"{each}-too"):
                function = body + FUNCTIONS[kind] if what == "stream" else FUNCTIONS[kind]
                client.iterator(made).create(over[what], kind, function, indexed=True)
        for each, _, _ in wanted:
            answers(client, f"{each}-too", 1)
    for each, _, _ in wanted:
        outcome, too = built(spark, place, each), place.state(f"{each}-too")
        assert outcome.messages == too.source
        assert outcome.installed.added == outcome.items == too.outputs
        assert place.output(each) == place.output(f"{each}-too")
        assert place.state(each).state == too.state
    assert place.target.staged() == []
    held.release()
    with place.client() as client:
        client.log(name).append([40, 41, 42])
        client.append("shop", name, numbers([40, 41, 42]))
        for each, _, _ in wanted:
            assert answers(client, each, 45) == answers(client, f"{each}-too", 45)


@ONE_WAY_FIRST
def test_a_message_that_fails_stops_a_filter_and_a_reduce_and_what_came_before_is_installed(
    spark: SparkSession, place: Place, name: str, held: Held
) -> None:
    function = "if msg.body.n == 17 then error('seventeen') end return acc or msg.body.n > 3"
    held(f"{name}-filter", f"{name}-reduce")
    with place.client() as client:
        position = client.append("shop", name, numbers(range(MESSAGES))).position
        for kind in ("filter", "reduce"):
            client.iterator(f"{name}-{kind}").create(f"shop/{name}", kind, function, indexed=True)
    for kind, items in (("filter", 13), ("reduce", 17)):
        outcome = built(spark, place, f"{name}-{kind}")
        assert isinstance(outcome.error, FunctionFailed)
        assert (outcome.error.message, outcome.error.reason) == (17, "function:1: seventeen")
        assert (outcome.messages, outcome.position) == (17, position + 17)
        assert (outcome.failed, outcome.failure) == (0, None)
        assert (outcome.installed.items, outcome.installed.messages) == (items, 17)
        # Nothing is new, so it fails again at the same message.
        again = built(spark, place, f"{name}-{kind}")
        assert (again.messages, again.items, again.installed.added, again.position) == (0, 0, 0, position + 17)
    held.release()
    with place.client() as client:
        assert len(client.iterator(f"{name}-filter").next(0, 100)) == 13
        with pytest.raises(FunctionFailed, match="at message 17: function:1: seventeen"):
            client.iterator(f"{name}-filter").next(13, 1)


def test_a_map_says_how_many_messages_failed_and_which_was_the_first(
    spark: SparkSession, here: Place, name: str, held: Held
) -> None:
    held(f"{name}-it")
    with here.client() as client:
        make(client, name, "map", FUNCTIONS["map"])
    outcome = built(spark, here, f"{name}-it")
    assert (outcome.messages, outcome.items, outcome.failed, outcome.error) == (40, 40, 4, None)
    assert isinstance(outcome.failure, FunctionFailed)
    assert (outcome.failure.message, outcome.failure.reason) == (3, "function:1: three")


# --- what happens meanwhile -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_messages_that_come_meanwhile_are_left_to_the_server(
    spark: SparkSession, here: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    held(f"{name}-it")
    with here.client() as client:
        made = make(client, name, kind, FUNCTIONS[kind])
        coming = iter(range(MESSAGES, MESSAGES + 100))

        def add() -> None:
            client.log(name).append([next(coming)])

        meanwhile(monkeypatch, before=add, after=add)
        assert built(spark, here, made).installed.messages == MESSAGES
        held.release()
        client.iterator("other").create(name, kind, FUNCTIONS[kind], indexed=True)
        assert answers(client, made, 60) == answers(client, "other", 60)
        client.iterator("other").delete(name)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_what_the_server_has_built_meanwhile_stays(
    spark: SparkSession, here: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    function = FUNCTIONS[kind].replace("error('three')", "return 0")
    held(f"{name}-it")
    with here.client() as client:
        made = make(client, name, kind, function)

        def overtake() -> None:
            held.release()
            client.log(name).append([40, 41])
            answers(client, made, 0)

        meanwhile(monkeypatch, after=overtake)
        outcome = built(spark, here, made, MESSAGES // 2 if kind != "reduce" else MESSAGES)
        assert (outcome.messages, outcome.installed.added, outcome.installed.messages) == (40, 0, 42)
        client.iterator("other").create(name, kind, function, indexed=True)
        assert answers(client, made, 45) == answers(client, "other", 45)
        client.iterator("other").delete(name)


def test_a_server_that_builds_at_the_same_time_and_spark_come_to_one_result(
    spark: SparkSession, here: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = [value * 10 for value in range(6000)]
    with here.client() as client:
        for kind, function in FUNCTIONS.items():
            held(f"{name}-{kind}-it")
            made = make(client, f"{name}-{kind}", kind, function, values[:-1])
            last = iter(values[-1:])

            def begin(log: str = f"{name}-{kind}", last: Iterator[int] = last) -> None:
                """The server begins when there is something new."""
                held.release()
                for value in last:
                    client.log(log).append([value])

            with monkeypatch.context() as patching:
                meanwhile(patching, before=begin)
                assert built(spark, here, made, 1500).messages == 5999
            (total,) = client.iterator(made).next(-1, 1)
            assert (kind, total) in [("map", 119_980), ("filter", 59_990), ("reduce", sum(values))]
            assert here.state(made).outputs == (4000 if kind == "filter" else 6000)


def test_a_server_on_postgresql_sees_what_executors_have_written(
    spark: SparkSession, schemas: Schemas, tmp_path: Path, name: str, held: Held
) -> None:
    place = Place(Target(POSTGRESQL, fill(schemas.url(tmp_path), [])))
    held(f"{name}-it")
    with place.client() as client:
        made = make(client, name, "reduce", FUNCTIONS["reduce"])
        client.iterator("below").create(made, "filter", "return msg > 100", indexed=True)
        assert client.iterator("below").show().items == 0
        assert built(spark, place, made).installed.added == MESSAGES
        held.release()
        client.log(name).append([40])
        assert client.iterator(made).next(-1, 1) == [sum(range(41))]
        assert client.iterator("below").next(-1, 1) == [sum(range(41))]


@ONE_WAY_FIRST
def test_an_iterator_that_is_deleted_meanwhile_gets_nothing(
    spark: SparkSession, place: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(f"{name}-it")
    with place.client() as client:
        make(client, name, "map", "return msg")

    def delete() -> None:
        with place.client() as client:
            client.iterator(f"{name}-it").delete(name)

    def delete_and_make() -> None:
        delete()
        with place.client() as client:
            client.iterator(f"{name}-it").create(name, "map", "return msg + 1", indexed=True)

    for what in ({"after": delete_and_make}, {"before": delete_and_make}, {"before": delete}):
        with monkeypatch.context() as patching:
            meanwhile(patching, **what)
            with pytest.raises(IteratorNotFound):
                built(spark, place, f"{name}-it")
        assert place.target.staged() == []
    with pytest.raises(IteratorNotFound):
        built(spark, place, f"{name}-it")


def test_an_iterator_that_begins_anew_because_of_an_erasure_gets_nothing(
    spark: SparkSession, here: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(f"{name}-it")
    with here.client() as client:
        client.append("shop", name, [*numbers(range(9)), *numbers(range(9, 15), name), *numbers(range(15, 20))])
        client.iterator(f"{name}-it").create(f"shop/{name}", "map", "return msg.body.n", indexed=True)
        with monkeypatch.context() as patching:
            meanwhile(patching, after=lambda: client.erase_subject(name))
            with pytest.raises(IteratorNotFound):
                built(spark, here, f"{name}-it")
        assert here.target.staged() == []
        assert built(spark, here, f"{name}-it").installed.added == 20
        held.release()
        assert client.iterator(f"{name}-it").next(0, 20) == [*range(9), *[None] * 6, *range(15, 20)]


@ONE_WAY_FIRST
def test_of_several_attempts_only_the_one_that_is_named_is_installed(
    spark: SparkSession, place: Place, name: str, held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    held(f"{name}-it")
    with place.client() as client:
        make(client, name, "filter", FUNCTIONS["filter"])
    # As if each task had been tried twice, because its executor was slow or lost.
    monkeypatch.setattr(
        "penstock.spark.builds.parallel_map", lambda *given: parallel_map(*given) and parallel_map(*given)
    )
    assert built(spark, place, f"{name}-it").installed.added == 26
    assert place.target.staged() == []
    held.release()
    with place.client() as client:
        assert client.iterator(f"{name}-it").next(0, 100) == [value for value in range(MESSAGES) if value % 3]


# --- what cannot be built -------------------------------------------------------------------------------------


def not_started() -> SparkSession:
    raise AssertionError("there is nothing to do for Spark")


def test_an_iterator_that_is_not_indexed_or_not_there_is_refused(here: Place, name: str) -> None:
    with here.client() as client:
        client.log(name).create()
        client.iterator(f"{name}-it").create(name, "map", "return msg")
    for place in (here, Place(Target(SQLITE, f"sqlite:///{here.target.directory}", here.target.directory))):
        with pytest.raises(InvalidRequest, match="is not indexed"):
            built(not_started, place, f"{name}-it")  # type: ignore[arg-type]
        with pytest.raises(IteratorNotFound):
            built(not_started, place, "no-such")  # type: ignore[arg-type]


def test_where_there_is_nothing_new_spark_is_not_started(here: Place, name: str) -> None:
    with here.client() as client:
        made = make(client, name, "map", "return msg", [])
    outcome = built(not_started, here, made)  # type: ignore[arg-type]
    assert (outcome.messages, outcome.items, outcome.installed.items, outcome.error) == (0, 0, 0, None)


def test_the_store_of_a_server_is_refused_before_anything_is_done(here: Place, name: str, held: Held) -> None:
    held(f"{name}-it")
    with here.client() as client:
        made = make(client, name, "map", "return msg")
    store = Place(Target(SQLITE, f"sqlite:///{here.target.directory}", here.target.directory))
    with pytest.raises(StoreInUse):
        built(not_started, store, made)  # type: ignore[arg-type]


def test_tasks_are_given_the_whole_path_of_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "data", [])
    with place_of(tmp_path / "data").client() as client:
        make(client, "log", "map", "return msg", values=())
    # Messages that come while no server is there, which might have built them into the index at once.
    fill(tmp_path / "data", [(LOG_CONTEXT, "log", [new_event("message", b"\x01")])])
    given: list[BuildTask] = []

    def refuse(_spark: None, tasks: list[BuildTask], *_more: object) -> None:
        given.extend(tasks)
        raise StoreError("no task is run here")

    monkeypatch.setattr("penstock.spark.builds.parallel_map", refuse)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError):
        build(None, "sqlite:///data", "log-it")
    assert {part.url for part in given} == {f"sqlite:///{tmp_path / 'data'}"}
    assert absolute_url("sqlite:///../link") == f"sqlite:///{tmp_path}/../link"
    assert [absolute_url(url) for url in ("sqlite:///", "penstock://data")] == ["sqlite:///", "penstock://data"]


def test_parts_follow_one_another_and_there_are_not_too_many() -> None:
    kinds = (Over.LOG, IteratorKind.MAP, "return msg")
    start = BuildStart("it", 1, "log", *kinds, 10, 10, None, 10 + 2 * RANGE + 1, 1000, 1 << 26, 1 << 23)
    parts = plan_tasks("url", start, RANGE)
    assert [(part.first, part.end) for part in parts] == [(10, 17), (17, 24), (24, 25)]
    assert all(one.number <= one.last < other.number for one, other in pairwise(parts))
    assert parts[-1].last < NUMBERS_MAX
    many = plan_tasks("url", BuildStart("it", 1, "log", *kinds, 0, 0, None, 10**9 + 1, 1, 1 << 26, 1), RANGE)
    assert (len(many), many[-1].end) == (TASKS_MAX, 10**9 + 1)
    assert all(one.end == other.first and one.last < other.number for one, other in pairwise(many))


def test_there_are_as_many_parts_as_cores_unless_they_would_be_very_small() -> None:
    def sizes(messages: int, cores: int, **least: int) -> list[int]:
        kinds = (Over.LOG, IteratorKind.MAP, "return msg")
        start = BuildStart("it", 1, "log", *kinds, 10, 10, None, 10 + messages, 1000, 1 << 26, 1 << 23)
        return [part.end - part.first for part in plan_tasks("url", start, TASK_MESSAGES_MAX, cores, **least)]

    assert sizes(10_000, 4) == [2500] * 4
    assert sizes(10_000, 1) == [10_000]
    assert sizes(250_000, 2) == [100_000, 100_000, 50_000]
    assert sizes(1500, 4) == [1000, 500]
    assert sizes(30, 4, messages_min=1) == [8, 8, 8, 6]
