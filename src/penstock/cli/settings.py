"""Settings on the command line: a flag for each on commands that need them, and `penstock settings`."""

import inspect
import os
from collections.abc import Callable, Mapping
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

    def resolved(config: Path | None, **flags: Any) -> ResolvedSettings:
        return resolve(flags, os.environ, config)

    config = typer.Option("--config", help="TOML file with settings", metavar="FILE", rich_help_panel=PANEL)
    flags = {row.name: _annotation(row) for row in TABLE.values()}
    return with_first(command, resolved, {"config": Annotated[Path | None, config], **flags})


def with_first(
    command: Callable[..., None], make: Callable[..., object], options: Mapping[str, Any]
) -> Callable[..., None]:
    """Give a typer command more options, and pass it what `make` creates from their values first."""
    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    kind = inspect.Parameter.KEYWORD_ONLY
    more = [inspect.Parameter(name, kind, default=None, annotation=each) for name, each in options.items()]
    signature = inspect.Signature([*(parameter.replace(kind=kind) for parameter in own), *more])

    def run(**given: Any) -> None:
        command(make(**{name: given.pop(name) for name in options}), **given)

    run.__doc__ = command.__doc__
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {name: parameter.annotation for name, parameter in signature.parameters.items()}
    return run


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
