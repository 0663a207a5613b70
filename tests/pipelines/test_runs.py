"""A pipeline on a real Spark, round by round. The tests stand in the order in which they happen to one project."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from penstock.model import new_event
from penstock.pipelines.generating import make_project
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.reporting import status
from penstock.pipelines.state import read_state
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


class Running(NamedTuple):
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


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    place = tmp_path_factory.mktemp("pipeline")
    url = sell(place / "data", 1, 20)
    make_project(place / "shop", url, "shop")
    with rounds(place / "shop") as started:
        yield Running(place / "shop", place / "data", started)


def test_a_new_project_runs_as_it_is(running: Running) -> None:
    done = running.rounds.do()
    assert done == {"states": dict.fromkeys(FLOWS, "COMPLETED"), "failures": []}
    assert positions(running.folder, "bronze") == positions(running.folder, "order_placed") == list(range(1, 21))
    first = rows(running.folder, "order_placed")[0]
    assert (first["customer"], first["amount"], first["stream"]) == ("c1", 1, "order-1")
    assert rows(running.folder, "quarantine") == []
    (total,) = rows(running.folder, "events_per_type")
    assert total == {"type": "OrderPlaced", "events": 20, "first_position": 1, "last_position": 20}


def test_new_events_are_added_once_and_what_does_not_fit_is_kept_with_the_reason(running: Running) -> None:
    sell(running.data, 21, 5, *(new_event("OrderPlaced", body) for body in GARBAGE), new_event("Novel", b"{}"))
    assert running.rounds.do()["failures"] == []
    assert positions(running.folder, "bronze") == list(range(1, 33))
    assert positions(running.folder, "order_placed") == list(range(1, 26))
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


def test_a_round_without_new_events_adds_nothing(running: Running) -> None:
    assert running.rounds.do()["failures"] == []
    assert positions(running.folder, "order_placed") == list(range(1, 26))
    assert len(rows(running.folder, "quarantine")) == 7
    assert running.rounds.do(sessions=True) == {"sessions": 0}, "each round leaves what it has defined"


def test_status_knows_how_far_each_flow_is_also_while_spark_is_there(running: Running) -> None:
    sell(running.data, 33, 3)
    found = status(running.project)
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


def test_a_flow_that_fails_is_named_and_the_others_go_on(running: Running) -> None:
    (running.folder / "transformations" / "picky.py").write_text(BROKEN)
    done = running.rounds.do()
    assert done["failures"] == ["flow picky: no order like that at position 25"]
    assert done["states"] == {**dict.fromkeys(FLOWS, "COMPLETED"), "picky": "FAILED"}
    assert positions(running.folder, "order_placed") == [*range(1, 26), 33, 34, 35]
    (failed,) = (flow for flow in status(running.project).flows if flow.error is not None)
    assert (failed.flow, failed.rows, failed.error) == ("picky", 0, "no order like that at position 25")


def test_a_flow_that_failed_resumes_when_it_is_mended(running: Running) -> None:
    running.edit("transformations/picky.py", "== 25", "== -1")
    assert running.rounds.do()["failures"] == []
    assert positions(running.folder, "picky") == [*range(1, 26), 33, 34, 35]
    assert all(flow.error is None for flow in status(running.project).flows)


def test_a_column_more_holds_for_events_that_come(running: Running) -> None:
    running.edit("penstock.yml", "amount BIGINT NOT NULL", "amount BIGINT NOT NULL,\n      gift BOOLEAN")
    sell(running.data, 0, 0, new_event("OrderPlaced", b'{"customer": "Ada", "amount": 1, "gift": true}'))
    assert running.rounds.do()["failures"] == []
    found = rows(running.folder, "order_placed")
    assert (found[-1]["gift"], found[-1]["position"]) == (True, 36)
    assert "gift" not in found[0]


def test_a_column_of_another_type_is_refused_until_the_table_is_made_anew(running: Running) -> None:
    running.edit("penstock.yml", "amount BIGINT", "amount STRING")
    refused = running.rounds.do()["refused"]
    assert refused == (
        "table order_placed has rows in which the type of amount was another one; "
        "run with --full-refresh judged to judge all events anew"
    )
    assert running.rounds.do(check=True)["refused"] == refused
    running.edit("penstock.yml", "amount STRING", "amount DOUBLE")
    (running.folder / "transformations" / "spent.sql").write_text(SPENT)
    done = running.rounds.do(full_refresh=["judged"])
    assert (done["failures"], done["states"]["bronze"], done["states"]["spent"]) == ([], "COMPLETED", "COMPLETED")
    assert sum(row["amount"] for row in rows(running.folder, "spent")) == sum(range(1, 26)) + 33 + 34 + 35 + 1
    found = rows(running.folder, "order_placed")
    assert [row["position"] for row in found] == [*range(1, 26), 33, 34, 35, 36]
    assert (found[0]["amount"], found[0]["gift"]) == (1.0, None)
    assert positions(running.folder, "picky") == [*range(1, 26), 33, 34, 35, 36], "what reads it was made anew as well"
    assert len(rows(running.folder, "quarantine")) == 7


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


def test_a_table_that_is_not_there_cannot_be_made_anew(running: Running) -> None:
    refused = running.rounds.do(full_refresh=["orders"])["refused"]
    assert refused.startswith("table orders is not there; there are bronze, events_per_hour")


def test_a_lost_checkpoint_is_refused_and_mended_by_making_the_table_anew(running: Running) -> None:
    shutil.rmtree(running.folder / "storage" / "_checkpoints" / "spark_catalog" / "default" / "order_placed")
    refused = running.rounds.do()["refused"]
    assert refused == (
        "table order_placed has rows, but its checkpoint is gone: rows would be lost or come twice; "
        "run with --full-refresh order_placed to make it anew"
    )
    assert running.rounds.do(full_refresh=["order_placed"])["failures"] == []
    assert positions(running.folder, "order_placed") == [*range(1, 26), 33, 34, 35, 36]


def test_a_table_that_comes_back_when_its_source_was_made_anew_must_be_made_anew_too(running: Running) -> None:
    picky = running.folder / "transformations" / "picky.py"
    picky.write_text(BROKEN.replace("== 25", "== -1"))
    assert running.rounds.do()["refused"] == (
        "table picky has rows of an older order_placed, which was made anew since: rows would come twice; "
        "run with --full-refresh picky to make it anew"
    )
    picky.unlink()


def test_tables_that_are_all_gone_are_made_anew_by_the_command_that_is_told(running: Running) -> None:
    shutil.rmtree(running.folder / "tables")
    refused = running.rounds.do()["refused"]
    assert refused == (
        "table bronze is gone, but its checkpoint is there; there is something like that with judged, "
        "order_placed, quarantine too; run with --full-refresh bronze to make them anew"
    )
    assert running.rounds.do(full_refresh=["bronze"])["failures"] == []
    assert positions(running.folder, "order_placed") == [*range(1, 26), 33, 34, 35, 36]
    assert len(rows(running.folder, "quarantine")) == 7


def test_a_store_on_another_timeline_is_told_by_the_flow_that_reads_it(running: Running, tmp_path: Path) -> None:
    penstock("backup", str(tmp_path / "backup"), "--data", str(running.data))
    penstock("restore", str(tmp_path / "backup"), "--data", str(running.data), "--replace")
    sell(running.data, 37, 1)
    (failure, *_) = running.rounds.do()["failures"]
    assert failure.startswith("flow bronze: ")
    assert "timeline 2 of store" in failure
    assert positions(running.folder, "bronze") == list(range(1, 37))
