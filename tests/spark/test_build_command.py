"""`penstock iterator build`: what it prints, and how it ends. The session is that of the tests."""

import json
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from penstock.cli import app
from penstock.model import LOG_CONTEXT
from penstock.testing import server
from tests.cli.conftest import no_settings as no_settings  # noqa: PLC0414 - a fixture that is used by itself
from tests.spark.build_kit import Held, Place, place_of
from tests.spark.build_kit import held as held  # noqa: PLC0414 - a fixture
from tests.spark.sink_targets import PENSTOCK, Target
from tests.spark.support import fill
from tests.spark.test_builds import make, numbers


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with server() as started:
        yield Place(Target(PENSTOCK, started.url, started.data))


@pytest.fixture(autouse=True)
def session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command starts a session of its own in `test_builds_killed`."""
    monkeypatch.setattr("penstock.cli.logs.session", lambda *_: nullcontext(spark))


def run(*arguments: Any) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["iterator", "build", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def test_it_says_what_it_did_and_then_that_there_is_nothing_to_do(place: Place, held: Held) -> None:
    held("plain-it")
    with place.client() as client:
        made = make(client, "plain", "filter", "return msg % 2 == 0")
    code, out, err = run(made, "--url", place.url)
    assert (code, err) == (0, "")
    assert out.startswith("40 messages read, 20 items added (")
    assert out.endswith(" messages/s); iterator plain-it has 20 items\n")
    assert run(made, "--url", place.url) == (0, "iterator plain-it has read all messages of plain\n", "")


def test_a_map_that_failed_now_and_then_is_built_and_tells_of_the_first(place: Place, held: Held) -> None:
    held("some-it", "one-it")
    with place.client() as client:
        some = make(client, "some", "map", "if msg % 10 == 3 then error('three') end return msg")
        one = make(client, "one", "map", "if msg == 3 then error('three\\x1b') end return msg")
        positions = [client.read_event(LOG_CONTEXT, log, 4).position for log in ("some", "one")]
    code, _, err = run(some, "--url", place.url)
    where = f"message 3, position {positions[0]}"
    assert (code, err) == (0, f"penstock: 4 messages of some failed; the first is {where}: function:1: three\n")
    code, out, err = run(one, "--url", place.url, "--json")
    where = f"message 3, position {positions[1]}"
    assert (code, err) == (0, f"penstock: 1 message of one failed; the first is {where}: function:1: three\\x1b\n")
    document = json.loads(out)
    assert document.pop("seconds") > 0
    reason = {"message": 3, "position": positions[1], "reason": "function:1: three\x1b"}
    counts = {"messages": 40, "added": 40, "items": 40, "failed": 1}
    what = {"iterator": "one-it", "log": "one", "kind": "map"}
    assert document == {**what, **counts, "first_failed": reason, "error": None}


def test_a_filter_that_fails_is_built_up_to_there_and_the_command_fails(tmp_path: Path, held: Held) -> None:
    held("it")
    fill(tmp_path / "data", [("shop", "other", numbers(range(5))), ("shop", "s", numbers(range(20)))])
    place = place_of(tmp_path / "data")
    with place.client() as client:
        function = "return msg.body.n + (msg.body.n == 12 and {} or 0) > 5"
        client.iterator("it").create("shop/s", "filter", function, indexed=True)
    reason = "function:1: attempt to perform arithmetic on a table value"
    complaint = f"penstock: iterator it over shop/s failed at message 12, position 18: {reason}\n"
    code, out, err = run("it", "--data", tmp_path / "data")
    assert (code, err) == (1, complaint)
    assert out.startswith("12 messages read, 6 items added (")
    code, out, err = run("it", "--data", tmp_path / "data", "--json")
    assert (code, err) == (1, complaint)
    assert json.loads(out)["error"] == {"message": 12, "position": 18, "reason": reason}


def test_mistakes_are_told_in_a_line(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with place.client() as client:
        client.log("there").create()
        client.iterator("there-it").create("there", "map", "return msg")
    why = "is not indexed, so it has no index to build; make it with --indexed"
    assert run("there-it", "--url", place.url) == (1, "", f"penstock: iterator there-it {why}\n")
    assert run("no-such", "--url", place.url) == (1, "", "penstock: no iterator no-such\n")
    code, _, err = run("it", "--data", place.target.directory)
    assert (code, err) == (1, "penstock: no iterator it\n")
    with place.client() as client:
        indexed = make(client, "owned", "map", "return msg", [])
    code, _, err = run(indexed, "--data", place.target.directory)
    assert code == 1
    assert err.startswith(f"penstock: the store in {place.target.directory} is in use by process ")
    assert err.endswith("; only one server can own an embedded store; connect to it with --url penstock://HOST:PORT\n")
    assert run("it", "--url", "nonsense")[0] == 2
    assert run("it", "--data", tmp_path / "none")[0] == 1
    assert run("it", "--url", place.url, "--data", tmp_path)[0] == 2
    monkeypatch.undo()
    assert run("there-it", "--url", place.url, "--conf", "nonsense")[0] == 2
