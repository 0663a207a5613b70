"""Python environments for executors, made of what is installed here, as docs/cluster.md has them made."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from packaging.requirements import Requirement

ROOT: Final = Path(__file__).parents[2]
HERE: Final = sysconfig.get_path("purelib")


def wheel(folder: Path) -> Path:
    """A wheel of Penstock."""
    build = ("wheel", "--quiet", "--no-build-isolation", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    subprocess.run([sys.executable, "-m", "pip", *build], check=True)
    (made,) = folder.glob("penstock-*.whl")
    return made


def bare(folder: Path) -> Path:
    """A Python that has what Penstock needs, as it is installed here, but not Penstock; its path.

    A folder on the path is not looked through for the file that makes a development install known.
    """
    _venv(folder)
    (_packages(folder) / "installed.pth").write_text(f"{HERE}\n")
    return folder / "bin" / "python"


def archive(folder: Path, made: Path) -> Path:
    """An archive of an environment with a wheel, and copies of all that it requires; PySpark comes with executors."""
    _venv(folder, "--copies")
    with zipfile.ZipFile(made) as files:
        files.extractall(_packages(folder))
    for found in _required("penstock", {}).values():
        _copy(found, _packages(folder))
    packed = folder.with_suffix(".tar.gz")
    subprocess.run(["tar", "-C", str(folder), "--use-compress-program=gzip -1", "-cf", str(packed), "."], check=True)
    return packed


def _venv(folder: Path, *flags: str) -> None:
    # Not that of a virtual environment: such a Python knows its packages by where it is.
    python = Path(sys.base_prefix) / "bin" / Path(sys.executable).resolve().name
    subprocess.run([str(python), "-m", "venv", "--without-pip", *flags, str(folder)], check=True)


def _packages(folder: Path) -> Path:
    (found,) = folder.glob("lib/python*/site-packages")
    return found


def _required(name: str, found: dict[str, Distribution]) -> dict[str, Distribution]:
    """All that a distribution requires, without its own files."""
    for requirement in map(Requirement, distribution(name).requires or ()):
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        for each in _names(requirement) if is_wanted else ():
            if each not in found:
                found[each] = distribution(each)
                _required(each, found)
    return found


def _names(requirement: Requirement) -> Iterator[str]:
    yield requirement.name
    for extra in requirement.extras:
        try:
            yield distribution(f"{requirement.name}-{extra}").metadata["Name"]
        except PackageNotFoundError:
            continue


def _copy(found: Distribution, target: Path) -> None:
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if ".." in file.parts or "__pycache__" in file.parts or not source.is_file():
            continue
        (target / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target / file)
