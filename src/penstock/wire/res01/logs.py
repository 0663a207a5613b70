"""Commands for logs and iterators, so that one connection does for everything. In the text dialect only.

Whether a message is CBOR is for the engine to say.
"""

from typing import Final

from penstock.model import (
    AddMessages,
    CreateIterator,
    CreateLog,
    Done,
    DropIterator,
    DropLog,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    ListIterators,
    ListLogs,
    LogSummary,
    Names,
    NextItems,
    ShowIterator,
    ShowLog,
)
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, counted, one, text_time, texts
from penstock.wire.res01.events import item_frames
from penstock.wire.res01.exchange import Frames
from penstock.wire.res01.fields import Fields

# --- logs -----------------------------------------------------------------------------------------------------


def create_log(fields: Fields, _dialect: Dialect) -> Asked:
    """NL."""
    return (CreateLog(fields.text("Log")),), _DONE


def drop_log(fields: Fields, _dialect: Dialect) -> Asked:
    """XL."""
    log = fields.text("Log")
    return (DropLog(log, fields.ticks_or_none("Created") if fields.left else None),), _DONE


def show_log(fields: Fields, _dialect: Dialect) -> Asked:
    """GL."""

    def write(log: LogSummary) -> Frames:
        head = texts(log.log, text_time(log.created), log.messages, log.size_bytes)
        return [b"LG", *head, *counted(map(texts, log.iterators))]

    return (ShowLog(fields.text("Log")),), one(LogSummary, write)


def list_logs(_fields: Fields, _dialect: Dialect) -> Asked:
    """LL."""
    return (ListLogs(),), _NAMES


def add_messages(fields: Fields, _dialect: Dialect) -> Asked:
    """ML."""
    log, count = fields.text("Log"), fields.count_to_end("Count", 1)
    return (AddMessages(log, tuple(fields.take(count))),), _DONE


# --- iterators ------------------------------------------------------------------------------------------------


def create_iterator(fields: Fields, _dialect: Dialect) -> Asked:
    """NI."""
    name, log, kind = fields.text("Name"), fields.text("Log"), fields.word("Kind", IteratorKind)
    return (CreateIterator(name, log, kind, fields.text("Function"), fields.flag("Indexed")),), _DONE


def drop_iterator(fields: Fields, _dialect: Dialect) -> Asked:
    """XI."""
    return (DropIterator(fields.text("Log"), fields.text("Name")),), _DONE


def show_iterator(fields: Fields, _dialect: Dialect) -> Asked:
    """GI."""

    def write(found: IteratorSummary) -> Frames:
        head = texts(found.name, found.log, found.over, found.kind, found.function, found.indexed)
        return [b"IG", *head, *texts(text_time(found.created), found.items, found.behind)]

    return (ShowIterator(fields.text("Name")),), one(IteratorSummary, write)


def list_iterators(fields: Fields, _dialect: Dialect) -> Asked:
    """LI."""
    return (ListIterators(fields.text_or_none("Log")),), _NAMES


def next_items(fields: Fields, _dialect: Dialect) -> Asked:
    """NX."""
    request = NextItems(fields.text("Name"), fields.number("Ordinal"), fields.number("Count"))

    def write(page: ItemPage) -> Frames:
        items: Frames = page.items if page.encoded is None else page.encoded.content
        return [b"IP", b"%d" % len(items), *items]

    return (request,), one(ItemPage, write)


_DONE: Final = one(Done, lambda _done: [b"OK"])
_NAMES: Final = one(Names, lambda names: [b"LN", *counted(map(texts, names.names))])

LOGS: Final[dict[bytes, Command]] = {
    b"NL": Command(create_log, b"OK"),
    b"XL": Command(drop_log, b"OK"),
    b"GL": Command(show_log, b"LG"),
    b"LL": Command(list_logs, b"LN"),
    b"ML": Command(add_messages, b"OK"),
    b"NI": Command(create_iterator, b"OK"),
    b"XI": Command(drop_iterator, b"OK"),
    b"GI": Command(show_iterator, b"IG"),
    b"LI": Command(list_iterators, b"LN"),
    b"NX": Command(next_items, b"IP", item_frames),
}
