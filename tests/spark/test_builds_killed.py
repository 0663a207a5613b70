"""`penstock iterator build` with a Spark of its own, whose processes are killed, or which is interrupted."""

import os
import signal
import socket
import struct
import subprocess
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest
from pyspark.accumulators import _start_update_server

from penstock.errors import FunctionTimedOut
from penstock.lua import LuaLimits
from penstock.spark import sessions
from penstock.spark.build_tasks import CHILD
from penstock.testing import server
from tests.lake.killing import command_of, descendants, until
from tests.lake.test_interrupts import alone, interrupt, session_of
from tests.postgres import Schemas
from tests.spark.build_kit import Held, Place, build
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, POSTGRESQL, SQLITE, Target
from tests.spark.support import JAVA, fill
from tests.spark.test_builds import make

SLOW = "local sum = 0 for number = 1, 100000 do sum = sum + number end return msg"
"""About a millisecond."""
STUCK = "string.find(string.rep('a', 3000), '.-.-.-.-b')"
"""Nothing but the end of its process stops it."""


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with server() as started:
        yield Place(Target(PENSTOCK, started.url, started.data))


def building(place: Place, name: str) -> AbstractContextManager["subprocess.Popen[str]"]:
    """The command, of which nothing is left at the end."""
    return alone("iterator", "build", name, "--url", place.url, "--conf", f"spark.driver.extraJavaOptions={JAVA}")


def found(process: "subprocess.Popen[str]", sign: str) -> set[int]:
    return {pid for pid in descendants(process.pid) if sign.encode() in command_of(pid)}


@pytest.mark.timeout(600)
@pytest.mark.long
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


@pytest.mark.timeout(600)
@pytest.mark.long
def test_a_build_whose_command_is_killed_leaves_no_process_and_the_next_one_is_exact(place: Place, held: Held) -> None:
    held("gone-it")
    with place.client() as client:
        # Whatever the number of cores, something is staged while much is still to be done.
        made = make(client, "gone", "map", f"if msg < 8000 then {SLOW} end return msg", range(10_000))
    with building(place, made) as process:
        until(lambda: place.target.staged() != [], "staging")
        process.kill()
        process.wait()
        until(lambda: not session_of(process.pid), "the end of all processes")
    assert place.output(made) == []
    with building(place, made) as process:
        out, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (0, "")
    assert out.startswith("10,000 messages read, 10,000 items added (")
    assert [cbor2.loads(item) for item in place.output(made)] == list(range(10_000))
    assert place.target.staged() == []


@pytest.mark.parametrize("way", [SQLITE, POSTGRESQL])
@pytest.mark.long
def test_a_function_that_is_stuck_in_c_fails_its_message_in_any_store(
    tmp_path: Path, schemas: Schemas, held: Held, way: str
) -> None:
    held("stuck-it")
    url = fill(tmp_path / "data" if way == SQLITE else schemas.url(tmp_path), [])
    place = Place(Target(way, url, tmp_path / "data" if way == SQLITE else None))
    with place.client() as client:
        made = make(client, "stuck", "map", f"if msg % 3 == 1 then {STUCK} end return msg", range(6))
    outcome = build(None, place.url, made, lua=LuaLimits(call_ms_max=50))
    assert (outcome.messages, outcome.items, outcome.failed) == (6, 6, 2)
    assert isinstance(outcome.failure, FunctionTimedOut)
    assert (outcome.failure.message, outcome.position) == (1, 2)
    assert [cbor2.loads(item) if item else None for item in place.output(made)] == [0, None, 2, 3, None, 5]
    assert place.target.staged() == []


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.long
def test_a_build_that_is_interrupted_ends_with_all_its_processes_in_a_line_and_leaves_nothing(
    place: Place, held: Held, number: signal.Signals, code: int
) -> None:
    """As the first task begins, and when the first tasks are done."""
    held(f"{number.name}-it")
    with place.client() as client:
        made = make(client, number.name, "map", SLOW)
        for start in range(40, 30_000, 10_000):
            client.log(number.name).append(list(range(start, start + 10_000)))
    with building(place, made) as process:
        said = "penstock: interrupted: results that are not installed are discarded; run the same command again\n"
        until(lambda: bool(found(process, CHILD)), "a process that runs the function")
        if number == signal.SIGTERM:
            until(lambda: place.target.staged() != [], "staging")
        assert interrupt(process, number) == (code, "", said)
    assert place.target.staged() == []
    assert place.output(made) == []


def test_spark_prints_no_traceback_of_a_jvm_that_is_gone(capfd: pytest.CaptureFixture[str]) -> None:
    """Its server of accumulators does, once a task is done: the JVM then keeps a connection to it."""
    token = "token"
    accumulators: Any = _start_update_server(token, is_unix_domain_sock=False)
    sessions._silence_accumulators(SimpleNamespace(_accumulatorServer=accumulators))
    # It serves one connection after the other: when the second is answered, the first is done with.
    for _ in range(2):
        with socket.create_connection(accumulators.server_address) as jvm:
            jvm.sendall(token.encode() + struct.pack("!i", 0))
            assert jvm.recv(1) == b"\1"
    assert capfd.readouterr().err == ""
    # What else goes wrong there is still told.
    with socket.create_connection(accumulators.server_address) as stranger:
        stranger.sendall(b"nekot")
        assert stranger.recv(1) == b""
    accumulators.shutdown()
    assert "The value of the provided token" in capfd.readouterr().err
