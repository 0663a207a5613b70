"""The command `penstock` itself: finds its commands, and sees to it that all of them end well.

However a command ends, whoever asked is told in at most one line. A pipe that nobody reads any more ends it quietly
with exit code 1, Ctrl-C with 130.
"""

import errno
import inspect
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup
from typer.exceptions import Abort, TyperException
from typer.main import get_command_from_info, get_group
from typer.models import CommandInfo

from penstock import __version__
from penstock.cli import COMMANDS, Entry
from penstock.cli.commands import Command, Group
from penstock.cli.connecting import explained
from penstock.cli.output import INTERRUPTED, complain, print_line
from penstock.errors import PenstockError
from penstock.settings import BadSetting

__all__ = ["app", "loaded"]

ALONE: Final = ("--install-completion", "--show-completion")
"""Options that end the command, so that nobody would look at what stands behind them."""


class Commands(Group):
    """The commands of the table. Those that nobody asked for are known by their names and first sentences only."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        for name, entry in COMMANDS.items():
            self.commands.setdefault(name, placeholder(name, entry))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that is asked for, with all that belongs to it."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is not None and isinstance(command, Placeholder):
            command = loaded(name)
        return name, command, rest

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run a command. Standing alone, it ends the process with an exit code."""
        given: dict[str, Any] = {
            "prog_name": prog_name,
            "complete_var": complete_var,
            "windows_expand_args": windows_expand_args,
        }
        if not standalone_mode:
            return super().main(args, standalone_mode=False, **given, **extra)
        sys.exit(self._ended(args, **given, **extra))

    def _ended(self, args: Sequence[str] | None, **given: Any) -> int:
        """Run it to its end; the exit code."""
        words = sys.argv[1:] if args is None else args
        if len(words) > 1 and words[0] in ALONE:
            return complain(f"{words[0]} is for the shell that runs it, and takes nothing: {words[1]!r}", 2)
        try:
            result = super().main(args, standalone_mode=False, **given)
            sys.stdout.flush()
        except KeyboardInterrupt:
            result = INTERRUPTED
        except OSError as error:
            result = _lost_output(error)
        except (TyperException, Abort, BadSetting, PenstockError) as error:
            result = told(error)
        if result == INTERRUPTED:
            # Who presses Ctrl-C once more means the same, and wants no traceback of how it ends.
            _ignore_interrupts()
        return result if isinstance(result, int) else 0


class Placeholder(TyperCommand):
    """A command whose module nobody has asked for yet."""


def placeholder(name: str, entry: Entry) -> Placeholder:
    """What help and completion show of a command."""
    return Placeholder(name=name, callback=None, help=entry.help, short_help=entry.help, rich_help_panel=entry.panel)


def loaded(name: str) -> TyperCommand | TyperGroup:
    """A command as its module defines it."""
    entry = COMMANDS[name]
    found = _named(entry.target)
    if isinstance(found, typer.Typer):
        for command_info in found.registered_commands:
            command_info.help = command_info.help or flowing(command_info.callback)
            command_info.cls = Command
        found.info.cls = Group
        group = get_group(found)
        group.name, group.rich_help_panel = name, entry.panel
        group.help = group.help if (group.help or "").startswith(entry.help.removesuffix(".")) else entry.help
        return group
    if entry.wrap is not None:
        found = _named(entry.wrap)(found)
    info = CommandInfo(name=name, callback=found, cls=Command, help=flowing(found), rich_help_panel=entry.panel)
    command = get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=app.rich_markup_mode)
    assert isinstance(command, TyperCommand)
    return command


def flowing(function: object) -> str:
    """What a function says of itself, with breaks between paragraphs only: a terminal has its own width."""
    text = inspect.getdoc(function) or ""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in text.split("\n\n"))


def _named(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(module), name)


# --- how it ends ----------------------------------------------------------------------------------------------


def told(error: Exception) -> int:
    """Tell in a line why a command has ended; the exit code."""
    if isinstance(error, Abort):
        return complain("given up", 1)
    if isinstance(error, BadSetting):
        return complain(str(error) if error.value is not None else error.reason, 2)
    if isinstance(error, PenstockError):
        return complain(explained(error), 1)
    assert isinstance(error, TyperException)
    return wrong_use(error)


def wrong_use(error: TyperException) -> int:
    """Tell what is wrong with a command line, and where it says how it should be."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError":
        # Its help has been printed; there is nothing to add.
        return error.exit_code
    where = "" if context is None else f" (see {context.command_path} --help)"
    return complain(f"{plainly(error)}{where}", error.exit_code)


def plainly(error: TyperException) -> str:
    """What is wrong with a command line, as it stands behind a colon, and what was perhaps meant."""
    message = error.message if (near := getattr(error, "possibilities", None)) else error.format_message()
    # What may be chosen from is written in lines of its own.
    message = " ".join(message.replace(": Value error, ", ": ").replace(". Choose from:", "; choose from").split())
    sentence = (message[:1].lower() + message[1:]).removesuffix(".").replace(". Did you mean", "; did you mean")
    return f"{sentence}; did you mean {near[0]}?" if near else sentence


def _lost_output(error: OSError) -> int:
    """Something happened to standard output, most likely."""
    _write_nowhere()
    return 1 if error.errno == errno.EPIPE else complain(explained(error), 1)


def _write_nowhere() -> None:
    """What is still buffered would fail once more at the end of the process."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError:
        # It is no file, as in tests.
        return


def _ignore_interrupts() -> None:
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    except ValueError:
        # Only the main thread may say so; nobody else gets any.
        return


# --- the application ------------------------------------------------------------------------------------------

app = typer.Typer(
    name="penstock",
    cls=Commands,
    help="An event store and durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        print_line(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """An event store and durable log."""
