"""`penstock iterator build` with a Spark of its own, whose processes are killed, or which is interrupted."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from penstock.spark.build_parts import CHILD
from penstock.testing import server
from tests.lake.killing import command_of, descendants, until
from tests.lake.test_interrupts import alone, interrupt
from tests.spark.build_kit import Held, Place
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, Target
from tests.spark.test_builds import make

SLOW = "local sum = 0 for number = 1, 100000 do sum = sum + number end return msg"
"""About a millisecond."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with server() as started:
        yield Place(Target(PENSTOCK, started.url, started.data))


def building(place: Place, name: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """The command, of which nothing is left at the end."""
    return alone("iterator", "build", name, "--url", place.url)


def found(process: "subprocess.Popen[str]", sign: str) -> set[int]:
    return {pid for pid in descendants(process.pid) if sign.encode() in command_of(pid)}


@pytest.mark.timeout(600)
def test_a_build_whose_processes_are_killed_is_tried_again_and_is_exact(place: Place, held: Held) -> None:
    held("killed-it")
    with place.client() as client:
        made = make(client, "killed", "reduce", f"acc = (acc or 0) + msg {SLOW.replace('return msg', 'return acc')}")
        client.log("killed").append(list(range(40, 2000)))
    with building(place, made) as process:
        until(lambda: bool(found(process, CHILD)), "a process that runs the function")
        (child,) = found(process, CHILD)
        os.kill(child, signal.SIGKILL)
        until(lambda: bool(found(process, CHILD) - {child}), "another one")
        # And now the worker that has it.
        (other,) = found(process, CHILD) - {child}
        os.kill(parent_of(other), signal.SIGKILL)
        until(lambda: bool(found(process, CHILD) - {child, other}), "another one")
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("2,000 messages read, 2,000 items added (")
    assert place.target.staged() == []
    held.release()
    with place.client() as client:
        assert client.iterator(made).next(-1, 1) == [sum(range(2000))]
    assert len(place.output(made)) == 2000


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_build_that_is_interrupted_ends_with_all_its_processes_in_a_line_and_leaves_nothing(
    place: Place, held: Held, number: signal.Signals, code: int
) -> None:
    held(f"{number.name}-it")
    with place.client() as client:
        made = make(client, number.name, "map", SLOW)
        for start in range(40, 30_000, 10_000):
            client.log(number.name).append(list(range(start, start + 10_000)))
    with building(place, made) as process:
        said = "penstock: interrupted: what was not installed is dropped; run the same command again\n"
        assert interrupt(process, number, CHILD.encode()) == (code, "", said)
    assert place.target.staged() == []
    assert place.output(made) == []
