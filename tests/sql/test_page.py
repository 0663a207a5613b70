"""docs/sql.md: its commands are run in turn, and print what the page says. `tests.test_readme` runs its Python."""

import re
import shlex
from datetime import timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from penstock.lake.iceberg import TABLE_FOLDER
from penstock.model import NewEvent, new_event
from tests.lake.support import archive
from tests.spark.support import NOON, fill

PAGE = Path(__file__).parent.parent.parent / "docs" / "sql.md"
CONSOLE = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def event(type: str, body: str, minutes: int) -> NewEvent:
    """An event of some minutes after six."""
    return new_event(type, body.encode(), time=NOON.replace(2026, 11, 15, 6) + timedelta(minutes=minutes))


def shop(data: Path) -> str:
    """The history of which the page tells."""
    placed, paid = "OrderPlaced", "PaymentReceived"
    return fill(
        data,
        [
            (
                "shop",
                "order-1",
                [event(placed, '{"customer": "Ada", "amount": 42}', 0), event(paid, '{"amount": 42}', 30)],
            ),
            ("shop", "order-2", [event(placed, '{"customer": "Grace", "amount": 7}', 50)]),
            ("shop", "order-2", [event(paid, '{"amount": 7}', 65)]),
            ("shop", "order-3", [event(placed, '{"customer": "Ada", "amount": 7}', 70)]),
        ],
    )


def test_the_commands_print_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive(shop(tmp_path / "DIR"), tmp_path / "LAKE")
    (tmp_path / "customers.csv").write_text("name,country\nAda,GB\nGrace,US\n")
    monkeypatch.chdir(tmp_path)
    blocks = CONSOLE.findall(PAGE.read_text(encoding="utf-8"))
    shown = [line.rstrip() for block in blocks for line in block.splitlines()]
    commands = [line.removeprefix("$ ") for line in shown if line.startswith("$ ")]
    assert len(commands) > 12
    printed = [line.rstrip() for command in commands for line in (f"$ {command}", *ran(command).splitlines())]
    assert printed == shown


def ran(line: str) -> str:
    """The output of a line in a shell, standard output and error."""
    words = shlex.split(line)
    if words[0] == "cat":
        return Path(words[1]).read_text()
    given = words[1] if words[0] == "echo" else None
    own = words[words.index("penstock") + 1 :]
    return CliRunner().invoke(app, own, input=given).output


def test_the_page_names_the_place_of_the_iceberg_table() -> None:
    assert f"LAKE/{TABLE_FOLDER}" in PAGE.read_text(encoding="utf-8")
