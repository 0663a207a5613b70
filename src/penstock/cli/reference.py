"""The reference of the command line, made from the commands themselves: docs/cli.md, and docs/penstock.1 for `man`.

`python -m penstock.cli.reference docs` writes both; `make docs` does it, and a test looks whether they are current.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

from typer.core import TyperArgument, TyperGroup

from penstock import __version__
from penstock.cli import COMMANDS
from penstock.cli.root import loaded
from penstock.cli.settings import PANEL

__all__ = ["cli_page", "described", "man_page"]


# --- what there is --------------------------------------------------------------------------------------------


class Value(NamedTuple):
    """An argument or an option: how it is written, what it means, and what it is if it is not given."""

    names: tuple[str, ...]
    metavar: str
    help: str
    default: str
    environment: str
    is_required: bool
    is_argument: bool

    @property
    def written(self) -> str:
        """It, as somebody writes it."""
        if self.is_argument:
            return self.metavar
        return ", ".join(f"{name} {self.metavar}".rstrip() for name in self.names)


class Described(NamedTuple):
    """A command."""

    name: str
    panel: str
    help: str
    values: tuple[Value, ...]
    has_settings: bool
    is_group: bool

    @property
    def usage(self) -> str:
        """How it is called."""
        arguments = (value.metavar if value.is_required else f"[{value.metavar}]" for value in self.arguments)
        return " ".join([self.name, *(["COMMAND"] if self.is_group else []), *arguments, "[OPTIONS]"])

    @property
    def arguments(self) -> list[Value]:
        """What is told apart by its place."""
        return [value for value in self.values if value.is_argument]

    @property
    def options(self) -> list[Value]:
        """What is told apart by its name."""
        return [value for value in self.values if not value.is_argument]


def described() -> Iterator[Described]:
    """Every command of the table, and those below it."""
    for name, entry in COMMANDS.items():
        yield from _commands(f"penstock {name}", entry.panel, loaded(name))


def _commands(name: str, panel: str, command: Any) -> Iterator[Described]:
    values = tuple(_value(parameter) for parameter in command.params if _is_shown(parameter))
    is_group = isinstance(command, TyperGroup)
    has_settings = any(getattr(parameter, "rich_help_panel", None) == PANEL for parameter in command.params)
    yield Described(name, panel, command.help or "", values, has_settings, is_group)
    if is_group:
        for below, inner in command.commands.items():
            yield from _commands(f"{name} {below}", panel, inner)


def _is_shown(parameter: Any) -> bool:
    return not parameter.hidden and parameter.rich_help_panel != PANEL


def _value(parameter: Any) -> Value:
    is_argument = isinstance(parameter, TyperArgument)
    is_flag = getattr(parameter, "is_flag", False)
    metavar = "" if is_flag else parameter.metavar or _usual_metavar(parameter)
    names = (*parameter.opts, *parameter.secondary_opts)
    return Value(
        names=(metavar,) if is_argument else tuple(sorted(names, key=len)),
        metavar=metavar + ("…" if parameter.nargs == -1 and not metavar.endswith("…") else ""),
        help=" ".join((parameter.help or "").split()),
        default=_default(parameter),
        environment=parameter.envvar or "",
        is_required=parameter.required,
        is_argument=is_argument,
    )


def _usual_metavar(parameter: Any) -> str:
    choices = parameter.type_descriptor.choices
    return "|".join(map(str, choices)) if choices else str(parameter.name).upper()


def _default(parameter: Any) -> str:
    """What stands for a value that is not given, where there is something to say."""
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    value = parameter.default
    if not parameter.show_default or value is None or isinstance(value, bool) or callable(value) or value == "":
        return ""
    return str(getattr(value, "value", value))


# --- the page -------------------------------------------------------------------------------------------------

PAGE_OPENING: Final = """\
# The command line

*For everyone who works in a terminal. After this page you can find each command with its options, exit codes and
output.*

<!-- Made by `make docs` from the commands in src/penstock/cli. -->

`penstock COMMAND --help` says the same as this page. The option `--install-completion` teaches your shell the commands
and their options. There is a man page, [penstock.1](penstock.1): `man -l docs/penstock.1`.

## What all commands have in common

- What was asked for goes to standard output, everything else to standard error.
- Tables and lines are for people. `--json` is for programs: one object per line where there may be many (`read`,
  `tail`, `append`, `contexts`, `streams`, and what lists queues, subscriptions, logs and iterators), one document
  otherwise (`stats`). What is seldom long is one document, an array: `settings`, `sessions`, `backups`, `erasures`.
