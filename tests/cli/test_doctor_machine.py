"""The doctor's checks of a disk, of Java and Spark, and of the rest of a machine, one by one."""

import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import pytest

from penstock.doctor import CheckStatus, machine
from penstock.doctor.machine import clock, mount_of, open_files, space, speed
from penstock.settings import Settings

SHARED_MEMORY = Path("/dev/shm")


def test_a_place_that_cannot_be_written_is_a_problem() -> None:
    # Rights do not bind everybody; but there nobody can make a file.
    *_, found = machine.disk(Path("/proc/self/fd"), Settings())
    assert (found.check, found.status) == ("directory", CheckStatus.PROBLEM)
    assert "cannot write in /proc/self/fd" in found.message


# ---------------------------------------------------------------- the disk


@pytest.mark.skipif(not SHARED_MEMORY.is_dir(), reason="this system has no file system in memory at a known place")
def test_a_file_system_in_memory_is_a_warning() -> None:
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as folder:
        found = {each.check: each for each in machine.disk(Path(folder) / "data", Settings())}
        assert list(Path(folder).iterdir()) == []
    assert found["file system"].status is CheckStatus.WARNING
    assert "which is in memory" in found["file system"].message
    assert found["directory"].message.endswith(f"does not exist yet, and can be created in {folder}")


def test_a_file_system_over_a_network_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "a place"
    place.mkdir()
    lines = ["1 0 8:1 / / rw shared:1 - ext4 /dev/sda1 rw"]
    lines.append(f"2 1 0:50 / {str(place).replace(' ', chr(92) + '040')} rw - nfs4 host:/export rw")
    (tmp_path / "mounts").write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(machine, "MOUNTS", tmp_path / "mounts")
    assert mount_of(place) == ("nfs4", str(place))
    assert machine.file_system(place).status is CheckStatus.WARNING
    assert mount_of(tmp_path) == ("ext4", "/")
    assert machine.file_system(tmp_path).status is CheckStatus.OK
    monkeypatch.setattr(machine, "MOUNTS", tmp_path / "none")
    assert machine.file_system(tmp_path).status is CheckStatus.OK


def test_free_space_is_held_against_the_marks(tmp_path: Path) -> None:
    most = 1 << 62
    assert space(tmp_path, Settings(disk_warn_bytes=0, disk_refuse_bytes=0)).status is CheckStatus.OK
    assert space(tmp_path, Settings(disk_warn_bytes=most, disk_refuse_bytes=0)).status is CheckStatus.WARNING
    refused = space(tmp_path, Settings(disk_warn_bytes=most, disk_refuse_bytes=most))
    assert refused.status is CheckStatus.PROBLEM
    assert "less than disk_refuse_bytes" in refused.message


@pytest.mark.parametrize(
    ("seconds", "status", "words"),
    [
        (5e-6, CheckStatus.WARNING, "too fast"),
        (1e-3, CheckStatus.OK, "1 ms, p99 2 ms"),
        (20e-3, CheckStatus.WARNING, "slow"),
    ],
)
def test_a_disk_that_syncs_too_fast_or_too_slowly_is_a_warning(seconds: float, status: CheckStatus, words: str) -> None:
    found = speed([*[seconds] * 40, 2 * seconds])
    assert found.status is status
    assert words in found.message


def test_synced_writes_are_measured_and_leave_nothing(tmp_path: Path) -> None:
    durations = machine.synced_writes(tmp_path)
    assert durations == sorted(durations)
    assert 0 < len(durations) <= machine.SYNCED_WRITES
    assert list(tmp_path.iterdir()) == []


