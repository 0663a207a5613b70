"""A run that is killed with SIGKILL in the middle: the next one goes on, no row comes twice, none is lost."""

import signal
from pathlib import Path

import pytest

from penstock.model import new_event
from penstock.pipelines.checkpoints import checkpoints
from penstock.pipelines.generating import make_project
from penstock.pipelines.projects import read_project
from tests.pipelines.support import ENDING_S, positions, sell, until
from tests.pipelines.test_follow import run
from tests.pipelines.test_runs import BROKEN

EVENTS = 400
MISFITS = 20
BATCH = 25


def committed(folder: Path, flow: str) -> int:
    found = {each.flow: each.committed for each in checkpoints(read_project(folder).checkpoints)}
    return found.get(flow, -1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("flow", ["bronze", "order_placed"])
def test_a_run_that_is_killed_is_taken_up_where_it_was(tmp_path: Path, flow: str) -> None:
    folder, data = tmp_path / "shop", tmp_path / "data"
    url = sell(data, 1, EVENTS, *(new_event("OrderPlaced", b"garbage") for _ in range(MISFITS)))
    make_project(folder, url)
    declared = folder / "penstock.yml"
    declared.write_text(declared.read_text().replace("  url:", f"  maxEventsPerTrigger: {BATCH}\n  url:"))
    with run(folder) as process:
        until(lambda: committed(folder, flow) >= 0, f"a batch of {flow}")
        process.send_signal(signal.SIGKILL)
    with run(folder) as process:
        _, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (0, "")
    everything = list(range(1, EVENTS + MISFITS + 1))
    assert positions(folder, "bronze") == everything
    assert positions(folder, "order_placed") == everything[:EVENTS]
    assert positions(folder, "quarantine") == everything[EVENTS:]


@pytest.mark.timeout(900)
def test_a_run_that_fails_says_so_in_a_line(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    make_project(folder, sell(tmp_path / "data", 1, 30))
    (folder / "transformations" / "picky.py").write_text(BROKEN)
    with run(folder) as process:
        out, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (1, "penstock: flow picky: no order like that at position 25\n")
    assert "picky: failed, 0 rows\n" in out
    assert "order_placed: completed, 30 rows (30 new)\n" in out


@pytest.mark.timeout(900)
def test_a_project_of_an_empty_history_runs_and_takes_the_types_that_come(tmp_path: Path) -> None:
    folder, data = tmp_path / "shop", tmp_path / "data"
    make_project(folder, sell(data, 1, 0))
    with run(folder) as process:
        out, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (0, "")
    assert "bronze: completed, 0 rows\n" in out
    sell(data, 1, 5)
    declared = folder / "penstock.yml"
    entry = "types:\n  OrderPlaced:\n    table: order_placed\n    columns: customer STRING NOT NULL\n"
    declared.write_text(declared.read_text().replace("types: {}\n", entry))
    with run(folder) as process:
        _, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (0, "")
    assert positions(folder, "order_placed") == [1, 2, 3, 4, 5]
    assert positions(folder, "quarantine") == []
