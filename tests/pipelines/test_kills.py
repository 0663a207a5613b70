"""A run that is killed with SIGKILL in the middle: the next one goes on, no row comes twice, none is lost."""

import signal
from pathlib import Path

import pytest

from penstock.model import new_event
from penstock.pipelines.checkpoints import checkpoints
from penstock.pipelines.projects import read_project
from penstock.pipelines.scaffold import make_project
from tests.pipelines.support import ENDING_S, in_batches_of, penstock, positions, sell, until
from tests.pipelines.test_follow import run
from tests.pipelines.test_runs import BROKEN

pytestmark = pytest.mark.long

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
    in_batches_of(folder, BATCH)
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
def test_columns_that_were_tried_by_a_run_that_is_killed_and_taken_back_lose_no_event(tmp_path: Path) -> None:
    folder, data = tmp_path / "shop", tmp_path / "data"
    make_project(folder, sell(data, 1, EVENTS))
    declared, former = folder / "penstock.yml", in_batches_of(folder, BATCH)
    declared.write_text(former.replace("amount BIGINT", "gift BOOLEAN NOT NULL,\n      amount BIGINT"))
    with run(folder) as process:
        until(lambda: committed(folder, "judged") >= 0, "a batch of judged")
        process.send_signal(signal.SIGKILL)
    declared.write_text(former)
    sell(data, 1, EVENTS)
    with run(folder) as process:
        _, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (0, "")
    good, bad = positions(folder, "order_placed"), positions(folder, "quarantine")
    assert sorted(good + bad) == list(range(1, 2 * EVENTS + 1))
    assert (1 in bad, 2 * EVENTS in good) == (True, True)
    declared.write_text(former.replace("amount BIGINT", "gift STRING,\n      amount BIGINT"))
    refused = penstock("pipeline", "run", str(folder), code=1)
    assert "table order_placed has rows in which the type of gift was another one" in refused.stderr


@pytest.mark.timeout(900)
def test_a_flow_that_fails_after_some_batches_says_so_in_a_line_and_goes_on_behind_them(tmp_path: Path) -> None:
    folder = tmp_path / "shop"
    make_project(folder, sell(tmp_path / "data", 1, 30))
    in_batches_of(folder, 10)
    silver, picky = (folder / "transformations" / name for name in ("silver.py", "picky.py"))
    silver.write_text(silver.read_text().replace("256 << 20", "1"))
    picky.write_text(BROKEN.replace(".readStream.", '.readStream.option("maxFilesPerTrigger", 1).'))
    with run(folder) as process:
        out, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (1, "penstock: flow picky: no order like that at position 25\n")
    assert "picky: failed, 20 rows (20 new)\n" in out
    assert "order_placed: completed, 30 rows (30 new)\n" in out
    assert {flow: committed(folder, flow) for flow in ("judged", "order_placed", "picky")} == {
        "judged": 2,
        "order_placed": 2,
        "picky": 1,
    }
    picky.write_text(picky.read_text().replace("== 25", "== -1"))
    with run(folder) as process:
        out, said = process.communicate(timeout=8 * ENDING_S)
    assert (process.returncode, said) == (0, "")
    assert "picky: completed, 30 rows (10 new)\n" in out
    assert positions(folder, "picky") == list(range(1, 31))


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
    told = "older events of type OrderPlaced are not in its new table: --full-refresh judged adds them"
    assert (process.returncode, said) == (0, f"penstock: {told}\n")
    assert positions(folder, "order_placed") == [1, 2, 3, 4, 5]
    assert positions(folder, "quarantine") == []