def executable(path: Path, script: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("version", "status"), [("17.0.15", CheckStatus.OK), ("21", CheckStatus.OK), ("1.8.0_392", "old")]
)
def test_the_java_on_the_path_is_asked_for_its_version(version: str, status: object, tmp_path: Path) -> None:
    java = executable(tmp_path / "java", f"echo 'openjdk version \"{version}\" 2024-01-01' >&2")
    found = machine.java({"PATH": str(tmp_path)}, is_needed=True)
    assert found.status is (CheckStatus.WARNING if status == "old" else status)
    assert version in found.message
    assert str(java) in found.message


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    executable(tmp_path / "bin" / "java", "echo 'openjdk version \"17.0.1\"' >&2")
    environ = {"PATH": str(tmp_path / "bin"), "JAVA_HOME": str(tmp_path / "elsewhere")}
    found = machine.java(environ, is_needed=True)
    assert found.status is CheckStatus.WARNING
    assert f"JAVA_HOME is {tmp_path / 'elsewhere'}, and there is no Java" in found.message
    assert machine.java({**environ, "JAVA_HOME": str(tmp_path)}, is_needed=True).status is CheckStatus.OK


def test_who_has_no_pyspark_misses_no_java() -> None:
    assert machine.pyspark(None).status is CheckStatus.OK
    assert machine.java({"PATH": ""}, is_needed=False).status is CheckStatus.OK
    assert machine.pyspark("3.5.1").status is CheckStatus.WARNING


def test_sparks_workers_must_run_a_python_like_ours_with_penstock_in_it(tmp_path: Path) -> None:
    assert machine.workers({"PYSPARK_PYTHON": sys.executable}).status is CheckStatus.OK
    for script, words in (
        ("echo 3.9", "which is Python 3.9, but this is Python"),
        ('echo "{}.{}" penstock pyspark'.format(*sys.version_info[:2]), "which has no penstock and no pyspark"),
        ("exit 1", "which does not run"),
    ):
        found = machine.workers({"PYSPARK_PYTHON": str(executable(tmp_path / "python", script))})
        assert found.status is CheckStatus.WARNING
        assert words in found.message
        assert found.advice == f"set PYSPARK_PYTHON={sys.executable}"
    assert "which does not exist" in machine.workers({"PYSPARK_PYTHON": str(tmp_path / "none")}).message


def test_where_the_python_of_sparks_workers_is_named(tmp_path: Path) -> None:
    script = tmp_path / "conf" / "spark-env.sh"
    script.parent.mkdir()
    script.write_text('# PYSPARK_PYTHON=no\nPYSPARK_PYTHON="${PYSPARK_PYTHON:-/some/python}"\n')
    assert machine.workers_python({"SPARK_HOME": str(tmp_path)}) == (str(script), "/some/python")
    assert machine.workers_python({"SPARK_CONF_DIR": str(script.parent)}) == (str(script), "/some/python")
    script.write_text("export PYSPARK_PYTHON=/other/python\n")
    assert machine.workers_python({"SPARK_HOME": str(tmp_path)})[1] == "/other/python"
    script.unlink()
    assert machine.workers_python({"SPARK_HOME": str(tmp_path)}) == ("PYSPARK_PYTHON is not set", "python3")


def test_a_clock_that_nobody_has_set_is_a_problem() -> None:
    assert clock(datetime(1970, 1, 1, tzinfo=UTC)).status is CheckStatus.PROBLEM
    assert clock(datetime(2027, 1, 1, tzinfo=UTC)).status is CheckStatus.OK


def test_too_few_open_files_for_the_connections_are_a_warning() -> None:
    assert open_files(Settings(), 1024).status is CheckStatus.WARNING
    assert "ulimit -n 3200" in str(open_files(Settings(), 1024).advice)
    few = Settings(res_connections_max=10, mq_connections_max=10, remits_connections_max=10)
    assert open_files(few, 1024).status is CheckStatus.OK
    assert open_files(Settings(), -1).status is CheckStatus.OK


def test_the_driver_for_postgresql_is_needed_for_a_store_there_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.driver(is_needed=True).status is CheckStatus.OK
    monkeypatch.setattr(machine, "DRIVER", "no_such_driver")
    assert machine.driver(is_needed=False).status is CheckStatus.OK
    assert machine.driver(is_needed=True).status is CheckStatus.PROBLEM


def test_versions_are_compared_by_their_numbers() -> None:
    assert machine.numbers("3.51.3.0") > machine.numbers("3.6")
    assert machine.numbers("0.1.0.dev0") == (0, 1, 0)
    assert machine.numbers("") == ()
