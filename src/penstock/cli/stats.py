"""`penstock stats`: what a store holds."""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Final, TypeVar

import typer
from rich import box
from rich.console import Console
from rich.filesize import decimal
from rich.table import Table

from penstock.cli.stores import opened
from penstock.model import ContextInfo, QueueInfo, StoreStats
from penstock.store import Store

__all__ = ["stats_command"]

PAGE_ROWS: Final = 1000
TABLE_ROWS_MAX: Final = 50
"""Rows of a table for people; programs get all."""

Info = TypeVar("Info")


def stats_command(
    url: str,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON, for programs")] = False,
) -> None:
    """Show what a store holds: counts, contexts and queues. The store may be in use meanwhile."""
    with opened(url) as store:
        if as_json:
            typer.echo(json.dumps(document(store), indent=2))
        else:
            show(store)


def document(store: Store) -> dict[str, Any]:
    """Everything, for programs."""
    stats = asdict(store.stats())
    contexts = [asdict(info) for info in all_pages(store.contexts, "", lambda info: info.name)]
    queues = [asdict(info) for info in all_pages(store.queues, 0, lambda info: info.id)]
    return {"store": stats, "contexts": contexts, "queues": queues}


def all_pages(read: Callable[[Any, int], list[Info]], after: Any, key: Callable[[Info], Any]) -> Iterator[Info]:
    """Every row, page by page."""
    while page := read(after, PAGE_ROWS):
        yield from page
        after = key(page[-1])


def show(store: Store) -> None:
    """Tables, for people."""
    stats = store.stats()
    console = Console(highlight=False)
    console.print(store_table(stats))
    if contexts := store.contexts("", TABLE_ROWS_MAX):
        console.print(context_table(contexts, stats.contexts))
    if queues := store.queues(0, TABLE_ROWS_MAX):
        console.print(queue_table(queues, stats.queues))


def store_table(stats: StoreStats) -> Table:
    """The counts of the whole store."""
    values = {
        "store": f"{stats.store_id}, timeline {stats.timeline}, schema {stats.schema}",
        "events": f"{stats.head:,} in {stats.commits:,} commits",
        "sealed": f"{stats.sealed:,} of {stats.head:,} events",
        "streams": f"{stats.streams:,} in {stats.contexts:,} contexts",
        "consumers": f"{stats.subscriptions:,} subscriptions, {stats.queues:,} queues",
        "logs": f"{stats.logs:,} with {stats.iterators:,} iterators",
        "size": f"{decimal(stats.file_bytes)} on disk for {decimal(stats.body_bytes)} of events",
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in values.items():
        table.add_row(name, value)
    return table


def context_table(contexts: Sequence[ContextInfo], total: int) -> Table:
    """Contexts, the first of them if there are many."""
    table = _table(("context", "events", "commits", "streams", "size"), len(contexts), total)
    for info in contexts:
        table.add_row(info.name, f"{info.events:,}", f"{info.commits:,}", f"{info.streams:,}", decimal(info.bytes))
    return table


def queue_table(queues: Sequence[QueueInfo], total: int) -> Table:
    """Queues, the first of them if there are many."""
    columns = ("queue", "context", "filter", "position", "behind", "allocated", "tries", "dead")
    table = _table(columns, len(queues), total, texts=3)
    for info in queues:
        counts = (info.position, info.behind, info.allocated, info.deliveries_max, info.dead)
        table.add_row(info.name, info.context, info.filter or "*", *(f"{count:,}" for count in counts))
    return table


def _table(columns: Sequence[str], rows: int, total: int, texts: int = 1) -> Table:
    caption = f"{rows} of {total:,}; --json shows all" if rows < total else None
    table = Table(box=box.SIMPLE_HEAD, caption=caption)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number < texts else "right", overflow="fold")
    return table
