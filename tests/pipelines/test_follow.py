"""`penstock pipeline run --follow` as people start it: goes on as events come, can be watched, ends when told to."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.pipelines.scaffold import make_project
from tests.pipelines.driver import MASTER, QUICK
from tests.pipelines.support import ENDING_S, penstock, positions, sell, until
from tests.test_server import environment

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def run(folder: Path, *words: str) -> "subprocess.Popen[str]":
    options = [word for key, value in QUICK.items() for word in ("--conf", f"{key}={value}")]
    command = [sys.executable, "-m", "penstock", "pipeline", "run", str(folder), "--master", MASTER, *options, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True)


def test_it_follows_the_history_until_it_is_told_to_end(tmp_path: Path) -> None:
    folder, data = tmp_path / "shop", tmp_path / "data"
    make_project(folder, sell(data, 1, 10))
    with run(folder, "--follow", "--interval", "0.2") as process:
        try:
            assert process.stdout is not None
            first = [process.stdout.readline() for _ in range(7)]
            assert "bronze: completed, 10 rows (10 new)\n" in first
            sell(data, 11, 5)
            second = [process.stdout.readline() for _ in range(7)]
            assert "order_placed: completed, 15 rows (5 new)\n" in second
            refused = penstock("pipeline", "run", str(folder), code=1)
            assert "is in use by run --follow of process" in refused.stderr
            watched = penstock("pipeline", "status", str(folder))
            assert watched.stderr.startswith("penstock: in use by run --follow of process")
            assert watched.stdout.split("\n")[3].split()[:6] == ["bronze", "bronze", "store", "15", "15", "0"]
        finally:
            process.send_signal(signal.SIGTERM)
        out, said = process.communicate(timeout=ENDING_S)
    assert (process.returncode, out, said) == (0, "", "penstock: stopped; the last round is complete\n")
    assert positions(folder, "order_placed") == list(range(1, 16))
    told = json.loads(penstock("pipeline", "status", str(folder), "--json").stdout)
    assert told["in_use_by"] is None
    assert {flow["flow"]: flow["lag"] for flow in told["flows"]}["order_placed"] == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ((), "run the same command again to continue"),
        (
            ("--full-refresh", "bronze"),
            "run again without --full-refresh to continue, or with it to rebuild those tables",
        ),
    ],
)
def test_ctrl_c_ends_a_run_at_once(tmp_path: Path, words: tuple[str, ...], what: str) -> None:
    folder = tmp_path / "shop"
    make_project(folder, sell(tmp_path / "data", 1, 10))
    with run(folder, *words) as process:
        # The lock is there from the first moment on, long before Spark is.
        until((folder / ".penstock" / "lock").exists, "a start")
        process.send_signal(signal.SIGINT)
        out, said = process.communicate(timeout=ENDING_S)
    assert (process.returncode, out) == (130, "")
    assert said == f"penstock: interrupted: {what}\n"