- What is piped has no colours, and is neither cropped nor wrapped. Of bodies, lines for people show the first 10,000
  characters, `--json` all. `NO_COLOR` turns colours off everywhere.
- Names and bodies come from strangers. Control characters, invisible characters and characters that turn the direction
  of writing are shown escaped, as in `\\x1b`: in tables, lines, questions, progress bars, errors and the server's
  log. JSON has them as `\\u001b`. A name that a command is given for something new (a context, a stream, a
  type, a queue, a log, an iterator) must have none: it would be a slip, and hard to type again. What programs, JSON
  lines and files name so can be read as everything else.
- JSON that is given to be kept (`append`, `log append`, `import`) is refused if some of it would be lost: a name that
  is twice in an object, NaN, a number such as `1e999`.
- A mistake is told in one line. A mistyped command or option is answered with the one that was perhaps meant.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | failed, and a line on standard error says why; or nobody reads the output any more, as in `… \\| head` |
| 2 | wrong use: the command line, or a setting, cannot be understood |
| 130, 143 | ended by Ctrl-C, or by SIGTERM; `serve` and `demo`, which are meant to be ended so, end with 0 |

Commands that work through a server take `--url`: `penstock://HOST:PORT` or `zmq+tcp://HOST:PORT`. They also do without
one: `sqlite:///DIR`, or `--data DIR`, is a store that nobody serves, and `postgresql://…` one that may be. If neither
is given, `PENSTOCK_URL` is taken; without that, the server of this machine, at the address that the setting `mq` has
(`PENSTOCK_MQ`, see [settings.md](settings.md)).

A `TIME` is written like `2026-11-15T06:00:00Z`, in UTC unless it says otherwise, or says how long ago: `30s`, `10m`,
`2h`, `7d`.

## Events as JSON

`read`, `tail` and `queue consume` print an event like this with `--json`, in one line:

```json
{
  "position": 3,
  "sequence": 1,
  "context": "shop",
  "stream": "order-2",
  "type": "OrderPlaced",
  "id": "81dd7c4c-4d3b-48a1-90ea-30c2be565670",
  "timestamp": "2026-11-15T13:53:57.7350643Z",
  "recorded_at": "2026-11-15T13:53:58.2962943Z",
  "headers": {"user": 7},
  "body": {"amount": 7}
}
```

- `timestamp` is the event's own time, `recorded_at` the server's when it was written. Both are UTC, to 100 ns.
- A body that is not JSON is under `text` in place of `body`; one that is no text either is under `base64`. JSON in
  which a name comes twice in an object, or a number is too large to be kept, is left as `text` too: nothing is lost.
- `headers` is an object if they are a JSON object, a text if they are something else, `null` if there are none.

`penstock append -` takes such lines. It needs `stream` and `type`, and `context` unless the command names one: a line
that names another than the command ends it. `id` and `timestamp` (or `time`) are kept if they are there (a time without
a zone stays one, as in files to [import](import-export.md)), and `position`, `sequence` and `recorded_at` are passed
over, as the store gives its own. So
`penstock read --json | penstock append - --url …` copies a history into another store: the same ids, times, types,
headers and bodies in the same order. Of JSON only the spacing may change, and how numbers are written. Ids are not
compared with those that are there: the same lines once more are the same events once more. Where that could happen,
`append --expected` refuses one event that has been appended, and `penstock import` recognises a file: it adds nothing
twice.

