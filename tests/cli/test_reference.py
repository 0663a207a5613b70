"""The table of commands, their help, and the pages that are made from them."""

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.cli import COMMANDS
from penstock.cli.reference import cli_page, described, man_page
from penstock.cli.root import loaded
from tests.cli.support import called as command
from tests.cli.support import variables
from tests.test_server import PATIENCE_S

DOCS = Path(__file__).parent.parent.parent / "docs"


def test_the_page_is_what_the_commands_say() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert page == cli_page(page), "run make docs"


def test_the_man_page_is_what_the_commands_say() -> None:
    assert (DOCS / "penstock.1").read_text(encoding="utf-8") == man_page(), "run make docs"


def test_the_man_page_has_its_parts_and_nothing_else() -> None:
    page = man_page()
    assert re.findall(r"^\.SH (.+)$", page, re.MULTILINE) == [
        "NAME",
        "SYNOPSIS",
        "DESCRIPTION",
        "COMMANDS",
        "ENVIRONMENT",
        "EXIT STATUS",
        "EXAMPLES",
    ]
    macros = set(re.findall(r"^\.(\w+|\\\")", page, re.MULTILINE))
    assert macros <= {"TH", "SH", "SS", "TP", "PP", "B", "I", "nf", "fi", '\\"'}
    assert page.isascii()


@pytest.mark.skipif(shutil.which("groff") is None, reason="there is no groff to read it with")
def test_the_man_page_can_be_read() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-b"], input=man_page().encode(), capture_output=True, timeout=PATIENCE_S
    )
    assert (done.returncode, done.stderr) == (0, b"")
    # Without what makes letters bold.
    text = re.sub(r"\x1b\[[\d;]*m|.\x08", "", done.stdout.decode())
    assert "penstock append [OPTIONS] {CONTEXT} [STREAM] [TYPE] [BODY]" in text


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    help_text = loaded(name).help or ""
    assert help_text.startswith(COMMANDS[name].help.removesuffix(".")), help_text


def test_every_command_and_option_has_a_help() -> None:
    found = list(described())
    assert [one.name for one in found if not one.help] == []
    assert [(one.name, name) for one in found for name, meaning in one.records if not meaning] == []


def test_every_command_has_a_page_of_help() -> None:
    for one in described():
        words = one.name.split()[1:]
        code, out, _ = command(*words, "--help")
        assert code == 0
        assert f"Usage: {one.name}" in out


def test_help_shows_the_panels_in_order() -> None:
    _, out, _ = command("--help")
    panels = [entry.panel for entry in COMMANDS.values()]
    # Each panel is in one piece, so that the help shows it once.
    assert len(list(dict.fromkeys(panels))) == sum(a != b for a, b in zip(["", *panels], panels, strict=False))
    shown = re.findall(r"─ (\w+) ─", out)
    assert [panel for panel in shown if panel != "Options"] == list(dict.fromkeys(panels))


def test_help_is_not_broken_where_the_code_is() -> None:
    paragraphs = (loaded("append").help or "").split("\n\n")
    assert len(paragraphs) == 2
    assert "\n" not in "".join(paragraphs)
    assert inspect.getdoc(loaded)


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], ("penstock.client", "penstock.store", "penstock.server", "zmq", "numpy", "pyarrow", "duckdb")),
        (["append", "--help"], ("penstock.client", "penstock.store", "penstock.server", "zmq", "numpy", "pyarrow")),
        (["contexts"], ("penstock.engine", "penstock.store", "penstock.server", "zmq", "pyarrow", "duckdb")),
    ],
    ids=" ".join,
)
def test_commands_import_what_they_need(arguments: list[str], heavy: tuple[str, ...]) -> None:
    program = f"""
import sys
sys.argv = ["penstock", *{arguments!r}]
from penstock.cli import main
try:
    main()
except SystemExit:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""
    env = variables("penstock://127.0.0.1:1")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, env=env, timeout=PATIENCE_S, text=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_mistyped_commands_are_answered_with_suggestions() -> None:
    for typed, meant in (("apend", "append"), ("stat", "stats"), ("subscriptions", "subscription")):
        code, out, err = command(typed)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert re.search(rf"no such command '{typed}'; did you mean .*'{meant}'", err)
