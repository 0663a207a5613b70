"""`penstock pipeline init` on a history with odd names: what is written can be read again."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.model import new_event
from penstock.pipelines.inference import infer
from penstock.pipelines.projects import read_project
from penstock.pipelines.scaffold import _scalar, make_project
from penstock.pipelines.yaml_format import loaded
from penstock.spark.body_schema import schema_of
from tests.spark.support import fill

ODD = ("\ud800", "\x07", "\ufffe", "a\u2028b", "c\x85d", "")


def test_fields_that_no_column_can_be_named_after_are_left_out_and_noted(tmp_path: Path) -> None:
    body = {"good": 1, **dict.fromkeys(ODD, 1), "position": 2, "body_position": 3, "inner": {"\x07": 1}}
    event = new_event("Odd\U0001f600\x07\U000e0001", json.dumps(body).encode())
    made = make_project(tmp_path / "p", fill(tmp_path / "data", [("shop", "s", [event])]))
    assert [note.split()[7] for note in made.notes] == [f"{name!a}," for name in (*ODD, "body_position")]
    (table,) = read_project(tmp_path / "p").declared.tables
    assert table.type == event.type
    assert [field["name"] for field in schema_of(table.columns)["fields"]] == ["good", "position", "inner"]


def test_a_project_that_could_not_be_read_is_not_left_behind(tmp_path: Path) -> None:
    url = fill(tmp_path / "data", [])
    with pytest.raises(InvalidRequest, match="cannot be written: "):
        make_project(tmp_path / "p", url, name="\udcff")
    assert not (tmp_path / "p").exists()


def test_two_fields_for_one_column_are_refused(tmp_path: Path) -> None:
    made = make_project(tmp_path / "p", fill(tmp_path / "data", [("shop", "s", [new_event("A", b'{"position": 1}')])]))
    path = made.folder / "penstock.yml"
    path.write_text(path.read_text().replace("position BIGINT", "Position BIGINT, body_position BIGINT"))
    with pytest.raises(InvalidRequest, match="type A: columns Position and body_position would both be called body_"):
        read_project(made.folder)


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_read_again_as_it_was(text: str) -> None:
    assert loaded(_scalar(text)) == text


@given(st.dictionaries(st.text(max_size=5), st.integers(), max_size=5))
def test_columns_are_read_again_as_fields_were_called(body: dict[str, int]) -> None:
    found = infer([json.dumps(body)])
    names = [field["name"] for field in schema_of(found.columns)["fields"]]
    assert set(names) <= set(body)
    assert all(name.isprintable() for name in names)
    assert "\n".join(found.columns.split("\n")) == found.columns
