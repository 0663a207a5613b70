"""The contents of a store: `penstock stats`, `penstock contexts` and `penstock streams`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Annotated, Any, Final, TypeVar

from penstock.cli.connection import LOCAL, connected, named_address, opened, store_errors
from penstock.cli.options import AsJson, Config, Data, Filter, Limit, StoreData, StoreUrl, Url, argument
from penstock.cli.output import print_document, print_fields, print_lines, print_rows, print_table, size
from penstock.model import ContextInfo, QueueInfo, QueuePreview, SubscriptionInfo

PAGE_ROWS: Final = 1000
TABLE_ROWS_MAX: Final = 50
"""Rows of a table for people; `--json` prints all."""
CONTEXT_COLUMNS: Final = ("context", "#events", "#commits", "#streams", "#size")
QUEUE_COLUMNS: Final = (
    "queue",
    "context",
    "filter",
    "#position",
    "#behind",
    "#oldest",
    "#allocated",
    "#tries",
    "#dead",
)

Info = TypeVar("Info")


def contexts_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the contexts and how much is in them."""
    with connected(url, data) as client:
        found = client.contexts()
    print_rows(map(asdict, found), CONTEXT_COLUMNS, _context_rows(found), empty="no contexts", as_json=as_json)


def streams_command(
    context: Annotated[str, argument("CONTEXT", "the context")],
    filter_: Filter = "",
    limit: Limit = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """List the streams of a context by name, and how many events each has."""
    which = f" whose names begin with {filter_}" if filter_ not in ("", "*") else ""
    with connected(url, data) as client:
        found = islice(client.streams(context, filter_), limit)
        if as_json:
            print_lines(map(asdict, found))
        else:
            rows = ((info.name, info.events) for info in found)
            print_table(("stream", "#events"), rows, empty=f"no streams{which} in context {context}")


def stats_command(
    url: Url = None, data: StoreData = None, store: StoreUrl = None, config: Config = None, as_json: AsJson = False
) -> None:
    """Show what a store holds: counts, contexts and queues.

    The command asks a running server, unless --data or --store (or a setting of that name) names the store itself. A
    server may have the store open.
    """
    address = named_address(url, data, store, config)
    if address is None or not address.startswith(LOCAL):
        with connected(address) as client:
            stats, contexts, queues = client.stats(), client.contexts(), client.queues()
    else:
        rows_max = None if as_json else TABLE_ROWS_MAX
        with store_errors(), opened(address) as reader:
            stats = reader.stats()
            contexts = list(islice(all_pages(reader.contexts, "", lambda info: info.name), rows_max))
            queues = [
                reader.with_lag(info) for info in islice(all_pages(reader.queues, 0, lambda info: info.id), rows_max)
            ]
    if as_json:
        print_document({"store": asdict(stats), "contexts": [*map(asdict, contexts)], "queues": [*map(asdict, queues)]})
        return
    print_fields(
        {
            "store": f"{stats.store_id}, timeline {stats.timeline}, schema {stats.schema}",
            "events": f"{stats.head:,} in {stats.commits:,} commits",
            "sealed": f"{stats.sealed:,} of {stats.head:,} events",
            "streams": f"{stats.streams:,} in {stats.contexts:,} contexts",
            "consumers": f"{stats.subscriptions:,} subscriptions, {stats.queues:,} queues",
            "logs": f"{stats.logs:,} with {stats.iterators:,} iterators",
            "size": f"{size(stats.file_bytes)} on disk for {size(stats.body_bytes)} of events",
        }
    )
    if first_contexts := contexts[:TABLE_ROWS_MAX]:
        caption = _caption(first_contexts, stats.contexts)
        print_table(CONTEXT_COLUMNS, _context_rows(first_contexts), empty="", caption=caption)
    if first_queues := queues[:TABLE_ROWS_MAX]:
        rows = (queue_row(info)[: len(QUEUE_COLUMNS)] for info in first_queues)
        print_table(QUEUE_COLUMNS, rows, empty="", caption=_caption(first_queues, stats.queues))


def all_pages(read: Callable[[Any, int], list[Info]], after: Any, key: Callable[[Info], Any]) -> Iterator[Info]:
    while page := read(after, PAGE_ROWS):
        yield from page
        after = key(page[-1])


def queue_row(info: QueueInfo) -> list[object]:
    counts = (info.allocated, info.deliveries_max, info.dead, info.dead_after)
    return [info.name, info.context, info.filter or "*", info.position, *lag_cells(info), *counts]


def lag_cells(info: QueueInfo | QueuePreview | SubscriptionInfo) -> tuple[str, str]:
    """How many events it is behind, as in `10,000+`, and the age of the oldest of them."""
    return f"{info.behind:,}{'' if info.behind_is_exact else '+'}", age(info.behind_ms)


def age(ms: int) -> str:
    """For people: `12 s`, `3 min`, `5 h`, `2 d`; `-` for none."""
    for unit, unit_ms, most in (("s", 1000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48)):
        if ms < most * unit_ms:
            return f"{-(-ms // unit_ms)} {unit}" if ms else "-"
    return f"{ms // 86_400_000:,} d"


def _context_rows(contexts: Iterable[ContextInfo]) -> Iterator[tuple[object, ...]]:
    return ((info.name, info.events, info.commits, info.streams, size(info.bytes)) for info in contexts)


def _caption(rows: Sequence[object], total: int) -> str | None:
    return f"{len(rows)} of {total:,}; --json shows all" if len(rows) < total else None
