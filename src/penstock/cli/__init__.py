"""`penstock` and its commands.

Rules: what was asked for goes to standard output, everything else to standard error. Exit codes are 0 (done), 1
(failed) and 2 (wrong use). A mistake of the user's is told in a line, never in a traceback.
"""

from typing import Annotated

import typer

from penstock import __version__
from penstock.cli.backup import backup_command, backups_command
from penstock.cli.erase import erase_command, erasures_command
from penstock.cli.migrate import migrate_command
from penstock.cli.restore import restore_command
from penstock.cli.serve import serve_command
from penstock.cli.sessions import kick_command, sessions_command
from penstock.cli.settings import settings_command, with_settings
from penstock.cli.stats import stats_command
from penstock.cli.stores import with_store
from penstock.cli.verify import verify_command

__all__ = ["app", "main"]

app = typer.Typer(
    name="penstock",
    help="An event store and durable log.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("serve")(with_settings(serve_command))
app.command("verify")(with_store(verify_command))
app.command("stats")(with_store(stats_command))
app.command("erase")(erase_command)
app.command("erasures")(erasures_command)
app.command("backup")(with_store(backup_command))
app.command("backups")(backups_command)
app.command("restore")(restore_command)
app.command("migrate-store")(migrate_command)
app.command("sessions")(sessions_command)
app.command("kick")(kick_command)
app.command("settings")(with_settings(settings_command))


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"penstock {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """An event store and durable log."""


def main() -> None:
    """Run the command line. If nobody reads our output any more, typer and rich end us quietly, with exit code 1."""
    app()
