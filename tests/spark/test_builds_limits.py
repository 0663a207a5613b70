"""Functions beyond their limits inside an executor, and processes that die there: as on a server, or tried again."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import cbor2
import pytest
from pyspark.sql import SparkSession

from penstock.errors import FunctionFailed, FunctionTimedOut, StoreError
from penstock.spark.build_tasks import CHILD
from penstock.testing import server
from tests.lake.killing import command_of, descendants
from tests.spark.build_kit import Held, Place, answers, built
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, Target
from tests.spark.support import until
from tests.spark.test_builds import make

CALL_MS_MAX: Final = 50
MEMORY: Final = 4 << 20
BEYOND: Final = {
    "loop": "while true do end",
    "memory": "local t = {} while true do t[#t + 1] = string.rep('x', 10000) .. #t end",
    "result": "return string.rep('x', 2000)",
    # Nothing but the end of its process stops a pattern that backtracks without end.
    "stuck": "string.find(string.rep('a', 3000), '.-.-.-.-b')",
}


pytestmark = pytest.mark.long
"""The same limits are tested where they live, in tests/lua and tests/engine."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    limits: dict[str, Any] = {"iterator_call_ms_max": CALL_MS_MAX, "iterator_memory_bytes_max": MEMORY}
    with server(**limits, iterator_result_bytes_max=1024) as started:
        yield Place(Target(PENSTOCK, started.url, started.data))


def test_a_map_goes_on_behind_messages_that_break_its_limits(spark: SparkSession, place: Place, held: Held) -> None:
    held("limits-it")
    cases = " ".join(f"if msg == '{what}' then {lua} end" for what, lua in BEYOND.items())
    messages = ["a", "loop", "b", "memory", "c", "result", "d", "stuck", "e", "stuck"]
    with place.client() as client:
        made = make(client, "limits", "map", f"{cases} return msg", messages)
        client.iterator("limits-too").create("limits", "map", f"{cases} return msg", indexed=True)
        outcome = built(spark, place, made, 6)
        assert (outcome.messages, outcome.items, outcome.failed, outcome.error) == (10, 10, 5, None)
        assert isinstance(outcome.failure, FunctionTimedOut)
        assert (outcome.failure.message, outcome.failure.reason) == (1, f"ran for more than {CALL_MS_MAX} ms")
        items = [cbor2.loads(item) if item else None for item in place.output(made)]
        assert items == [each if each not in BEYOND else None for each in messages]
        held.release()
        assert answers(client, made, 0) == answers(client, "limits-too", 0)
        assert place.output(made) == place.output("limits-too")


@pytest.mark.parametrize(("kind", "what"), [("filter", "stuck"), ("reduce", "stuck"), ("reduce", "memory")])
def test_a_filter_and_a_reduce_stop_before_it(
    spark: SparkSession, place: Place, held: Held, kind: str, what: str
) -> None:
    log = f"{what}-{kind}"
    held(f"{log}-it")
    with place.client() as client:
        made = make(client, log, kind, f"if msg == 10 then {BEYOND[what]} end return msg", range(20))
    outcome = built(spark, place, made)
    assert isinstance(outcome.error, FunctionFailed)
    assert (outcome.error.message, outcome.messages, outcome.installed.items) == (10, 10, 10)
    assert [cbor2.loads(item) for item in place.output(made)] == list(range(10))
    assert place.state(made).state == (cbor2.dumps(9) if kind == "reduce" else None)


def children() -> list[int]:
    """The processes that run functions for the tasks of this session."""
    return [pid for pid in descendants(os.getpid()) if CHILD.encode() in command_of(pid)]


def test_a_process_that_is_killed_fails_its_attempt_which_says_where_and_leaves_nothing(
    spark: SparkSession, held: Held
) -> None:
    """This session tries a task once. One that tries again is in `test_builds_killed`."""
    held("slow-it")
    with server(iterator_call_ms_max=60_000) as started:
        place = Place(Target(PENSTOCK, started.url, started.data))
        with place.client() as client:
            made = make(client, "slow", "map", "if msg == 10 then while true do end end return msg", range(20))

        def kill() -> None:
            until(lambda: len(place.target.staged()) == 2, "staging of the others")
            for pid in children():
                os.kill(pid, signal.SIGKILL)

        # The last part has perhaps staged its messages, and not said so yet.
        where = "messages (7 to 13|14 to 19)"
        said = f"iterator slow-it, {where}: the process that ran the function was ended by signal 9"
        with ThreadPoolExecutor(1) as pool:
            killing = pool.submit(kill)
            with pytest.raises(StoreError, match=said):
                built(spark, place, made)
            killing.result()
        assert place.output(made) == []
        assert place.target.staged() == []


def test_an_idle_process_that_has_died_is_replaced(spark: SparkSession, place: Place, held: Held) -> None:
    held("idle-it")
    with place.client() as client:
        made = make(client, "idle", "map", "return msg", range(5))
        for pid in children():
            os.kill(pid, signal.SIGKILL)
        assert built(spark, place, made).installed.items == 5
