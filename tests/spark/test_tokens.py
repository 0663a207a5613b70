"""What Spark's tasks need to reach a server with principals travels with their options, as pickles."""

import pickle
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import penstock
from penstock.errors import NotAllowed, NotAuthenticated
from penstock.history.options import ReadOptions
from penstock.lake.archiver import Archiver
from penstock.model.address import TOKEN_ENVIRONMENT, Address, token_of
from penstock.spark.builds import begin_build, plan_tasks
from penstock.spark.sink import WriteOptions
from penstock.spark.source import TABLE, PenstockReader, arrow_schema
from penstock.spark.stages import open_stages
from penstock.testing import Server
from tests.principals import closed


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[tuple[str, Callable[[str], str]]]:
    token = closed(tmp_path / "data", shop="read,append:shop")
    with Server(tmp_path / "data") as server:
        with penstock.connect(server.url, token=token("root")) as client:
            for context in ("shop", "other"):
                client.append(context, "s", [penstock.event("T", {})] * 3)
            client.log("visits").create()
            client.iterator("all").create("visits", "map", "return msg", indexed=True)
        yield server.url, token


def test_tasks_read_with_the_token_of_their_options(guarded: tuple[str, Callable[[str], str]]) -> None:
    url, token = guarded
    given = {"url": url, "context": "shop", "token": token("shop")}
    reader = PenstockReader(ReadOptions.of(given), arrow_schema(TABLE))
    parts = reader.partitions()
    reader, parts = pickle.loads(pickle.dumps((reader, parts)))
    assert sum(batch.num_rows for part in parts for batch in reader.read(part)) == 3
    with pytest.raises(NotAuthenticated, match="has not authenticated"):
        PenstockReader(ReadOptions.of({"url": url}), arrow_schema(TABLE)).partitions()


def test_tasks_stage_with_the_token_of_their_options(guarded: tuple[str, Callable[[str], str]]) -> None:
    url, token = guarded
    options = pickle.loads(pickle.dumps(WriteOptions.of({"url": url, "token": token("shop")})))
    with closing(open_stages(options.url, "job")) as stages:
        assert stages.event_bytes_max() > 0
    with closing(open_stages(WriteOptions.of({"url": url}).url, "job")) as stages, pytest.raises(NotAuthenticated):
        stages.event_bytes_max()


def test_the_driver_passes_the_token_of_its_environment_on(
    guarded: tuple[str, Callable[[str], str]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, token = guarded
    monkeypatch.setenv(TOKEN_ENVIRONMENT, token("root"))
    options = pickle.dumps(ReadOptions.of({"url": url, "context": "other"}))
    with begin_build(url, "all") as build:
        task, *_ = plan_tasks(build._url, replace(build._start, head=1), 10)
    archiver = Archiver(None, url, str(tmp_path / "lake"))
    monkeypatch.delenv(TOKEN_ENVIRONMENT)
    for travelled in (pickle.loads(pickle.dumps(task)).url, archiver._url, pickle.loads(options).url):
        assert (travelled, token_of(travelled)) == (url, token("root"))


def test_a_token_says_what_a_read_may_see(guarded: tuple[str, Callable[[str], str]]) -> None:
    url, token = guarded
    options = ReadOptions.of({"url": url, "context": "other", "token": token("shop")})
    reader = PenstockReader(options, arrow_schema(TABLE))
    with pytest.raises(NotAllowed):
        assert [batch for part in reader.partitions() for batch in reader.read(part)] == []
    with penstock.connect(Address(url, token("shop"))) as client:
        assert client.whoami().principal == "shop"
