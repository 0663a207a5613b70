"""`penstock stats`: what a store holds, as a running server tells it, or read from the store itself."""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from penstock.cli.connecting import Url, by_flag, connected, telling
from penstock.cli.options import Config, Data, StoreUrl
from penstock.cli.output import AsJson, console, print_document, refuse, size, table
from penstock.model import ContextInfo, QueueInfo, StoreStats
from penstock.settings import resolve

if TYPE_CHECKING:
    from rich.table import Table

    from penstock.store import Store

__all__ = ["all_pages", "stats_command"]

PAGE_ROWS: Final = 1000
TABLE_ROWS_MAX: Final = 50
"""Rows of a table for people; programs get all."""

Info = TypeVar("Info")


def stats_command(
    url: Url = None,
    data: Data = None,
    store: StoreUrl = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show what a store holds: counts, contexts and queues.

    A running server is asked, unless --data or --store (or a setting of that name) says where the store itself is. A
    store may be in use meanwhile.
    """
    held = found(url, data, store, config, None if as_json else TABLE_ROWS_MAX)
    if as_json:
        print_document(held.document())
    else:
        held.show()


class Held(NamedTuple):
    """What a store holds; of contexts and queues perhaps the first ones only."""

    stats: StoreStats
    contexts: Sequence[ContextInfo]
    queues: Sequence[QueueInfo]

    def document(self) -> dict[str, Any]:
        """Everything, for programs."""
        contexts, queues = map(asdict, self.contexts), map(asdict, self.queues)
        return {"store": asdict(self.stats), "contexts": list(contexts), "queues": list(queues)}

    def show(self) -> None:
        """Tables, for people."""
        printed = console()
        printed.print(store_table(self.stats))
        if self.contexts:
            printed.print(context_table(self.contexts[:TABLE_ROWS_MAX], self.stats.contexts))
        if self.queues:
            printed.print(queue_table(self.queues[:TABLE_ROWS_MAX], self.stats.queues))


def found(url: str | None, data: str | None, store: str | None, config: Path | None, rows: int | None) -> Held:
    """What is there, wherever that is; of contexts and queues at least so many rows."""
    if data is not None or store is not None:
        if by_flag(url):
            refuse("only one of --url, --data and --store can be given")
        url = None
    with telling():
        settings = resolve({"data": data, "store": store}, os.environ, config)
        if url is not None or (settings.settings.data is None and settings.settings.store is None):
            with connected(url) as client:
                return Held(client.stats(), client.contexts(), client.queues())
        # Stores and what serves them take long to import.
        from penstock.cli.serve import one_store  # noqa: PLC0415
        from penstock.cli.stores import complaining, opened  # noqa: PLC0415
        from penstock.server import store_address  # noqa: PLC0415

        with complaining(), opened(store_address(one_store(settings))) as store_itself:
            return read_from(store_itself, rows)


def read_from(store: "Store", rows: int | None) -> Held:
    """What a store holds, of contexts and queues so many rows or all."""
    if rows is not None:
        return Held(store.stats(), store.contexts("", rows), store.queues(0, rows))
    contexts = list(all_pages(store.contexts, "", lambda info: info.name))
    return Held(store.stats(), contexts, list(all_pages(store.queues, 0, lambda info: info.id)))


def all_pages(read: Callable[[Any, int], list[Info]], after: Any, key: Callable[[Info], Any]) -> Iterator[Info]:
    """Every row, page by page."""
    while page := read(after, PAGE_ROWS):
        yield from page
        after = key(page[-1])


# --- tables ---------------------------------------------------------------------------------------------------


def store_table(stats: StoreStats) -> "Table":
    """The counts of the whole store."""
    from rich.table import Table  # noqa: PLC0415

    values = {
        "store": f"{stats.store_id}, timeline {stats.timeline}, schema {stats.schema}",
        "events": f"{stats.head:,} in {stats.commits:,} commits",
        "sealed": f"{stats.sealed:,} of {stats.head:,} events",
        "streams": f"{stats.streams:,} in {stats.contexts:,} contexts",
        "consumers": f"{stats.subscriptions:,} subscriptions, {stats.queues:,} queues",
        "logs": f"{stats.logs:,} with {stats.iterators:,} iterators",
        "size": f"{size(stats.file_bytes)} on disk for {size(stats.body_bytes)} of events",
    }
    made = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    for name, value in values.items():
        made.add_row(name, value)
    return made


def context_table(contexts: Sequence[ContextInfo], total: int) -> "Table":
    """Contexts, the first of them if there are many."""
    columns = ("context", "#events", "#commits", "#streams", "#size")
    rows = ((info.name, info.events, info.commits, info.streams, size(info.bytes)) for info in contexts)
    return table(columns, rows, caption(len(contexts), total))


def queue_table(queues: Sequence[QueueInfo], total: int) -> "Table":
    """Queues, the first of them if there are many."""
    columns = ("queue", "context", "filter", "#position", "#behind", "#allocated", "#tries", "#dead")
    rows = (
        (
            info.name,
            info.context,
            info.filter or "*",
            info.position,
            info.behind,
            info.allocated,
            info.deliveries_max,
            info.dead,
        )
        for info in queues
    )
    return table(columns, rows, caption(len(queues), total))


def caption(rows: int, total: int) -> str | None:
    """What is said below a table that does not show all."""
    return f"{rows} of {total:,}; --json shows all" if rows < total else None
