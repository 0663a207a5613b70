"""`penstock serve`: a server in the foreground."""

import sys
from dataclasses import replace

import typer

from penstock.cli.output import print_line, refuse
from penstock.server import run
from penstock.settings import DEFAULT, ResolvedSettings, Settings

__all__ = ["one_store", "serve_command"]


def serve_command(resolved: ResolvedSettings) -> None:
    """Serve a store until SIGTERM or Ctrl-C.

    Once every gate listens, one line on standard output says so, with the addresses: "penstock ready res=… http=…".
    The log goes to standard error.
    """
    settings = one_store(resolved)
    try:
        str(settings.data).encode()
    except UnicodeEncodeError:
        # SQLite opens no such file.
        refuse(f"data = {str(settings.data)!r} (from {resolved.sources['data']}): is not valid Unicode")
    raise typer.Exit(run(settings, say))


def say(line: str) -> None:
    """Print a line now, whoever reads it."""
    print_line(line)
    sys.stdout.flush()


def one_store(resolved: ResolvedSettings) -> Settings:
    """The settings with one of `data` and `store`, if one is better placed: a flag beats a variable, that the file."""
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
