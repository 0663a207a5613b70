"""What a path that was read from a manifest may name: something below a folder, and nothing else."""

from pathlib import Path

import pytest

from penstock.files import flaw_of, inside

HOSTILE = [
    "../penstock.db",
    "a/../../penstock.db",
    "..",
    "/etc/passwd",
    "//etc/passwd",
    "a//b",
    "./a",
    "a/.",
    "a/",
    "",
    "a\0b",
    "a\nb",
    "\ud800",
    7,
    None,
    ["a"],
]


@pytest.mark.parametrize("path", HOSTILE)
def test_what_is_no_plain_relative_path_is_refused(path: object, tmp_path: Path) -> None:
    assert flaw_of(path) is not None
    with pytest.raises(ValueError, match=flaw_of(path)):
        inside(tmp_path, path)  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["a", "a/b", "recorded_day=2026-11-16/x.parquet", "..a/b..", "ü/☃", "a b"])
def test_a_plain_relative_path_is_below_the_folder(path: str, tmp_path: Path) -> None:
    assert flaw_of(path) is None
    assert inside(tmp_path, path) == tmp_path / path


def test_a_link_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (folder / "out").symlink_to(outside)
    (folder / "up").symlink_to("..")
    (folder / "beside").symlink_to(tmp_path / "folder2")
    (folder / "nowhere").symlink_to("/nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "real").mkdir()
    (folder / "around").symlink_to("real")
    (folder / "real" / "out").symlink_to(outside)
    for path in ("out", "out/file", "up", "up/outside", "beside", "nowhere", "real/out", "around/out/file"):
        with pytest.raises(ValueError, match="is a link that leads out of the folder"):
            inside(folder, path)
    for path in ("around", "around/file", "real/file", "loop"):
        assert inside(folder, path) == folder / path


def test_the_folder_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "folder" / "real").mkdir(parents=True)
    (tmp_path / "folder" / "around").symlink_to("real")
    (tmp_path / "link").symlink_to("folder")
    assert inside(tmp_path / "link", "around/file") == tmp_path / "link" / "around" / "file"
