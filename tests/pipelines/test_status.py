"""How far flows are, from what Spark has left on disk: without Spark."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from penstock.pipelines import status as pipeline_status
from penstock.pipelines.projects import read_project
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.status import RowCounts, status
from tests.pipelines.support import sell


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_project(tmp_path / "shop", sell(tmp_path / "data", 1, 40)).folder


def add(folder: Path, table: str, batch: int, first: int, last: int) -> Path:
    """A file with the rows of these positions, in a batch of its own."""
    file = folder / "tables" / table / f"{batch}.parquet"
    file.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"position": list(range(first, last + 1))}), file)
    log = file.parent / "_spark_metadata"
    log.mkdir(exist_ok=True)
    (log / str(batch)).write_text("v1\n" + json.dumps({"path": file.as_uri(), "action": "add"}))
    return file


def checkpoint(folder: Path, table: str, offsets: list[dict[str, int]], *sources: list[Path]) -> None:
    path = folder / "storage" / "_checkpoints" / "spark_catalog" / "default" / table / table / "0"
    for name in ("offsets", "commits", *(f"sources/{number}" for number in range(len(sources)))):
        (path / name).mkdir(parents=True)
    (path / "offsets" / "0").write_text("\n".join(["v1", "{}", *map(json.dumps, offsets)]))
    (path / "commits" / "0").write_text("v1\n{}")
    for number, files in enumerate(sources):
        entries = [json.dumps({"path": file.as_uri()}) for file in files]
        (path / "sources" / str(number) / "0").write_text("\n".join(["v1", *entries]))


def test_a_flow_that_reads_several_tables_is_as_far_as_the_one_that_is_least_read(folder: Path) -> None:
    checkpoint(folder, "bronze", [{"position": 40}])
    bronze = [add(folder, "bronze", 0, 1, 40)]
    checkpoint(folder, "judged", [{"logOffset": 0}], bronze)
    judged = [add(folder, "judged", batch, 10 * batch + 1, 10 * batch + 10) for batch in range(4)]
    both = [{"logOffset": 0}, {"logOffset": 0}]
    checkpoint(folder, "both", both, bronze, judged[:3])
    (found,) = (flow for flow in status(read_project(folder)).flows if flow.flow == "both")
    assert (found.source, found.position, found.lag) == ("bronze, judged", 30, 10)


def test_only_new_files_are_counted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    footer = pipeline_status._footer

    def noted(file: Path) -> tuple[int, int | None]:
        looked.append(file)
        return footer(file)

    monkeypatch.setattr(pipeline_status, "_footer", noted)
    first, second = add(folder, "bronze", 0, 1, 5), add(folder, "bronze", 1, 6, 6)
    counts = RowCounts(read_project(folder))
    assert (counts.all(), counts.of("bronze"), counts.of("nothing")) == ({"bronze": 6}, 6, None)
    third = add(folder, "bronze", 2, 7, 9)
    assert (counts.of("bronze"), set(looked), len(looked)) == (9, {first, second, third}, 3)
    (folder / "tables" / "bronze" / "_spark_metadata" / "1").unlink()
    assert counts.of("bronze") == 8
