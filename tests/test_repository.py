"""What the repository itself promises: whole locks, files that fit any machine, current docs."""

import re
import subprocess
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import pytest

from penstock.cli.settings import settings_page

ROOT = Path(__file__).parent.parent
LOCKS = [ROOT / "requirements" / name for name in ("run.lock", "postgres.lock", "dev.lock", "site.lock")]

# Written as alternatives, so that this file does not find itself.
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:home|root|work|Users|opt/pypi)/")


def repository_files() -> Iterator[Path]:
    """Files that are tracked, or would be by the next commit."""
    command = [
        "git",
        "-c",
        "safe.directory=*",
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    ]
    listing = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = (ROOT / name for name in listing.split("\0") if name)
    return (path for path in paths if path.is_file())


def requirements(lock: Path) -> list[str]:
    """The requirements of a lock, each with its hashes on one line."""
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    return [line for line in lines if line and not line.lstrip().startswith("#")]


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_a_lock_names_no_address(lock: Path) -> None:
    text = lock.read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*-", text.replace("\\\n", " "), re.MULTILINE), "options such as an index or a folder"


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_every_requirement_of_a_lock_is_pinned_with_hashes(lock: Path) -> None:
    wanted = re.compile(r"[a-z0-9][a-z0-9._-]*(\[[a-z0-9,._-]+\])?==\S+( ; [^\\]+?)?( +--hash=sha256:[0-9a-f]{64})+")
    assert [line[:60] for line in requirements(lock) if not wanted.fullmatch(line)] == []
    assert requirements(lock)


def test_the_development_lock_holds_exactly_what_runs() -> None:
    run, postgres, dev, _ = (set(requirements(lock)) for lock in LOCKS)
    assert run | postgres <= dev


def test_the_development_lock_pins_extras_that_its_packages_require() -> None:
    """pip refuses the lock otherwise, as soon as such a package has a newer release."""
    pinned = {line.split("==")[0] for line in requirements(ROOT / "requirements" / "dev.lock")}
    names = {name.partition("[")[0] for name in pinned}
    required = {
        found.group()
        for package in metadata.distributions()
        if package.name.lower().replace("_", "-") in names
        for requirement in package.requires or ()
        if "extra ==" not in requirement and (found := re.match(r"[\w.-]+\[[\w,.-]+\]", requirement))
    }
    assert "coverage[toml]" in required
    assert required <= pinned


def test_the_run_lock_holds_the_build_backend() -> None:
    names = {re.split(r"[ =]", line)[0] for line in requirements(LOCKS[0])}
    assert {"hatchling", "editables"} <= names


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if MACHINE_PATHS.search(line)
    ]
    assert found == []


def test_the_rule_finds_what_it_should() -> None:
    for folder in ("home/me", "root/x", "work/main"):
        assert MACHINE_PATHS.search(f'path = "/{folder}/file"')
    assert not MACHINE_PATHS.search("src/work/item and ~/work/ and https://host.example/root/")


def test_the_settings_page_is_what_make_docs_writes() -> None:
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8")
    assert page == settings_page(page), "run `make docs`"
