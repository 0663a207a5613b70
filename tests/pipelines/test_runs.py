"""A pipeline on a real Spark, round by round. Each test has a project and a Spark of its own, and says its steps.

What may be changed between two rounds is in `test_changes`, what belongs together in `test_projects`: without Spark.
"""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.model import new_event
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.state import read_state
from penstock.pipelines.status import status
from tests.pipelines.support import GARBAGE, Rounds, penstock, positions, rounds, rows, sell

pytestmark = pytest.mark.timeout(600)
"""A round takes seconds, and many times that on a machine that is busy."""
FLOWS = ("bronze", "judged", "order_placed", "quarantine", "events_per_hour", "events_per_type", "quarantine_per_type")
BROKEN = """
from pyspark import pipelines as dp
from pyspark.sql import functions as f


@dp.table
def picky():
    wrong = f.raise_error(f.concat(f.lit("no order like that at position "), f.col("position")))
    return spark.readStream.table("order_placed").select("position", f.when(f.col("amount") == 25, wrong).alias("x"))
"""


SPENT = "CREATE MATERIALIZED VIEW spent AS SELECT customer, sum(amount) AS amount FROM order_placed GROUP BY customer"

RETYPED = (
    "table order_placed has rows in which the type of amount was another one; "
    "run with --full-refresh judged to check all events again"
)


class Running(NamedTuple):
    """A project, and a process that runs it in rounds."""

    folder: Path
    data: Path
    rounds: Rounds

    @property
    def project(self) -> Project:
        return read_project(self.folder)

    def edit(self, file: str, old: str, new: str) -> None:
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def add(self, file: str, text: str) -> None:
        (self.folder / "transformations" / file).write_text(text)

    def round(self, *full_refresh: str) -> None:
        """A round in which all goes well."""
        assert self.rounds.do(full_refresh=full_refresh)["failures"] == []


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """A new project of a history with 20 orders, to which come 5 more, bodies that do not fit, and another type."""
    data = tmp_path / "data"
    make_project(tmp_path / "shop", sell(data, 1, 20), "shop")
    sell(data, 21, 5, *(new_event("OrderPlaced", body) for body in GARBAGE), new_event("Novel", b"{}"))
    with rounds(tmp_path / "shop") as started:
        yield Running(tmp_path / "shop", data, started)


def test_a_new_project_runs_as_it_is_and_keeps_what_does_not_fit_with_the_reason(running: Running) -> None:
    run_as_it_is(running)


def run_as_it_is(running: Running) -> None:
    done = running.rounds.do()
    assert done == {"states": dict.fromkeys(FLOWS, "COMPLETED"), "failures": []}
    assert positions(running.folder, "bronze") == list(range(1, 33))
    assert positions(running.folder, "order_placed") == list(range(1, 26))
    first = rows(running.folder, "order_placed")[0]
    assert (first["customer"], first["amount"], first["stream"]) == ("c1", 1, "order-1")
    found = rows(running.folder, "quarantine")
    assert [(row["position"], row["body"]) for row in found[:-1]] == list(enumerate(GARBAGE, 26))
    assert [row["reason"] for row in found] == [
        "the body is no JSON: expecting value: line 1 column 1 (char 0)",
        "the body is a list, not an object",
        "the body is no text",
        "customer is 5, not STRING",
        "customer is missing",
        "the body is no JSON: expecting ',' delimiter: line 1 column 19 (char 18)",
        "type Novel has no table",
    ]
    total = rows(running.folder, "events_per_type")[-1]
    assert total == {"type": "OrderPlaced", "events": 31, "first_position": 1, "last_position": 31}

    # What a run leaves behind has events in it, and is for its owner alone.
    made = [running.folder / name for name in ("tables", "storage", "metastore", ".penstock")]
    files = [path for folder in made for path in folder.rglob("*") if path.is_file()]
    assert [path for path in (*made, *files) if path.stat().st_mode & 0o077] == []

    # Status knows how far each flow is, also while Spark is there.
    sell(running.data, 33, 3)
    check_status(running.project)


