"""`penstock` and its commands.

Results go to standard output, everything else to standard error. Exit codes are 0 (done), 1 (failed) and 2 (wrong use).
A user's mistake is reported in one line, never with a traceback.

A command is one entry in the table below. Its module is imported when the command runs, so that help and completion are
fast. `connection` has what commands share to reach a server or a store, `options` their options, `output` what they
print, `signals` how Ctrl-C ends them.
"""

import os
import sys
import warnings
from io import TextIOWrapper
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.cli.signals import INTERRUPTED, exit_on_sigterm
from penstock.lazy import lazy_names

if TYPE_CHECKING:
    import typer

    app: typer.Typer
else:
    __getattr__, __dir__ = lazy_names(__name__, {"penstock.cli.root": ("app",)})

__all__ = ["COMMANDS", "Entry", "app", "main"]


class Entry(NamedTuple):
    """A command: its panel in the help, `module:function` (or a `typer.Typer`) and the first sentence of its help."""

    panel: str
    target: str
    help: str
    wrap: str | None = None
    """A decorator that makes a typer command of the function, if it is not one yet."""


SETTINGS: Final = "settings:with_settings"
STORE: Final = "connection:with_store"
TOKEN: Final = "connection:with_token"  # noqa: S105 - where the decorator is

COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("Server", "server:serve_command", "Serve a store until SIGTERM or Ctrl-C.", SETTINGS),
    "stats": Entry("Server", "stats:stats_command", "Show what a store holds: counts, contexts and queues."),
    "sessions": Entry("Server", "server:sessions_command", "List the connections of a running server.", TOKEN),
    "doctor": Entry("Server", "doctor:doctor_command", "Check Python, Java, ports, the disk and a store."),
    "demo": Entry("Server", "demo:demo_command", "Run a server with a small shop on it to watch."),
    "bench": Entry("Server", "bench:bench_command", "Put a running server under load."),
    "kick": Entry("Server", "server:kick_command", "Close one connection of a running server.", TOKEN),
    "access": Entry("Server", "access:access_app", "Manage principals: which clients may connect, and their rights."),
    "settings": Entry(
        "Server", "settings:settings_command", "Show every setting, its value and where that comes from.", SETTINGS
    ),
    "append": Entry("Events", "append:append_command", "Append an event to a stream, or many."),
    "read": Entry("Events", "read:read_command", "Read events."),
    "tail": Entry("Events", "read:tail_command", "Show the last events, and with -f new ones as they arrive."),
    "contexts": Entry("Events", "stats:contexts_command", "List the contexts and how much is in them."),
    "streams": Entry("Events", "stats:streams_command", "List the streams of a context."),
    "queue": Entry("Consumers", "queues:queue_app", "Create, consume, change and repair queues."),
    "subscription": Entry("Consumers", "subscriptions:subscription_app", "List and move durable subscriptions."),
    "log": Entry("Logs", "logs:log_app", "Create, fill and read logs of messages."),
    "iterator": Entry("Logs", "logs:iterator_app", "Create, try and read functions over logs."),
    "import": Entry("Data", "interchange:import_command", "Import events from files."),
    "sql": Entry("Data", "sql:sql_command", "Query the history in SQL."),
    "export": Entry("Data", "interchange:export_command", "Export events to a file."),
    "replay": Entry(
        "Data", "interchange:replay_command", "Replay part of a history: through a queue, or into streams."
    ),
    "erase": Entry("Data", "maintenance:erase_command", "Erase events for good."),
    "erasures": Entry("Data", "maintenance:erasures_command", "List what was erased, oldest first."),
    "lake": Entry("Data", "lake:lake_app", "Keep a store's history as Parquet files that any engine reads."),
    "pipeline": Entry(
        "Data", "pipeline:pipeline_app", "Turn the history into tables with Spark Declarative Pipelines."
    ),
    "verify": Entry("Upkeep", "maintenance:verify_command", "Check a whole store.", STORE),
    "backup": Entry("Upkeep", "maintenance:backup_command", "Back up a store to a folder, or to one file.", STORE),
    "backups": Entry("Upkeep", "maintenance:backups_command", "List the backups in a folder or file."),
    "restore": Entry("Upkeep", "maintenance:restore_command", "Restore a store from a backup."),
    "migrate-store": Entry(
        "Upkeep", "maintenance:migrate_command", "Move a whole store from SQLite to PostgreSQL, or back."
    ),
}
"""Every command, in the order of the help. Targets are modules of this package."""


def open_standard_files() -> None:
    """Open /dev/null in place of standard files that are closed (`>&-`).

    Otherwise the next socket or database gets the number of a standard file, and output would be written into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, because those before it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY), True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly from the start, also during imports."""
    open_standard_files()
    exit_on_sigterm()
    if not sys.warnoptions:
        # Warnings are for authors of programs, and an interrupted program has some.
        warnings.simplefilter("ignore")
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            # Characters that a terminal or file cannot hold are written escaped.
            sys.stdout.reconfigure(errors="backslashreplace")
        from penstock.cli.root import app  # noqa: PLC0415
        from penstock.terminal import escape_python  # noqa: PLC0415

        escape_python()
        app(prog_name="penstock")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
