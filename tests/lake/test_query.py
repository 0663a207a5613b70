"""`penstock lake query`: the lake and its store's tail are one table, whatever is compacted meanwhile."""

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.errors import InvalidRequest, LakeDamaged, PlaceRefused
from penstock.history.columns import COLUMNS
from penstock.lake import query
from penstock.lake.changes import read_manifest
from penstock.lake.compaction import compact
from penstock.lake.local import LocalPlace
from penstock.lake.manifests import MANIFEST
from penstock.lake.places import open_lake_place
from penstock.lake.query import query_lake
from penstock.sql import QueryResult
from penstock.store.contract import HideStream
from tests.lake.killing import until
from tests.lake.support import archive, awkward, erase, fill, manifest_of, numbers, quiet, store_rows, verified
from tests.lake.test_places import quick, s3  # noqa: F401 - they are fixtures
from tests.sql.support import plain_rows

ALL = "FROM events ORDER BY position"


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """A name that is hard to get right in SQL, and in patterns of names."""
    return tmp_path / "o'lake [1]*"


def asked(lake: Path | str, url: str | None, statement: str) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    query_lake(str(lake), url, statement, lambda answer: rows.extend(plain_rows(answer)))
    return rows


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["lake", "query", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result.exit_code, result.stdout, result.stderr


def test_the_lake_alone_answers_up_to_its_head(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", awkward())
    archive(url, lake)
    archived = store_rows(url)
    fill(tmp_path / "data", numbers(2))
    assert asked(lake, None, ALL) == archived


def test_with_its_store_the_answer_is_current(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", awkward())
    archive(url, lake)
    fill(tmp_path / "data", numbers(3), days=1)
    assert asked(lake, url, ALL) == store_rows(url)
    head = len(store_rows(url))
    for condition in ("context = 'shop'", "position > 12", "recorded_at >= '2026-11-15'", "stream LIKE 's-%'"):
        (count,) = asked(lake, url, f"SELECT count(*) FROM events WHERE {condition}")[0]
        both = asked(lake, url, f"SELECT count(*) FILTER ({condition}), count(*) FROM events")
        assert both == [(count, head)]


def test_it_prints_what_is_asked_for_and_says_of_when_it_is(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", numbers(3))
    archive(url, lake)
    fill(tmp_path / "data", numbers(1))
    count = "SELECT count(*) AS n FROM events"
    code, out, err = run(count, "--lake", lake, "--output", "json")
    assert (code, json.loads(out)) == (0, {"n": 30})
    assert err.startswith("penstock: up to position 30, as archived at 20")
    assert run(count, "--lake", lake, "--url", url, "--output", "json") == (0, '{"n":40}\n', "")


def test_it_reads_the_files_of_the_lake_and_no_others(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(fill(tmp_path / "data", numbers(3)), lake)
    (tmp_path / "link").symlink_to(lake)
    (tmp_path / "names.csv").write_text("stream\ns-1\n")
    monkeypatch.chdir(tmp_path)
    for place in (lake, lake.name, "link", f"./data/../{lake.name}"):
        assert asked(place, None, "SELECT count(*) FROM events") == [(30,)]
        code, out, err = run("FROM 'names.csv'", "--lake", place)
        assert (code, out) == (1, "")
        assert 'must not read "names.csv"' in err
        assert "--allow-dir DIR" in err
    code, out, _ = run("FROM 'names.csv'", "--lake", lake, "--allow-dir", tmp_path, "--output", "csv")
    assert (code, out) == (0, '"stream"\n"s-1"\n')


def test_a_lake_that_has_nothing_yet_is_an_empty_table(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", [])
    archive(url, lake)
    assert asked(lake, None, ALL) == []
    assert [name for name, *_ in asked(lake, None, "DESCRIBE events")] == list(COLUMNS)
    fill(tmp_path / "data", numbers(1))
    assert asked(lake, url, ALL) == store_rows(url)


def test_what_is_erased_and_rewritten_is_gone_from_the_answer(tmp_path: Path, lake: Path) -> None:

    url = fill(tmp_path / "data", numbers(5))
    archive(url, lake)
    erase(tmp_path / "data", HideStream("shop", "s-1"))
    archive(url, lake)
    assert asked(lake, None, ALL) == store_rows(url)


@pytest.mark.parametrize("place", ["nowhere", "folder"])
def test_what_is_no_lake_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "other").touch()
    code, out, err = run("FROM events", "--lake", tmp_path / place)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert "no lake" in err


def test_a_store_that_the_lake_is_not_of_is_refused(tmp_path: Path, lake: Path) -> None:
    archive(fill(tmp_path / "data", numbers(1)), lake)
    other = fill(tmp_path / "other", numbers(2))
    with pytest.raises(PlaceRefused, match="it is of store"):
        asked(lake, other, ALL)


def compacting(lake: Path, written: list[list[tuple[object, ...]]]) -> Callable[[QueryResult], None]:
    """Writes an answer down, and takes its files away before the first of it."""

    def write(answer: QueryResult) -> None:
        if not written:
            written.append([])
            compact(None, str(lake), quiet, iceberg=False)
        written.append(plain_rows(answer))

    return write


def test_files_that_a_compaction_takes_away_are_no_reason_for_another_answer(tmp_path: Path, lake: Path) -> None:
    url = fill(tmp_path / "data", [])
    for day in range(4):
        for _ in range(3):
            archive(fill(tmp_path / "data", numbers(5, 50), days=day), lake)
    written: list[list[tuple[object, ...]]] = []
    query_lake(str(lake), None, ALL, compacting(lake, written), is_repeatable=True)
    assert written[-1] == store_rows(url)
    assert len(manifest_of(lake).files) == 4


def test_a_question_is_asked_again_if_its_files_are_gone(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(tmp_path / "data", [])
    for _ in range(3):
        archive(fill(tmp_path / "data", numbers(2)), lake)
    old, real = manifest_of(lake), read_manifest
    compact(None, str(lake), quiet, iceberg=False)
    reads = iter([old])
    # The manifest of before was read right before the compaction.
    monkeypatch.setattr(query, "read_manifest", lambda place: next(reads, None) or real(place))
    rows: list[tuple[object, ...]] = []
    query_lake(str(lake), None, ALL, lambda answer: rows.extend(plain_rows(answer)))
    assert rows == store_rows(url)


def test_a_compaction_that_was_killed_before_its_manifest_is_no_damage(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = archived(tmp_path, lake)
    for _ in range(2):
        archived(tmp_path, lake)
    with monkeypatch.context() as patch:
        patch.setattr(LocalPlace, "replace", _killing(LocalPlace.replace))
        with pytest.raises(KeyboardInterrupt):
            compact(None, str(lake), quiet, iceberg=False)
    number = manifest_of(lake).number
    for _ in range(2):
        assert asked(lake, None, ALL) == store_rows(url)
        assert asked(lake, url, ALL) == store_rows(url)
        assert manifest_of(lake).number == number
        assert not verified(url, lake).differences


def archived(tmp_path: Path, lake: Path) -> str:
    url = fill(tmp_path / "data", numbers(2))
    archive(url, lake)
    return url


def _killing(replace: Callable[..., None]) -> Callable[..., None]:
    def kill(place: LocalPlace, path: str, written: bytes) -> None:
        if path == MANIFEST:
            raise KeyboardInterrupt
        replace(place, path, written)

    return kill


def test_questions_are_answered_while_compactions_go_on(tmp_path: Path, lake: Path) -> None:
    url = archived(tmp_path, lake)
    over, answers = threading.Event(), []
    statement = "SELECT count(*), max(position), sum(position) FROM events"

    def ask() -> None:
        while not over.is_set():
            query_lake(str(lake), url, statement, lambda answer: answers.extend(answer.rows()), is_repeatable=True)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            for _ in range(10):
                for _ in range(2):
                    archived(tmp_path, lake)
                compact(None, str(lake), quiet, iceberg=False)
            until(lambda: bool(answers) or asking.done(), "an answer")
        finally:
            over.set()
        asking.result()
    assert all(count == head and total == head * (head + 1) // 2 for count, head, total in answers)


def test_what_was_begun_and_cannot_be_taken_back_ends_in_a_line(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(fill(tmp_path / "data", numbers(2)), lake)
    monkeypatch.setattr(query, "_is_outdated", lambda *_: True)

    def write(answer: QueryResult) -> None:
        assert plain_rows(answer)
        raise LakeDamaged(str(lake), "a file", "is not there")

    with pytest.raises(InvalidRequest, match="lake was compacted in the middle of the answer; ask again"):
        query_lake(str(lake), None, ALL, write)


def test_a_lost_file_is_told(tmp_path: Path, lake: Path) -> None:
    archive(fill(tmp_path / "data", numbers(2)), lake)
    for path in lake.glob("recorded_day=*/*.parquet"):
        path.unlink()
    code, _, err = run("SELECT sum(position) FROM events", "--lake", lake)
    assert (code, err.count("\n")) == (1, 1)
    assert err.endswith(".parquet is not there\n")


def test_files_elsewhere_are_read_through_the_place(
    tmp_path: Path, lake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(3):
        archive(fill(tmp_path / "data", awkward(), days=day), lake)
    url = fill(tmp_path / "data", numbers(1))
    monkeypatch.setattr(query, "LocalPlace", type("Nothing", (), {}))
    place = open_lake_place(str(lake))
    read: list[str] = []
    monkeypatch.setattr(type(place), "read", _noting(type(place).read, read))
    assert asked(lake, url, ALL) == store_rows(url)
    read.clear()
    assert asked(lake, None, "SELECT position, type FROM events WHERE position = 12") == [(12, store_rows(url)[11][4])]
    assert len(read) == 1


@pytest.mark.usefixtures("quick")
def test_a_lake_in_an_object_store_is_asked_with_its_tail(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    there = f"s3://lakes/asked?{request.getfixturevalue('s3')}"
    for day in range(2):
        archive(fill(tmp_path / "data", awkward(), days=day), there)
    url = fill(tmp_path / "data", numbers(1), days=1)
    assert asked(there, url, ALL) == store_rows(url)
    assert asked(there, None, "SELECT max(position) FROM events WHERE recorded_at < '2026-11-15'") == [(11,)]


def _noting(function: Callable[..., object], paths: list[str]) -> Callable[..., object]:
    def noted(self: object, path: str) -> object:
        paths.append(path)
        return function(self, path)

    return noted
