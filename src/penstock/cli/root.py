"""The command `penstock` itself: loads its commands, checks their names, and reports in one line why one failed."""

import errno
import inspect
import os
import sys
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort, TyperException
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from penstock import __version__
from penstock.cli import COMMANDS
from penstock.cli.connection import error_line, with_token
from penstock.cli.output import print_line, refuse
from penstock.cli.signals import INTERRUPTED, ignore_interrupts
from penstock.errors import BadUrl, PenstockError
from penstock.settings import BadSetting
from penstock.settings.sources import without_password
from penstock.terminal import print_error

COMPLETION_OPTIONS: Final = ("--install-completion", "--show-completion")
"""Options after which typer ignores all other arguments."""
NAMES: Final = frozenset(("CONTEXT", "STREAM", "TYPE", "QUEUE", "NAME", "ID", "CONTEXT/STREAM"))
"""Metavars of values that must not be empty."""
TOKEN_TAKERS: Final = frozenset(("url", "folder"))
"""Parameters of commands that may talk to a server: its address, or the folder of a pipeline, which names it."""
TEXTS: Final = NAMES | frozenset(("PREFIX", "TEXT", "JSON", "STATEMENT"))
"""Metavars of values that must be valid Unicode. Paths and bodies may be any bytes."""


class Command(TyperCommand):
    """A command that checks its names, found by their metavars, before it runs."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        for parameter in () if ctx.resilient_parsing else self.params:
            if parameter.metavar in TEXTS:
                _check_name(parameter, ctx)
        return rest

    def get_params(self, ctx: Any) -> list[Any]:
        return list(map(_without_type, super().get_params(ctx)))


class Group(TyperGroup):
    def get_params(self, ctx: Any) -> list[Any]:
        return list(map(_without_type, super().get_params(ctx)))


def _without_type(parameter: Any) -> Any:
    """Let help show no type for a flag: it takes no value."""
    if getattr(parameter, "is_flag", False) and parameter.metavar is None:
        parameter.metavar = ""
    return parameter


def _check_name(parameter: Any, ctx: Any) -> None:
    given = ctx.params.get(parameter.name)
    for value in given if isinstance(given, list | tuple) else [given]:
        if not isinstance(value, str):
            continue
        reason = "is empty" if parameter.metavar in NAMES and not value else None
        try:
            value.encode()
        except UnicodeEncodeError:
            reason = "is not valid Unicode"
        if reason:
            name = parameter.metavar if parameter.param_type_name == "argument" else max(parameter.opts, key=len)
            refuse(f"{name} {reason} (see {ctx.command_path} --help)")


class Placeholder(TyperCommand):
    """A command whose module is not imported yet: help and completion need its name and first sentence only."""


class Commands(Group):
    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, (panel, _, help, _) in COMMANDS.items():
            short = Placeholder(name=name, callback=None, help=help, short_help=help, rich_help_panel=panel)
            self.commands.setdefault(name, short)

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Find the command and import its module."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and isinstance(command, Placeholder):
            command = loaded(name)
        return name, command, rest

    def main(self, *args: Any, **given: Any) -> Any:
        """Run a command. In standalone mode, it ends the process with an exit code."""
        if not given.get("standalone_mode", True):
            return super().main(*args, **given)
        given["standalone_mode"] = False
        words = sys.argv[1:]
        if len(words) > 1 and words[0] in COMPLETION_OPTIONS:
            print_error(f"{words[0]} takes no further arguments: {words[1]!r}")
            sys.exit(2)
        try:
            result = super().main(*args, **given)
            sys.stdout.flush()
        except KeyboardInterrupt:
            result = INTERRUPTED
        except OSError as error:
            _discard_output()
            result = 1
            # A closed pipe ends the command quietly.
            if error.errno != errno.EPIPE:
                print_error(error_line(error))
        except (BadSetting, BadUrl) as error:
            result = 2
            print_error(str(without_password(str(error))))
        except PenstockError as error:
            result = 1
            print_error(error_line(error))
        except Abort:
            result = 1
            print_error("aborted")
        except TyperException as error:
            result = error.exit_code
            if type(error).__name__ != "NoArgsIsHelpError":
                # Otherwise its help is printed already.
                print_error(_usage_line(error))
        if result == INTERRUPTED:
            ignore_interrupts()
        sys.exit(result if isinstance(result, int) else 0)


def loaded(name: str) -> TyperCommand | TyperGroup:
    """A command as its module defines it."""
    entry = COMMANDS[name]
    found = _imported(entry.target)
    if isinstance(found, typer.Typer):
        for command_info in found.registered_commands:
            command_info.help = command_info.help or _help_of(command_info.callback)
            command_info.cls = Command
            command_info.callback = _for_servers(command_info.callback)
        found.info.cls = Group
        group = get_group(found)
        group.name, group.help, group.rich_help_panel = name, entry.help, entry.panel
        return group
    found = _for_servers(found) if entry.wrap is None else _imported(entry.wrap)(found)
    info = CommandInfo(name=name, callback=found, cls=Command, help=_help_of(found), rich_help_panel=entry.panel)
    command = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=app.rich_markup_mode)
    assert isinstance(command, TyperCommand)
    return command


def _for_servers(function: Any) -> Any:
    """A command, with `--token` if it may talk to a server. That of a group may have it already."""
    names = set(inspect.signature(function).parameters)
    return with_token(function) if TOKEN_TAKERS & names and "token" not in names else function


def _help_of(function: object) -> str:
    """A function's docstring with line breaks between paragraphs only: terminals differ in width."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _imported(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(f"penstock.cli.{module}"), name)


def _usage_line(error: TyperException) -> str:
    """The message of typer about wrong use, in one line and in our style."""
    message = error.message if (near := getattr(error, "possibilities", None)) else error.format_message()
    # Typer lists choices on separate lines and writes sentences; ours follow a colon.
    message = " ".join(message.replace(": Value error, ", ": ").replace(". Choose from:", "; choose from").split())
    sentence = (message[:1].lower() + message[1:]).removesuffix(".").replace(". Did you mean", "; did you mean")
    sentence = f"{sentence}; did you mean {near[0]}?" if near else sentence
    context = getattr(error, "ctx", None)
    return sentence if context is None else f"{sentence} (see {context.command_path} --help)"


def _discard_output() -> None:
    """Point standard output at /dev/null: flushing what is buffered would fail again when the process ends."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        # Standard output is not a file, as in tests.
        return


app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="An event store and durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """An event store and durable log."""
