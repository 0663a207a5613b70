"""`penstock lake`: what its commands print, and how they end. Spark is started twice, by the commands themselves."""

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from penstock.cli.lake import _print_archived
from penstock.lake.archiver import Archived
from penstock.lake.manifests import PENDING
from penstock.lake.places import open_lake_place
from penstock.spark.sessions import found_java
from tests.lake.killing import until
from tests.lake.support import archive, fill, numbers
from tests.test_cli import no_settings as no_settings  # noqa: PLC0414 - a fixture that is used by itself
from tests.test_cli import penstock as run
from tests.test_server import PENSTOCK, environment


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    return tmp_path / "lake"


@pytest.mark.timeout(900)
@pytest.mark.long
def test_a_lake_follows_its_store_until_it_is_told_to_stop_and_is_then_the_same(data: Path, lake: Path) -> None:
    url, said, complained = fill(data, numbers(3)), lake.parent / "said", lake.parent / "complained"
    command = [*PENSTOCK, "lake", "archive", "--url", url, "--lake", str(lake)]
    with said.open("w") as out, complained.open("w") as err:
        following = subprocess.Popen(
            [*command, "--follow", "--interval", "0.1"],
            stdout=out,
            stderr=err,
            env=environment(),
            start_new_session=True,
        )
        try:
            until(lambda: "30 new of 30 events archived, 1 new file\n" in said.read_text(), "the first round")
            # Between its rounds, others get their turn; then it waits for its own.
            with open_lake_place(str(lake)).lock("compact"):
                in_use = f"the lake in {lake} is in use by {run_status(lake)['in_use_by']}; wait until that has ended\n"
                assert run("lake", "archive", "--url", url, "--lake", lake) == (1, "", f"penstock: {in_use}")
                fill(data, numbers(1))
                until(lambda: complained.read_text() == f"penstock: waiting: {in_use}", "a round that waits")
            # In the middle of the second round, and as a terminal does: to all processes.
            until(lambda: (lake / PENDING).exists() or "10 new" in said.read_text(), "the second round")
            os.killpg(following.pid, signal.SIGINT)
            following.wait(120)
        finally:
            following.kill()
    assert following.returncode == 0
    assert complained.read_text() == f"penstock: waiting: {in_use}penstock: stopped; the last round is complete\n"
    assert said.read_text().endswith("10 new of 40 events archived, 1 new file\n")
    fill(data, numbers(1))
    same = subprocess.run(
        [*PENSTOCK, "lake", "verify", "--url", url, "--lake", str(lake)],
        capture_output=True,
        env=environment(),
        text=True,
        check=False,
    )
    assert (same.returncode, same.stdout, same.stderr) == (
        *(0, "40 events in 2 files, up to position 40: the same as in the store; the store has 10 events more\n"),
        "",
    )


def test_what_follows_says_in_json_one_line_for_each_round(capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        _print_archived(Archived(number, 1, 0, number), as_json=True, many=True)
    assert [json.loads(line)["events"] for line in capsys.readouterr().out.splitlines()] == [1, 2]


def run_status(lake: Path) -> dict[str, object]:
    code, out, _ = run("lake", "status", "--lake", lake, "--json")
    assert code == 0
    return dict(json.loads(out))


def test_status_says_how_a_lake_stands(data: Path, lake: Path) -> None:
    url = fill(data, numbers(3))
    archive(url, lake)
    fill(data, numbers(1))
    code, out, err = run("lake", "status", "--lake", lake, "--url", url)
    assert (code, err) == (0, "")
    lines = dict(line.split(maxsplit=1) for line in out.splitlines() if not line.startswith("last run"))
    assert lines["events"] == "30, up to position 30"
    assert lines["behind"] == "10 events"
    assert lines["files"].startswith("1, ")
    assert lines["recorded"] == "2026-11-14T23:46:40+00:00 to 2026-11-14T23:46:40+00:00"
    found = run_status(lake)
    assert (found["head"], found["behind"], found["in_use_by"], found["interrupted"]) == (30, None, None, None)
    assert found["first_recorded"] == found["last_recorded"] == "2026-11-14T23:46:40+00:00"


def test_restore_makes_a_store_where_it_is_told(data: Path, lake: Path, tmp_path: Path) -> None:
    archive(fill(data, numbers(3)), lake)
    restored = tmp_path / "restored"
    assert run("lake", "restore", "--lake", lake, "--data", restored) == (
        *(0, "restored 30 events from 1 file, now on timeline 2; compared with the lake\n"),
        "",
    )
    assert run("verify", "--data", restored)[:2] == (0, "30 events, nothing wrong\n")
    code, out, err = run("lake", "restore", "--lake", lake, "--data", restored)
    assert (code, out) == (1, "")
    why = "it holds a store; restore a lake to a new place: name another"
    assert err == f"penstock: {restored} cannot be used: {why}\n"
    assert run("lake", "restore", "--lake", lake)[0] == 2


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("archive", "--url", "sqlite:///{tmp}/nothing", "--lake", "{tmp}/lake"), 1, "is not a Penstock store"),
        (("archive", "--url", "ftp://x", "--lake", "{tmp}/lake"), 1, "--url is not usable: it must be sqlite:///DIR"),
        (("archive", "--lake", "{tmp}/lake"), 2, "missing option '--url'"),
        (("verify", "--url", "sqlite:///{tmp}/data", "--lake", "{tmp}/none"), 1, "there is no lake"),
        (("compact", "--lake", "{tmp}/none"), 1, "there is no lake"),
        (("compact", "--lake", "{tmp}/none", "--file-size", "many"), 2, "--file-size is 'many'"),
        (("status", "--lake", "{tmp}/none"), 1, "there is no lake"),
        (("archive", "--url", "sqlite:///{tmp}/data", "--lake", "{tmp}/l", "--conf", "x"), 2, "must be KEY=VALUE"),
    ],
)
def test_a_mistake_is_told_in_a_line(arguments: tuple[str, ...], code: int, said: str, tmp_path: Path) -> None:
    fill(tmp_path / "data", numbers(1))
    found, out, err = run("lake", *(argument.replace("{tmp}", str(tmp_path)) for argument in arguments))
    assert (found, out) == (code, "")
    assert said in err
    assert err.count("\n") == 1


def test_without_a_java_the_way_to_get_one_is_told(
    data: Path, lake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = fill(data, numbers(1))
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, _, err = run("lake", "archive", "--url", url, "--lake", lake)
    assert code == 1
    assert err.startswith(f"penstock: Spark needs Java 17 or newer, and JAVA_HOME is {tmp_path}, where there is none")
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert (
        "install it (Debian: apt-get install openjdk-17-jre-headless)"
        in run("lake", "archive", "--url", url, "--lake", lake)[2]
    )


def test_the_version_of_a_java_is_read(tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\" 2019' >&2\n")
    java.chmod(0o755)
    assert found_java({"JAVA_HOME": str(tmp_path)}) == (str(java), "11.0.2", 11)
    java.write_text("#!/bin/sh\necho nothing\n")
    assert found_java({"JAVA_HOME": str(tmp_path)}) is None
    assert found_java({"JAVA_HOME": str(tmp_path / "none")}) is None