@pytest.mark.long
def test_a_project_takes_what_comes_and_goes_on_behind_a_flow_that_fails(running: Running) -> None:
    run_as_it_is(running)

    # A flow that fails is named, and the others go on; each round leaves what it has defined.
    running.add("picky.py", BROKEN)
    done = running.rounds.do()
    assert done["failures"] == ["flow picky: no order like that at position 25"]
    assert done["states"] == {**dict.fromkeys(FLOWS, "COMPLETED"), "picky": "FAILED"}
    assert positions(running.folder, "order_placed") == [*range(1, 26), 33, 34, 35]
    (failed,) = (flow for flow in status(running.project).flows if flow.error is not None)
    assert (failed.flow, failed.rows, failed.error) == ("picky", 0, "no order like that at position 25")
    assert running.rounds.do(sessions=True) == {"sessions": 0}

    # It resumes when it is mended, nothing comes twice, and a column more holds for events that come.
    running.edit("transformations/picky.py", "== 25", "== -1")
    running.edit("penstock.yml", "amount BIGINT NOT NULL", "amount BIGINT NOT NULL,\n      gift BOOLEAN")
    sell(running.data, 0, 0, new_event("OrderPlaced", b'{"customer": "Ada", "amount": 1, "gift": true}'))
    running.round()
    assert positions(running.folder, "picky") == [*range(1, 26), 33, 34, 35, 36]
    assert all(flow.error is None for flow in status(running.project).flows)
    found = rows(running.folder, "order_placed")
    assert [row["position"] for row in found] == [*range(1, 26), 33, 34, 35, 36]
    assert (found[-1]["gift"], "gift" in found[0]) == (True, False)
    assert len(rows(running.folder, "quarantine")) == 7

    # What cannot be run is refused before anything is.
    running.edit("penstock.yml", "amount BIGINT", "amount STRING")
    refused = running.rounds.do()["refused"]
    assert refused == RETYPED
    assert running.rounds.do(check=True)["refused"] == refused


def check_status(project: Project) -> None:
    found = status(project)
    assert found.head == 35
    assert found.in_use_by is not None
    assert found.in_use_by.startswith("test of process")
    flows = {flow.flow: flow for flow in found.flows}
    assert set(flows) == set(FLOWS)
    bronze, orders, quarantine = flows["bronze"], flows["order_placed"], flows["quarantine"]
    assert (bronze.source, bronze.rows, bronze.position, bronze.lag) == ("store", 32, 32, 3)
    assert (flows["judged"].source, flows["judged"].rows, flows["judged"].position) == ("bronze", 32, 32)
    assert (orders.source, orders.rows, orders.position, orders.lag) == ("judged", 25, 32, 0)
    assert (quarantine.rows, flows["events_per_type"].rows) == (7, 2)
    assert all(flow.last_run is not None and flow.error is None for flow in found.flows)


