"""Settings on the command line: a flag for each on commands that need them, and `penstock settings`.

The flags, the printed table and docs/settings.md come from the table in `penstock.settings`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from penstock.cli.options import AsJson
from penstock.cli.output import print_document, print_table
from penstock.settings import DEFAULT, TABLE, ResolvedSettings, Setting, Settings, explain, format_value, resolve

PANEL: Final = "Settings (also as PENSTOCK_… variables or in the --config file)"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command a flag for every setting, and pass it the `ResolvedSettings` first."""

    @functools.wraps(command)
    def run(*, config: Path | None, **given: Any) -> None:
        flags = {name: given.pop(name) for name in TABLE}
        command(resolve(flags, os.environ, config), **given)

    return with_signature(run, [*own_parameters(command), *_setting_parameters()])


def with_signature(function: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """Let typer see other parameters than those the function was written with."""
    signature = inspect.Signature(list(parameters))
    function.__signature__ = signature  # type: ignore[attr-defined]
    function.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    # Without this, typer would use the signature of the wrapped function.
    del function.__wrapped__  # type: ignore[attr-defined]
    return function


def own_parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """The command's parameters after the first, passed by name."""
    _, *rest = inspect.signature(command, eval_str=True).parameters.values()
    for parameter in rest:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def _setting_parameters() -> Iterator[inspect.Parameter]:
    config = typer.Option("--config", help="TOML file with settings", metavar="FILE", rich_help_panel=PANEL)
    annotations = {"config": Annotated[Path | None, config]} | {row.name: _annotation(row) for row in TABLE.values()}
    for name, annotation in annotations.items():
        yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def _annotation(row: Setting) -> Any:
    """A setting for typer: a switch, or a string that the setting's own parser reads."""
    given: dict[str, Any] = {
        "help": f"{row.help} (default: {format_value(row.name, row.default) or 'none'})",
        "show_default": False,
        "rich_help_panel": PANEL,
    }
    if isinstance(row.default, bool):
        return Annotated[bool | None, typer.Option(f"{row.flag}/--no-{row.flag.removeprefix('--')}", **given)]
    metavar = "BYTES" if "_bytes" in row.name else "MS" if "_ms_" in row.name else "VALUE"
    return Annotated[str | None, typer.Option(row.flag, metavar=metavar, **given)]


def one_store(resolved: ResolvedSettings) -> Settings:
    """The settings with only one of `data` and `store`: a flag wins over a variable, a variable over the file."""
    settings, sources = resolved.settings, resolved.sources
    if settings.data is None or settings.store is None:
        return settings
    data, store = _rank(sources["data"]), _rank(sources["store"])
    if data == store:
        return settings
    return replace(settings, data=None) if data < store else replace(settings, store=None)


def _rank(source: str) -> int:
    if source.startswith("--"):
        return 3
    if source == DEFAULT:
        return 0
    return 2 if source.startswith("PENSTOCK_") else 1


def settings_command(resolved: ResolvedSettings, as_json: AsJson = False) -> None:
    """Show every setting, its value and where that comes from."""
    rows = list(explain(resolved))
    if as_json:
        print_document([asdict(row) for row in rows])
        return
    cells = [(row.name, format_value(row.name, row.value) or "-", row.source, row.help) for row in rows]
    columns = ("setting", "value", "from", "meaning")
    print_table(columns, cells, empty="", is_bold=lambda row: row[2] != DEFAULT)


PAGE_TABLE: Final = """\
| key in TOML | flag | environment variable | default | meaning |
|---|---|---|---|---|
"""


def settings_page(page: str) -> str:
    """The text of docs/settings.md with a new table; the text before the table is written by hand."""
    return page.partition(PAGE_TABLE)[0] + PAGE_TABLE + "".join(map(page_row, TABLE.values()))


def page_row(row: Setting) -> str:
    text = format_value(row.name, row.default)
    default = f"`{text}`" if text else "none"
    return f"| `{row.name}` | `{row.flag}` | `{row.environment}` | {default} | {row.help} |\n"