## Commands
"""


def cli_page() -> str:
    """The text of docs/cli.md."""
    found = list(described())
    return PAGE_OPENING + _index(found) + "".join(map(_section, found))


def _index(found: list[Described]) -> str:
    """All commands by panel, each with a link."""
    lines = ["", "| | |", "|---|---|"]
    for panel in dict.fromkeys(one.panel for one in found):
        names = [one.name for one in found if one.panel == panel and one.name.count(" ") == 1]
        links = ", ".join(f"[{name.removeprefix('penstock ')}](#{name.replace(' ', '-')})" for name in names)
        lines.append(f"| {panel} | {links} |")
    return "\n".join([*lines, ""])


def _section(one: Described) -> str:
    level = "#" * (2 + one.name.count(" "))
    parts = [f"\n{level} {one.name}\n", f"```\n{one.usage}\n```\n", f"{_markdown(one.help)}\n"]
    if one.values:
        rows = "".join(map(_row, [*one.arguments, *one.options]))
        parts.append(f"| argument or option | meaning |\n|---|---|\n{rows}")
    if one.has_settings:
        parts.append("Besides, every setting is an option of this command: see [settings.md](settings.md).\n")
    return "\n".join(parts)


def _row(value: Value) -> str:
    notes = [_markdown(value.help)]
    if value.is_argument and not value.is_required:
        notes.append("(may be left out)")
    if value.is_required and not value.is_argument:
        notes.append("(must be given)")
    if value.default:
        notes.append(f"(default: `{value.default}`)")
    if value.environment:
        notes.append(f"(variable: `{value.environment}`)")
    return f"| `{_cell(value.written)}` | {_cell(' '.join(notes))} |\n"


def _markdown(text: str) -> str:
    """A help text as Markdown: options in it are code."""
    prose, *rest = re.split("(`[^`]*`)", text)
    marked = re.sub(r"(?<![\w-])(--[a-z][\w-]*|-[a-z])(?![\w-])", r"`\1`", prose)
    return marked if not rest else marked + rest[0] + _markdown("".join(rest[1:]))


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


# --- the man page ---------------------------------------------------------------------------------------------

MAN_ENVIRONMENT: Final = (
    ("PENSTOCK_URL", "the server that commands with --url work through"),
    ("PENSTOCK_CONFIG", "a TOML file with settings"),
    ("PENSTOCK_…", "every setting, as penstock settings lists them"),
    ("NO_COLOR", "no colours, if it is set to anything"),
)
MAN_EXITS: Final = (
    ("0", "done"),
    ("1", "failed, or nobody reads the output any more; a line on standard error says why"),
    ("2", "wrong use: the command line, or a setting, cannot be understood"),
    ("130, 143", "ended by Ctrl-C, or by SIGTERM; serve and demo end with 0 then"),
)
MAN_EXAMPLES: Final = (
    ("A server on a directory:", "penstock serve --data ./penstock-data"),
    ("A first event:", "penstock append shop order-1 OrderPlaced '{\"amount\": 42}'"),
    ("What comes, as it comes:", "penstock tail -f shop"),
    ("A history copied into another store:", "penstock read --json | penstock append - --data ./copy"),
)


def man_page() -> str:
    """The text of docs/penstock.1, in the macros of man(7)."""
    return "\n".join(_man_lines()) + "\n"


def _man_lines() -> Iterator[str]:
    yield f'.TH PENSTOCK 1 "" "penstock {__version__}" "User Commands"'
    yield '.\\" Made by `make docs` from the commands in src/penstock/cli.'
    yield from (".SH NAME", r"penstock \- an event store and durable log")
    yield from (".SH SYNOPSIS", r".B penstock", r".I COMMAND", r"[\fIOPTIONS\fR]")
    yield from (".SH DESCRIPTION", "A store of events, served to many, and looked after with these commands.")
    yield from ("What was asked for goes to standard output, everything else to standard error.",)
    yield ".SH COMMANDS"
    for one in described():
        yield from _man_command(one)
    for title, pairs in (("ENVIRONMENT", MAN_ENVIRONMENT), ("EXIT STATUS", MAN_EXITS)):
        yield f".SH {title}"
        for name, meaning in pairs:
            yield from (".TP", f".B {_roff(name)}", _roff(meaning))
    yield ".SH EXAMPLES"
    for what, line in MAN_EXAMPLES:
        yield from (".PP", _roff(what), ".PP", ".nf", _roff("    " + line), ".fi")


def _man_command(one: Described) -> Iterator[str]:
    yield f".SS {_roff(one.usage)}"
    for number, paragraph in enumerate(one.help.split("\n\n")):
        yield from ([".PP"] if number else []) + [_roff(paragraph)]
    for value in [*one.arguments, *one.options]:
        notes = [value.help, f"(default: {value.default})" if value.default else ""]
        yield from (".TP", f".B {_roff(value.written)}", _roff(" ".join(filter(None, notes))) or r"\&")
    if one.has_settings:
        yield from (".PP", "Every setting is an option besides: see penstock settings.")


def _roff(text: str) -> str:
    """A text in which nothing is a macro or an escape."""
    escaped = text.replace("\\", r"\e").replace("-", r"\-").replace("'", r"\(aq").replace("`", r"\(ga")
    escaped = "".join(letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in escaped)
    return rf"\&{escaped}" if escaped.startswith((".", r"\(aq")) else escaped


def main(folder: Path) -> None:
    """Write both pages into a folder, each as a whole or not at all."""
    for name, text in (("cli.md", cli_page()), ("penstock.1", man_page())):
        unfinished = folder / f"{name}.tmp"
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(folder / name)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
