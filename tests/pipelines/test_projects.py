"""New projects, and what is wrong with those that people have edited: without Spark."""

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from penstock.cli import app
from penstock.errors import InvalidRequest
from penstock.model import new_event
from penstock.pipelines import event_tables
from penstock.pipelines.checkpoints import checkpoints
from penstock.pipelines.integrity import check_integrity, refreshed_with
from penstock.pipelines.projects import TAKEN, is_table_name, local_path, read_project, table_name, table_names
from penstock.pipelines.runs import flow_event, reason
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.state import holder, lock_project
from penstock.pipelines.status import status
from tests.cli.conftest import no_settings as no_settings  # noqa: PLC0414 - a fixture that is used by itself
from tests.pipelines.support import order, sell
from tests.spark.support import fill


def penstock(*words: str, code: int = 0) -> Result:
    """A command in this process, that ends with this exit code."""
    result = CliRunner().invoke(app, words)
    assert result.exit_code == code, result.stderr
    return result


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    events = [new_event(type, b"{}") for type in ("order.paid", "OrderPaid", "Bronze", "42")]
    return sell(tmp_path_factory.mktemp("store") / "data", 1, 3, *events, new_event("Blob", b"\x00"))


@pytest.fixture
def folder(url: str, tmp_path: Path) -> Path:
    return make_project(tmp_path / "shop", url).folder


def test_a_project_has_a_table_for_each_type_with_the_columns_that_were_found(folder: Path) -> None:
    found = event_tables(folder)
    assert {table.type: table.name for table in found.tables} == {
        "42": "type_42",
        "Bronze": "bronze_2",
        "OrderPaid": "order_paid",
        "OrderPlaced": "order_placed",
        "order.paid": "order_paid_2",
    }
    assert found.columns["OrderPlaced"].split(",\n") == ["customer STRING NOT NULL", "amount BIGINT NOT NULL\n"]
    assert found.ignored == ("Blob",)
    assert event_tables(folder / "transformations" / "silver.py") == found
    project = read_project(folder)
    assert (project.name, project.tables, project.metastore) == ("shop", folder / "tables", folder / "metastore")
    assert project.checkpoints == folder / "storage" / "_checkpoints"


def test_what_is_new_in_a_project_is_said(url: str, tmp_path: Path) -> None:
    made = penstock("pipeline", "init", str(tmp_path / "shop"), "--url", url, "--name", "true")
    assert made.stdout.splitlines()[0] == f"{tmp_path / 'shop'}: bronze, 5 tables of types, quarantine and sums"
    assert made.stdout.splitlines()[1:3] == ["  type_42  (42)", "  bronze_2  (Bronze)"]
    assert made.stderr.splitlines() == [
        "penstock: no body of type Blob is a JSON object: such events are in bronze alone",
        "penstock: type Bronze has the table bronze_2, as bronze is taken",
        "penstock: type order.paid has the table order_paid_2, as order_paid is taken",
    ]
    assert read_project(tmp_path / "shop").name == "true"


def test_a_project_may_be_of_some_types_of_one_context(url: str, tmp_path: Path) -> None:
    made = make_project(tmp_path / "shop", url, "shop", ["OrderPlaced", "42"], events=2)
    assert set(made.tables) == {"OrderPlaced", "42"}
    source = {"url": url, "context": "shop", "type": "OrderPlaced,42", "maxEventsPerTrigger": "1000000"}
    assert event_tables(tmp_path / "shop").source == source


def test_a_history_without_events_makes_a_project_that_can_be_filled_in(tmp_path: Path) -> None:
    made = make_project(tmp_path / "shop", fill(tmp_path / "data", []))
    assert made.notes == ["there are no such events yet: name their types and columns in penstock.yml when they come"]
    assert read_project(tmp_path / "shop").declared.tables == ()


