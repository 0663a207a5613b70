"""`penstock` and its commands.

Rules: what was asked for goes to standard output, everything else to standard error. Exit codes are 0 (done), 1
(failed) and 2 (wrong use). A mistake of the user's is told in a line, never in a traceback.

A command is one line in the table below, and its module is imported when somebody asks for it: help and completion
need none of them, and one command none of the others'. What commands share is in `connecting` (`--url`, errors),
`output` (tables, JSON, complaints), `stores` (`--data` and `--store` of a store itself) and `settings`.
"""

import os
import signal
import sys
import warnings
from io import TextIOWrapper
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn

if TYPE_CHECKING:
    import typer

    app: typer.Typer

__all__ = ["COMMANDS", "Entry", "app", "main"]


class Entry(NamedTuple):
    """A command: where it is in the help, and the first sentence of it; a function or a `typer.Typer` with others."""

    panel: str
    target: str
    help: str
    wrap: str | None = None
    """What makes a command of the function, if it is none yet."""


TERMINATED: Final = 128 + signal.SIGTERM
"""The exit code of a command that was ended by SIGTERM, as shells have it."""
SETTINGS: Final = "penstock.cli.settings:with_settings"
STORE: Final = "penstock.cli.stores:with_store"

COMMANDS: Final[dict[str, Entry]] = {
    "serve": Entry("Server", "penstock.cli.serve:serve_command", "Serve a store until SIGTERM or Ctrl-C.", SETTINGS),
    "stats": Entry(
        "Server", "penstock.cli.stats:stats_command", "Show what a store holds: counts, contexts and queues."
    ),
    "sessions": Entry("Server", "penstock.cli.sessions:sessions_command", "List the connections of a running server."),
    "doctor": Entry("Server", "penstock.cli.doctor:doctor_command", "Check Python, Java, ports, the disk and a store."),
    "demo": Entry("Server", "penstock.cli.demo:demo_command", "Run a server with a small living shop to watch."),
    "bench": Entry("Server", "penstock.cli.loading:bench_command", "Put a running server under load."),
    "kick": Entry("Server", "penstock.cli.sessions:kick_command", "Cut one connection of a running server off."),
    "settings": Entry(
        "Server",
        "penstock.cli.settings:settings_command",
        "Show every setting, its value and where that comes from.",
        SETTINGS,
    ),
    "append": Entry("Events", "penstock.cli.append:append_command", "Append an event to a stream, or many."),
    "read": Entry("Events", "penstock.cli.read:read_command", "Read events."),
    "tail": Entry("Events", "penstock.cli.tail:tail_command", "Show the last events, and with -f what comes."),
    "contexts": Entry("Events", "penstock.cli.contents:contexts_command", "List the contexts and how much is in them."),
    "streams": Entry("Events", "penstock.cli.contents:streams_command", "List the streams of a context."),
    "queue": Entry("Consumers", "penstock.cli.queue:queue_app", "List, consume and mend queues."),
    "subscription": Entry(
        "Consumers", "penstock.cli.subscription:subscription_app", "List and move durable subscriptions."
    ),
    "log": Entry("Logs", "penstock.cli.logs:app", "Make, fill and read logs of messages."),
    "iterator": Entry("Logs", "penstock.cli.iterators:app", "Make, try and read functions over logs."),
    "import": Entry("Data", "penstock.cli.importing:import_command", "Import events from files."),
    "sql": Entry("Data", "penstock.cli.sql:sql_command", "Ask the history in SQL."),
    "export": Entry("Data", "penstock.cli.exporting:export_command", "Export events to a file."),
    "replay": Entry(
        "Data",
        "penstock.cli.replay:replay_command",
        "Replay part of a history: through a queue, or into streams.",
    ),
    "erase": Entry("Data", "penstock.cli.erase:erase_command", "Erase events for good."),
    "erasures": Entry("Data", "penstock.cli.erase:erasures_command", "List what was erased, oldest first."),
    "lake": Entry(
        "Data", "penstock.cli.lake:lake_app", "Keep a store's history as Parquet files that any engine reads."
    ),
    "pipeline": Entry(
        "Data", "penstock.cli.pipeline:pipeline_app", "Turn the history into tables with Spark Declarative Pipelines."
    ),
    "verify": Entry("Upkeep", "penstock.cli.verify:verify_command", "Check a whole store.", STORE),
    "backup": Entry(
        "Upkeep", "penstock.cli.backup:backup_command", "Back up a store to a folder, or to one file.", STORE
    ),
    "backups": Entry("Upkeep", "penstock.cli.backup:backups_command", "List the backups in a folder or file."),
    "restore": Entry("Upkeep", "penstock.cli.restore:restore_command", "Restore a store from a backup."),
    "migrate-store": Entry(
        "Upkeep", "penstock.cli.migrate:migrate_command", "Move a whole store from SQLite to PostgreSQL, or back."
    ),
}
"""Every command, in the order of the help. Panels: Server, Events, Consumers, Logs, Data, Upkeep."""


def __getattr__(name: str) -> Any:
    if name == "app":
        from penstock.cli.root import app  # noqa: PLC0415

        return app
    raise AttributeError(f"module 'penstock.cli' has no attribute {name!r}")


def open_standard_files() -> None:
    """Open /dev/null in place of standard files that are closed (`>&-`).

    Otherwise the next file that is opened has their numbers: a socket or a database that takes itself for one of them.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free is this one, as those before it are open.
            os.set_inheritable(os.open(os.devnull, os.O_RDONLY if mode == "r" else os.O_WRONLY), True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def end_in_order() -> None:
    """Let SIGTERM end a command as Ctrl-C does, its temporary files removed; the second one ends it at once."""

    def end(_number: int, _frame: object) -> NoReturn:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.exit(TERMINATED)

    # Whoever has it ignored, as a shell can, wants that.
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def main() -> None:
    """Run the command line. Ctrl-C ends it quietly from the first moment on, also while modules are imported."""
    open_standard_files()
    end_in_order()
    if not sys.warnoptions:
        # They are for those who write programs; what is interrupted half-way has some.
        warnings.simplefilter("ignore")
    try:
        if isinstance(sys.stdout, TextIOWrapper):
            # Where a terminal or a file has not all characters, the others are shown escaped.
            sys.stdout.reconfigure(errors="backslashreplace")
        from penstock.cli.root import app  # noqa: PLC0415
        from penstock.terminal import escape_python  # noqa: PLC0415

        escape_python()
        app(prog_name="penstock")
    except KeyboardInterrupt:
        sys.exit(130)