@pytest.mark.long
def test_tables_are_made_anew_when_columns_checkpoints_or_tables_are_others(running: Running, tmp_path: Path) -> None:
    good = list(range(1, 26))
    running.add("picky.py", BROKEN.replace("== 25", "== -1"))
    running.round()
    # A round without new events adds nothing.
    running.round()
    assert positions(running.folder, "picky") == positions(running.folder, "order_placed") == good
    assert len(rows(running.folder, "quarantine")) == 7

    # A column of another type is refused until all events are judged anew, and then those who read them are run anew.
    running.edit("penstock.yml", "amount BIGINT", "amount DOUBLE")
    assert running.rounds.do()["refused"] == RETYPED
    running.add("spent.sql", SPENT)
    done = running.rounds.do(full_refresh=["judged"])
    assert (done["failures"], done["states"]["bronze"], done["states"]["spent"]) == ([], "COMPLETED", "COMPLETED")
    assert sum(row["amount"] for row in rows(running.folder, "spent")) == sum(good)
    assert rows(running.folder, "order_placed")[0]["amount"] == 1.0
    assert positions(running.folder, "picky") == positions(running.folder, "order_placed") == good
    assert len(rows(running.folder, "quarantine")) == 7

    # A table that is not there cannot be made anew.
    refused = running.rounds.do(full_refresh=["orders"])["refused"]
    assert refused.startswith("table orders is not there; there are bronze, events_per_hour")

    # A lost checkpoint is refused, and mended by making the table anew.
    (running.folder / "transformations" / "picky.py").unlink()
    shutil.rmtree(running.folder / "storage" / "_checkpoints" / "spark_catalog" / "default" / "order_placed")
    assert running.rounds.do()["refused"] == (
        "table order_placed has rows, but its checkpoint is gone: rows would be lost or come twice; "
        "run with --full-refresh order_placed"
    )
    running.round("order_placed")
    assert positions(running.folder, "order_placed") == good

    # A table that comes back when its source was made anew must be made anew too.
    running.add("picky.py", BROKEN.replace("== 25", "== -1"))
    assert running.rounds.do()["refused"] == (
        "table picky has rows of an older order_placed, which was refreshed since: rows would come twice; "
        "run with --full-refresh picky"
    )
    (running.folder / "transformations" / "picky.py").unlink()

    # Tables that are all gone are made anew by the command that is told.
    shutil.rmtree(running.folder / "tables")
    assert running.rounds.do()["refused"] == (
        "table bronze is gone, but its checkpoint is there; judged, order_placed, quarantine have "
        "problems too; run with --full-refresh bronze"
    )
    running.round("bronze")
    assert positions(running.folder, "order_placed") == good
    assert len(rows(running.folder, "quarantine")) == 7

    # A store on another timeline is told by the flow that reads it.
    penstock("backup", str(tmp_path / "backup"), "--data", str(running.data))
    penstock("restore", str(tmp_path / "backup"), "--data", str(running.data), "--replace")
    sell(running.data, 33, 1)
    (failure, *_) = running.rounds.do()["failures"]
    assert failure.startswith("flow bronze: ")
    assert "timeline 2 of store" in failure
    assert positions(running.folder, "bronze") == list(range(1, 33))


@pytest.mark.long
def test_what_is_wrong_in_the_files_is_named_and_nothing_is_run(running: Running) -> None:
    def check() -> dict[str, Any]:
        return running.rounds.do(check=True)

    before = read_state(running.project)
    path = running.folder / "transformations" / "picky.py"
    for text, told in (
        ("def (", "shop cannot be loaded: transformations/picky.py, line 1: invalid syntax"),
        (
            "nobody()",
            "shop cannot be loaded: transformations/picky.py, line 1: NameError: name 'nobody' is not defined",
        ),
    ):
        path.write_text(text)
        assert check()["refused"] == told
    path.write_text(BROKEN.replace("def picky", "def bronze"))
    assert check()["refused"].endswith(": table bronze is defined twice")
    path.write_text(BROKEN.replace('"amount"', '"amuont"'))
    assert check()["failures"][0].startswith("flow picky: A column, variable, or function parameter with name `amuont`")
    path.write_text(BROKEN.replace('"order_placed"', '"orders"'))
    assert check()["failures"][0].startswith("flow picky: The table or view `spark_catalog`.`default`.`orders` cannot")
    path.unlink()
    path = running.folder / "transformations" / "broken.sql"
    path.write_text("CRATE MATERIALIZED VIEW broken AS SELECT 1")
    assert check()["refused"].startswith("shop cannot be loaded: transformations/broken.sql: Syntax error at or near")
    path.unlink()
    silver = running.folder / "transformations" / "silver.py"
    kept = silver.read_text()
    silver.write_text(kept.replace("def judged", "def judged_otherwise"))
    assert check()["refused"].startswith("shop is of an earlier version, which had no table judged: make a new project")
    silver.write_text(kept)
    assert check()["failures"] == []
    assert read_state(running.project) == before
