"""Settings on the command line: a flag for each on every command that wants them, and `penstock settings`.

The flags, the printed table and docs/settings.md all come from the one table in `penstock.settings`.
"""

import functools
import inspect
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from penstock.cli.output import complain, console, print_document
from penstock.settings import (
    CONFIG_ENVIRONMENT,
    DEFAULT,
    TABLE,
    BadSetting,
    ExplainedSetting,
    ResolvedSettings,
    Setting,
    explain,
    resolve,
    shown,
)

__all__ = ["settings_command", "settings_page", "with_settings"]

PANEL = "Settings (also as PENSTOCK_… variables or in the --config file)"


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a typer command a flag for every setting, and pass it the `ResolvedSettings` first.

    A setting that cannot be used ends the command with exit code 2 and one line on standard error.
    """

    @functools.wraps(command)
    def run(*, config: Path | None, **given: Any) -> None:
        flags = {name: given.pop(name) for name in TABLE}
        try:
            resolved = resolve(flags, os.environ, config)
        except BadSetting as error:
            raise typer.Exit(complain(str(error), 2)) from None
        command(resolved, **given)

    parameters = [*own_parameters(command), *setting_parameters()]
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    # Without this, typer would follow it to the original signature.
    del run.__wrapped__
    return run


def own_parameters(command: Callable[..., None]) -> Iterator[inspect.Parameter]:
    """The command's parameters after the settings, which are passed by name."""
    _, *rest = inspect.signature(command, eval_str=True).parameters.values()
    for parameter in rest:
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)


def setting_parameters() -> Iterator[inspect.Parameter]:
    """`--config`, and one parameter for each setting."""
    option = typer.Option("--config", help="TOML file with settings", metavar="FILE", rich_help_panel=PANEL)
    yield keyword("config", Annotated[Path | None, option])
    for row in TABLE.values():
        yield keyword(row.name, setting_annotation(row))


def keyword(name: str, annotation: Any) -> inspect.Parameter:
    """A parameter that is passed by name and is None when it was not given."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)


def setting_annotation(row: Setting) -> Any:
    """A setting as typer wants it: a switch, or a string that the settings' own parser reads."""
    meaning = f"{row.help} (default: {shown(row.name, row.default) or 'none'})"
    if isinstance(row.default, bool):
        switch = f"{row.flag}/--no-{row.flag.removeprefix('--')}"
        return Annotated[bool | None, typer.Option(switch, help=meaning, show_default=False, rich_help_panel=PANEL)]
    return Annotated[str | None, typer.Option(row.flag, help=meaning, metavar=metavar(row.name), rich_help_panel=PANEL)]


def metavar(name: str) -> str:
    """What stands for a setting's value in its command's help."""
    if "_bytes" in name:
        return "BYTES"
    return "MS" if "_ms_" in name else "VALUE"


def settings_command(
    resolved: ResolvedSettings,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """Show every setting, its value and where that comes from."""
    rows = list(explain(resolved))
    if as_json:
        print_document([asdict(row) for row in rows])
    else:
        console().print(settings_table(rows))


def settings_table(rows: list[ExplainedSetting]) -> Table:
    """The rows for people; what was set stands out."""
    table = Table(box=box.SIMPLE_HEAD, highlight=False)
    for heading in ("setting", "value", "from"):
        table.add_column(heading, no_wrap=heading == "setting", overflow="fold")
    table.add_column("meaning", style="dim")
    for row in rows:
        value = shown(row.name, row.value) or "-"
        table.add_row(row.name, value, row.source, row.help, style=None if row.source == DEFAULT else "bold")
    return table


PAGE_OPENING = f"""\
# Settings

*For operators. After this page you can change each setting by flag, environment variable or configuration file.*

<!-- Made by `make docs` from src/penstock/settings/table.py. -->

Each setting can be given as a flag, as an environment variable, or as a key in a TOML file that
`--config FILE` or `{CONFIG_ENVIRONMENT}` names. A flag wins over the environment, the environment over the
file, the file over the default. An empty environment variable counts as not set. An unknown key in the file
is an error. `penstock settings` shows what is in effect and where it comes from; `penstock settings --json`
is for programs.

Numbers may be grouped with underscores (`10_000`). Names with `_bytes` take bytes, or KiB, MiB and GiB
(`64MiB`, in quotes in TOML). Names with `_ms_` take milliseconds. Settings with several values take them with
commas between (`a.example,b.example`), or as a list in TOML.

```toml
# penstock.toml
data = "/var/lib/penstock"
writer_queue_max = 20_000
page_bytes_max = "4MiB"
```

| key in TOML | flag | environment variable | default | meaning |
|---|---|---|---|---|
"""


def settings_page() -> str:
    """The text of docs/settings.md."""
    return PAGE_OPENING + "".join(page_row(row) for row in TABLE.values())


def page_row(row: Setting) -> str:
    """One line of the table in docs/settings.md."""
    text = shown(row.name, row.default)
    default = f"`{text}`" if text else "none"
    return f"| `{row.name}` | `{row.flag}` | `{row.environment}` | {default} | {row.help} |\n"