def test_a_folder_that_is_not_empty_is_left_alone(url: str, tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    refused = penstock("pipeline", "init", str(tmp_path), "--url", url, code=1)
    assert refused.stderr == f"penstock: {tmp_path} is not empty; name a new folder\n"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    with pytest.raises(InvalidRequest, match="is no folder"):
        make_project(tmp_path / "mine", url)


def test_a_store_that_is_not_there_makes_no_project(tmp_path: Path) -> None:
    penstock("pipeline", "init", str(tmp_path / "shop"), "--url", f"sqlite:///{tmp_path}/nowhere", code=1)
    assert not (tmp_path / "shop").exists()


@given(st.lists(st.text(min_size=1, max_size=140), unique=True))
def test_every_type_gets_a_name_of_its_own(types: list[str]) -> None:
    names = table_names(types)
    assert list(names) == sorted(types)
    assert len({*names.values(), *TAKEN}) == len(types) + len(TAKEN)
    assert all(map(is_table_name, names.values()))


@pytest.mark.parametrize(
    ("type", "name"),
    [
        ("OrderPlaced", "order_placed"),
        ("HTTPRequest", "http_request"),
        ("order-placed/v2", "order_placed_v2"),
        ("É", "type"),
    ],
)
def test_names_of_tables_are_those_of_types(type: str, name: str) -> None:
    assert table_name(type) == name


@pytest.mark.parametrize(
    ("file", "old", "new", "told"),
    [
        ("penstock.yml", "source:", "source: {", "penstock.yml is no YAML: "),
        ("penstock.yml", "source:", "sources:", "has 'sources', which is unknown; there are source, types, ignored"),
        ("penstock.yml", "  url:", "  urll:", "has 'urll' in source, which is unknown; there are url, context"),
        ("penstock.yml", "  url:", "  context:", "says no url in source"),
        (
            "penstock.yml",
            "amount BIGINT",
            "amount BIGNT",
            "type OrderPlaced: columns cannot be read: amount has the type",
        ),
        (
            "penstock.yml",
            "table: order_placed",
            "table: order_paid",
            "OrderPaid and OrderPlaced have the same table order_",
        ),
        ("penstock.yml", "table: order_placed", "table: bronze", "has the table bronze, which every project has"),
        ("penstock.yml", "table: order_placed", "table: a.b", "has the table 'a.b': small letters, digits and _"),
        ("penstock.yml", "table: order_placed", "tabel: order_placed", "has 'tabel' in type OrderPlaced, which is"),
        ("penstock.yml", "    table: order_placed\n", "", "OrderPlaced must have a table and its columns"),
        ("penstock.yml", "ignored: [Blob]", "ignored: Blob", "ignored must be a list of types"),
        (
            "penstock.yml",
            "ignored: [Blob]",
            "ignored: [Blob, OrderPlaced]",
            "says that OrderPlaced has a table and is ignored: what does not fit would be in no table",
        ),
        ("penstock.yml", "  OrderPaid:", "  OrderPlaced:", "has 'OrderPlaced' twice, in line "),
        ("penstock.yml", "table: order_placed", "table: a\n    table: b", "has 'table' twice, in line "),
        (
            "penstock.yml",
            "  url:",
            "  filter:\n  url:",
            "filter in source must be a text, a number or a time, and is None",
        ),
        (
            "penstock.yml",
            "  url:",
            "  type: [a, b]\n  url:",
            "type in source must be a text, a number or a time, and is [",
        ),
        ("penstock.yml", "  url:", "  startPosition: yes\n  url:", "a time, and is True"),
        ("spark-pipeline.yml", "storage:", "storage: a\nstorage:", "has 'storage' twice, in line "),
        ("spark-pipeline.yml", "storage:", "- storage:", "spark-pipeline.yml is no YAML: "),
        ("spark-pipeline.yml", "storage:", "storages:", "spark-pipeline.yml must say storage"),
        (
            "spark.conf",
            "spark.sql.catalogImplementation hive",
            "spark.sql.catalogImplementation",
            "has no value in line 2",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named(folder: Path, file: str, old: str, new: str, told: str) -> None:
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(InvalidRequest) as caught:
        read_project(folder)
    assert str(path) in str(caught.value)
    assert told in str(caught.value)


def test_files_that_are_missing_are_named(folder: Path) -> None:
    for file in ("spark.conf", "penstock.yml", "spark-pipeline.yml"):
        (folder / file).unlink()
        with pytest.raises(InvalidRequest, match=file):
            read_project(folder)
    done = penstock("pipeline", "status", str(folder), code=1)
    assert done.stderr == f"penstock: {folder} is no pipeline: there is no spark-pipeline.yml\n"


def test_a_project_that_was_never_run_has_a_status(folder: Path) -> None:
    done = penstock("pipeline", "status", str(folder))
    assert (done.stdout, done.stderr) == ("", f"{folder} has not been run yet\n")
    told = json.loads(penstock("pipeline", "status", str(folder), "--json").stdout)
    assert (told["head"], told["flows"], told["in_use_by"], told["unreachable"]) == (8, [], None, None)


def test_a_store_that_cannot_be_reached_leaves_the_rest_of_the_status(folder: Path, tmp_path: Path) -> None:
    text = (folder / "penstock.yml").read_text().replace("sqlite:///", f"sqlite:///{tmp_path}/gone")
    (folder / "penstock.yml").write_text(text)
    found = status(read_project(folder))
    assert (found.head, found.flows) == (None, [])
    assert found.unreachable is not None
    assert str(tmp_path) in found.unreachable


def test_two_runs_at_once_are_refused(folder: Path) -> None:
    project = read_project(folder)
    with lock_project(project, "run"):
        done = penstock("pipeline", "run", str(folder), code=1)
        assert done.stderr.startswith(f"penstock: {folder} is in use by run of process ")
        assert (holder(project) or "").startswith("run of process ")
    assert holder(project) is None


def test_the_status_during_the_first_run_says_so(folder: Path) -> None:
    with lock_project(read_project(folder), "run"):
        in_use, told = penstock("pipeline", "status", str(folder)).stderr.splitlines()
    assert in_use.startswith("penstock: in use by run of process ")
    assert told == f"{folder} has nothing to show yet: its first run is in progress"
    with lock_project(read_project(folder), "dry-run"):
        assert penstock("pipeline", "status", str(folder)).stderr.endswith(" has not been run yet\n")


def test_an_interval_without_follow_is_refused(folder: Path) -> None:
    refused = penstock("pipeline", "run", str(folder), "--interval", "5", code=2)
    assert "--interval is the time between rounds of --follow: use both or none" in refused.stderr


def test_an_example_that_is_not_there_is_named(tmp_path: Path) -> None:
    words = ("pipeline", "init", str(tmp_path / "shop"), "--url", "sqlite:///x", "--example", "foo")
    assert penstock(*words, code=1).stderr == "penstock: example foo is unknown; what there is: shop\n"


def log(folder: Path, *batches: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for batch in batches:
        (folder / str(batch)).write_text("v1\n")


def test_tables_and_checkpoints_must_belong_together(folder: Path) -> None:
    project = read_project(folder)
    table, checkpoint = (
        folder / "tables" / "t",
        folder / "storage" / "_checkpoints" / "spark_catalog" / "default" / "t" / "t",
    )
    check_integrity(project)
    log(table / "_spark_metadata", 0, 1)
    with pytest.raises(
        InvalidRequest, match=r"metastore is gone, but the tables are there; remove .*tables and .*storage"
    ):
        check_integrity(project)
    (folder / "metastore").mkdir()
    with pytest.raises(InvalidRequest, match=r"table t has rows, but its checkpoint is gone.*--full-refresh t$"):
        check_integrity(project)
    log(checkpoint / "0" / "offsets", 0)
    log(checkpoint / "0" / "commits", 0)
    with pytest.raises(InvalidRequest, match="has batch 1, but its checkpoint only knows 0"):
        check_integrity(project)
    log(checkpoint / "0" / "offsets", 1, 2)
    check_integrity(project)
    log(checkpoint / "0" / "commits", 1, 2)
    with pytest.raises(InvalidRequest, match="has lost rows: its checkpoint says that batch 2 was written"):
        check_integrity(project)
    check_integrity(project, ["t"])
    shutil.rmtree(table)
    with pytest.raises(InvalidRequest, match="is gone, but its checkpoint is there"):
        check_integrity(project)
    (checkpoint / "1").mkdir()
    check_integrity(project)
    assert refreshed_with(project, ["t"]) == ["t"]


def test_a_table_may_be_called_as_a_part_of_a_checkpoint(folder: Path) -> None:
    for name in ("offsets", "commits"):
        checkpoint_of(folder, name, "a")
    found = checkpoints(read_project(folder).checkpoints)
    assert [(each.target, each.flow, each.committed) for each in found] == [
        ("commits", "commits", 0),
        ("offsets", "offsets", 0),
    ]


def test_everything_that_must_be_made_anew_is_in_one_command(folder: Path) -> None:
    project, names = read_project(folder), ("bronze", "order_placed", "quarantine")
    (folder / "metastore").mkdir()
    for name in names:
        log(folder / "tables" / name / "_spark_metadata", 0)
    with pytest.raises(InvalidRequest) as caught:
        check_integrity(project)
    assert str(caught.value) == (
        "table bronze has rows, but its checkpoint is gone: rows would be lost or come twice; order_placed, "
        "quarantine have problems too; run with --full-refresh bronze --full-refresh order_placed "
        "--full-refresh quarantine"
    )
    check_integrity(project, refreshed_with(project, names))
    shutil.rmtree(folder / "tables")
    for name in names:
        checkpoint_of(folder, name, *(["a"] if name != "bronze" else []))
    with pytest.raises(
        InvalidRequest,
        match=r"^table bronze is gone, but its checkpoint is there; order_placed, quarantine have problems too; "
        r"run with --full-refresh bronze$",
    ):
        check_integrity(project)
    check_integrity(project, refreshed_with(project, ["bronze"]))


def test_what_spark_says_becomes_a_line() -> None:
    ours = 'ERROR\n  File "x.py"\npenstock.errors.StoreChanged: it was another one\n\nJVM stacktrace:\norg.x.Y: z'
    assert reason(ours) == "it was another one"
    assert (
        reason("[STREAM_FAILED] Query [id = 1] ended: [TABLE_GONE] It is gone. SQLSTATE: XX000\nplan") == "It is gone."
    )
    assert reason("[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: It ended.") == "It ended."
    assert reason("Traceback\nValueError: bad\n") == "ValueError: bad"
    assert reason("") == "Spark does not say why"
    event = flow_event("Flow 'spark_catalog.default.bronze' has FAILED more than 0 times.\nError: [DIVIDE_BY_ZERO] No.")
    assert event is not None
    assert event == ("bronze", "FAILED", "No.")
    event = flow_event(
        "Failed to resolve flow: 'spark_catalog.default.orders'.\nError: [UNRESOLVED_COLUMN.WITH_SUGGESTION] A column "
        "with name `nope` cannot be resolved. SQLSTATE: 42703;\n'Project ['nope]\n+- ~Filter (type#1 = OrderPlaced)"
    )
    assert event == ("orders", "FAILED", "A column with name `nope` cannot be resolved.")
    assert flow_event("Run is COMPLETED.") is None


def test_places_on_this_machine_have_paths() -> None:
    assert local_path("file:///a%20b/c") == Path("/a b/c")
    assert local_path("s3://bucket/x") is None


def test_the_sample_is_of_the_end_and_the_beginning(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.pipelines.inference.LOOKED_AT_MAX", 2)
    made = make_project(tmp_path / "shop", url)
    assert set(made.tables) == {"OrderPlaced", "42"}
    assert "4 positions in the middle of the history were not looked at" in made.notes
    assert order(1).type == "OrderPlaced"


def checkpoint_of(folder: Path, table: str, *files: str) -> None:
    """A checkpoint of a flow that has read these files of bronze in one batch."""
    path = folder / "storage" / "_checkpoints" / "spark_catalog" / "default" / table / table / "0"
    log(path / "commits", 0)
    log(path / "offsets", 0)
    (path / "offsets" / "0").write_text('v1\n{}\n{"logOffset":0}')
    log(path / "sources" / "0", 0)
    entries = [json.dumps({"path": (folder / "tables" / "bronze" / file).as_uri()}) for file in files]
    (path / "sources" / "0" / "0").write_text("\n".join(["v1", *entries]))


def test_tables_that_read_one_that_is_made_anew_are_found(folder: Path) -> None:
    checkpoint_of(folder, "order_placed", "a")
    checkpoint_of(folder, "quarantine", "a")
    project = read_project(folder)
    assert refreshed_with(project, ["bronze"]) == ["bronze", "order_placed", "quarantine"]
    for table in ("bronze", "order_placed"):
        log(folder / "tables" / table / "_spark_metadata", 0)
    (folder / "metastore").mkdir()
    with pytest.raises(
        InvalidRequest, match="table order_placed has rows of an older bronze, which was refreshed since"
    ):
        check_integrity(project, (), ["order_placed"])
