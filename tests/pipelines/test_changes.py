"""What may be changed in `penstock.yml` between two runs, and what is refused: without Spark."""

from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.model import new_event
from penstock.pipelines.integrity import added_types, after_run, before_run, check_changes, with_judged
from penstock.pipelines.projects import Project, read_project
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.state import write_state
from tests.pipelines.support import in_batches_of, sell


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sell(tmp_path_factory.mktemp("store") / "data", 1, 3, new_event("OrderPaid", b"{}"))


@pytest.fixture
def folder(url: str, tmp_path: Path) -> Path:
    return make_project(tmp_path / "shop", url).folder


def edited(folder: Path, old: str, new: str) -> Project:
    path = folder / "penstock.yml"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    return read_project(folder)


def begin(project: Project, *refreshed: str, is_done: bool = True) -> None:
    """A run that is done, or that is cut off right after its beginning."""
    check_changes(project, with_judged(project, refreshed))
    write_state(project, {"made": before_run(project)})
    if is_done:
        write_state(project, {"made": after_run(project, with_judged(project, refreshed))})


def test_columns_may_come_and_go_but_not_with_another_type(folder: Path) -> None:
    begin(read_project(folder))
    begin(edited(folder, ",\n      amount BIGINT NOT NULL", ""))
    project = edited(folder, "customer STRING NOT NULL", "customer STRING NOT NULL, amount STRING")
    told = (
        r"^table order_placed has rows in which the type of amount was another one; "
        r"run with --full-refresh judged to check all events again$"
    )
    for refreshed in ((), ["order_placed"], ["order_placed", "quarantine"]):
        with pytest.raises(InvalidRequest, match=told):
            check_changes(project, refreshed)
    with pytest.raises(InvalidRequest, match="table orders has rows in which the type of amount was another one"):
        check_changes(edited(folder, "table: order_placed", "table: orders"), ())
    begin(project, "judged")
    begin(project)
    with pytest.raises(InvalidRequest, match="the type of amount was another one"):
        check_changes(edited(folder, "amount STRING", "amount BIGINT"), ())


def test_what_a_run_began_with_counts_also_if_it_was_cut_off(folder: Path) -> None:
    begin(read_project(folder))
    begin(edited(folder, "amount BIGINT", "amount STRING"), "judged", is_done=False)
    for type in ("STRING", "BIGINT"):
        with pytest.raises(InvalidRequest, match="the type of amount was another one"):
            check_changes(edited(folder, "amount STRING", f"amount {type}"), ())
    begin(read_project(folder), "judged")
    begin(read_project(folder))


def test_a_table_keeps_its_type(folder: Path) -> None:
    begin(read_project(folder))
    project = edited(folder, "table: order_placed", "table: order_paid_3")
    begin(project)
    project = edited(folder, "table: order_paid\n", "table: order_placed\n")
    with pytest.raises(InvalidRequest, match="table order_placed has events of type OrderPlaced, not OrderPaid; run"):
        check_changes(project, ())
    begin(project, "judged")
    begin(project)


def test_another_source_makes_bronze_anew(folder: Path) -> None:
    begin(read_project(folder))
    in_batches_of(folder, 7)
    begin(edited(folder, "  url:", "  endPosition: 100\n  url:"))
    project = edited(folder, "  url:", "  type: OrderPlaced\n  startTime: 2024-05-01\n  url:")
    assert project.declared.source["startTime"] == "2024-05-01"
    with pytest.raises(
        InvalidRequest,
        match=r"penstock\.yml has another startTime and type in source than bronze was made with, which would lack "
        r"older events; run with --full-refresh bronze, or restore the old source$",
    ):
        check_changes(project, ["judged"])
    begin(project, "bronze")
    begin(project)


def test_types_that_were_added_are_known_until_they_are_run(folder: Path) -> None:
    assert added_types(read_project(folder)) == []
    begin(read_project(folder))
    project = edited(folder, "types:\n", "types:\n  New:\n    table: new\n    columns: a INT\n")
    assert added_types(project) == ["New"]
    begin(project)
    assert added_types(project) == []


def test_judging_anew_makes_all_tables_of_types_anew(folder: Path) -> None:
    project = read_project(folder)
    assert with_judged(project, ["order_placed"]) == ["order_placed"]
    names = ["judged", "quarantine", *(table.name for table in project.declared.tables)]
    assert with_judged(project, ["judged"]) == names
    assert with_judged(project, ["bronze"]) == ["bronze", *names]
