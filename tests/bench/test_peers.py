"""`python -m bench.peers` with Penstock alone, and what it does with a system that does not keep its events."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.peers.ours import PenstockEmbedded
from bench.peers.rounds import Plan, measure
from bench.peers.system import Done, Load, System

WORK = ("1x1", "64x1", "1x1000", "64x1x16", "read", "arrow", "stream", "queue", "disk", "memory", "recovery")


def test_a_tiny_run_measures_checks_and_reports(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- bench:peers -->\n<!-- /bench:peers -->\n")
    command = [sys.executable, "-m", "bench.peers", "Penstock", "--rounds", "1", "--seconds", "0.05"]
    command += [
        "--recovery-events",
        "2000",
        "--dir",
        str(tmp_path),
        "--out",
        str(tmp_path / "out"),
        "--docs",
        str(page),
    ]
    done = subprocess.run([*command, "--work", *WORK], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    figures = json.loads((tmp_path / "out" / "peers.json").read_text())["figures"]
    assert set(figures) == set(WORK)
    assert all(value > 0 for by in figures.values() for (value, *_) in by["Penstock"])
    assert "| Penstock |" in page.read_text()
    assert (tmp_path / "page.svg").read_text().startswith("<svg")
    assert done.stdout.splitlines()[-1].startswith("Penstock: ")
    assert not list(tmp_path.glob("bench-peers-*"))


class Forgetful(PenstockEmbedded):
    """Says that it has stored one event more than it has."""

    def append(self, url: str, load: Load) -> Done:
        done = super().append(url, load)
        return done._replace(stored=done.stored + 1)


class Careless(PenstockEmbedded):
    """Stores other bodies than it acknowledges."""

    def append(self, url: str, load: Load) -> Done:
        done = super().append(url, load)
        return done._replace(check=done.check + 1)


def test_systems_that_do_not_keep_their_events_fail(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    systems: list[System] = [Forgetful(), Careless()]
    measure(systems, 1, Plan(frozenset({"1x1"}), 0.01, tmp_path, 0))
    assert systems == []
    assert capsys.readouterr().err.count("FAILED and is left out") == 2
