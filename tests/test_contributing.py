"""CONTRIBUTING.md is right: its map is that of the source tree, its paths exist, and its worked examples work."""

import json
import re
from dataclasses import dataclass, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock import Client, cli, errors, event
from penstock.cli import output, stats
from penstock.cli.root import loaded
from penstock.cli.settings import page_row
from penstock.errors import PenstockError, Retry
from penstock.settings import table
from penstock.settings.table import Setting
from penstock.testing import Server
from penstock.wire.res01.dialects import error_frame

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found
    return found[1]


def example(title: str) -> str:
    (code,) = re.findall(r"^```python\n(.*?)^```$", section(title), re.MULTILINE | re.DOTALL)
    return str(code)


def names_of(*modules: ModuleType) -> dict[str, Any]:
    """What a module's code sees, for code that the page adds to it."""
    return {name: value for module in modules for name, value in vars(module).items()}


def test_the_map_has_every_package_and_no_other() -> None:
    rows = re.findall(r"^\| (`.+?) \|", section("The source tree"), re.MULTILINE)
    mapped = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    inside = [path for path in (ROOT / "src" / "penstock").iterdir() if not path.name.startswith("__")]
    packages = {path.stem for path in inside if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert sorted(mapped) == sorted(packages)


def test_every_path_of_the_page_exists() -> None:
    named = set(re.findall(r"\b((?:src|tests|docs)/[\w/.-]*\w)", PAGE))
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert len(named) > 20


def test_every_target_of_make_is_listed() -> None:
    targets = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    listed = re.findall(r"`make ([a-z-]+)`", PAGE.partition("\n## ")[0])
    assert set(targets) - {"help"} == set(listed)


def test_a_setting_is_one_field() -> None:
    names = names_of(table)
    body = "".join(f"    {line}\n" for line in example("Add a setting").splitlines())
    exec(f"@dataclass(frozen=True, slots=True, kw_only=True)\nclass Example:\n{body}", names)
    (field,) = fields(names["Example"])
    row = Setting(field.name, field.default, field.metadata["help"], field.metadata["parse"])
    assert (row.flag, row.environment) == ("--subscriptions-max", "PENSTOCK_SUBSCRIPTIONS_MAX")
    assert all(f"`{name}`" in section("Add a setting") for name in (row.flag, row.environment))
    assert row.parse("10_000") == 10_000
    with pytest.raises(ValueError, match="1"):
        row.parse("0")
    assert page_row(row).startswith("| `subscriptions_max` | `--subscriptions-max` |")


def test_an_error_is_one_class() -> None:
    names = {**names_of(errors), "dataclass": dataclass}
    exec(example("Add an error"), names)
    error = names["StreamClosed"]("shop", "order-1")
    assert isinstance(error, PenstockError)
    assert error.retry is Retry.NEVER
    assert str(error) == "stream shop/order-1 is closed; append to another stream"
    assert b'"class":"StreamClosed","fields":{"context":"shop","stream":"order-1"}' in error_frame(error)


def test_a_command_is_one_function_and_one_entry(
    penstock_server: Server,
    penstock_client: Client,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    function, entry = example("Add a command to the command line").split("\n\n\n")
    names = {**names_of(output), **names_of(stats)}
    exec(function, names)
    monkeypatch.setattr(stats, "count_command", names["count_command"], raising=False)
    # So that the entry goes from the table again.
    monkeypatch.setitem(cli.COMMANDS, "count", cli.COMMANDS["streams"])
    exec(entry, names_of(cli))
    for number in range(3):
        penstock_client.append("shop", f"order-{number}", [event("OrderPlaced")])
    arguments = ["shop", "--filter", "order-", "--url", penstock_server.url]
    loaded("count").main(arguments, standalone_mode=False)
    assert capsys.readouterr().out == "3 streams in context shop\n"
    loaded("count").main([*arguments, "--json"], standalone_mode=False)
    assert json.loads(capsys.readouterr().out) == {"context": "shop", "streams": 3}
