"""docs/cluster.md: its commands are commands, and those at its beginning run on the cluster as they stand."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.cli.root import loaded
from penstock.testing import server
from tests.cluster.commands import PENSTOCK, ROOT, options, run
from tests.cluster.standalone import MASTER, WORKER, Cluster
from tests.lake.support import is_same
from tests.spark.build_kit import Held, held

__all__ = ["held"]

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
EVENTS = 6


def commands(page: str) -> list[list[str]]:
    """The commands of Penstock in the blocks of a page, word by word."""
    code = "\n".join(re.findall(r"^```\n(.*?)^```", page, re.MULTILINE | re.DOTALL)).replace("\\\n", " ")
    return [shlex.split(line) for line in code.splitlines() if line.startswith("penstock ")]


@pytest.mark.parametrize("words", commands(PAGE), ids=lambda words: " ".join(words[:3]))
def test_every_command_has_options_that_there_are(words: list[str]) -> None:
    """Parsing fails if an option is unknown, or one is missing."""
    _, command, *rest = words
    found: Any = loaded(command)
    while hasattr(found, "commands"):
        found = found.commands[rest.pop(0)]
    given = found.make_context(command, rest).params
    assert given["master"]
    assert all(option.startswith("spark.") and "=" in option for option in given["conf"] or ())


def test_the_page_starts_a_cluster_as_the_tests_do() -> None:
    assert f"spark-class {MASTER} " in PAGE
    assert f"spark-class {WORKER} " in PAGE


@pytest.mark.timeout(900)
@pytest.mark.long
def test_the_first_commands_run_on_a_cluster(cluster: Cluster, held: Held, tmp_path: Path) -> None:
    lake, data = tmp_path / "lake", tmp_path / "data"
    held("NAME")
    with server(data) as served:
        with penstock.connect(served.url) as client:
            client.log("numbers").create()
            client.log("numbers").append(list(range(EVENTS)))
            client.iterator("NAME").create("numbers", "map", "return msg * 2", indexed=True)
        given = {"penstock://HOST:8472": served.url, "LAKE": str(lake), "spark://MASTER:7077": cluster.master}
        archive, verify, compact, build = (
            run(*PENSTOCK, *(given.get(word, word) for word in words[1:]), *options(cluster)[2:])
            for words in commands(PAGE.partition("## ")[0])
        )
    assert archive == (0, "6 new of 6 events archived, 1 new file\n", "")
    assert verify == (0, "6 events in 1 file, up to position 6: the same as in the store\n", "")
    assert compact == (0, "0 files became 0; the lake has 1 file\n", "")
    assert (build[0], build[2]) == (0, "")
    assert build[1].startswith("6 messages read, 6 items added (")
    assert is_same(f"sqlite:///{data}", lake)
