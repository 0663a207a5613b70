"""What packages load when it is first used: all of it is there, is shown, and is what type checkers see."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import penstock

PACKAGES = ("penstock", "penstock.cli", "penstock.engine", "penstock.spark", "penstock.store", "penstock.testing")

packages = pytest.mark.parametrize("package", PACKAGES)


def checked_names(package: str) -> set[str]:
    """The names that a package declares for type checkers."""
    file = import_module(package).__file__
    assert file is not None
    tree = ast.parse(Path(file).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
    imported = {alias.name for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    annotated = {ast.unparse(node.target) for node in block.body if isinstance(node, ast.AnnAssign)}
    return imported | annotated


@packages
def test_what_type_checkers_see_is_there_and_shown(package: str) -> None:
    module = import_module(package)
    names = checked_names(package)
    assert names
    assert names | set(getattr(module, "__all__", ())) <= set(dir(module))
    assert [name for name in names if getattr(module, name, None) is None] == []


@packages
def test_a_name_that_is_not_there_is_an_error_of_its_package(package: str) -> None:
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        import_module(package).Nothing  # noqa: B018


def test_the_public_names_are_those_that_are_loaded_and_the_version() -> None:
    assert set(penstock.__all__) == checked_names("penstock") | {"__version__"}


def test_the_names_are_shown_before_they_are_loaded() -> None:
    code = "import penstock, sys; print(set(penstock.__all__) <= set(dir(penstock)), 'penstock.client' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "False"]


def test_a_module_that_cannot_be_imported_says_why(tmp_path: Path) -> None:
    package = tmp_path / "halved"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from penstock.lazy import lazy_names\n"
        "__getattr__, __dir__ = lazy_names(__name__, {'halved.half': ('whole',)})\n"
    )
    (package / "half.py").write_text("import os\nos.nothing_of_the_kind\n")
    done = subprocess.run(
        [sys.executable, "-c", "from halved import whole"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert "ImportError: halved.half cannot be imported" in done.stderr
    assert "nothing_of_the_kind" in done.stderr.splitlines()[-1]
