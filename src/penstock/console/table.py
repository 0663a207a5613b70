"""The tables of the console: its pages in the order of the navigation, and what can be changed."""

from typing import Final

from penstock.console import browse, logs, overview, sql
from penstock.console.visit import Action, Page
from penstock.model import Right

PAGES: Final = (
    Page("/", "Overview", "overview.html", overview.overview, None, nav="Overview"),
    Page("/samples", "Samples", "", overview.samples, Right.READ, everywhere=True, within="/"),
    Page("/browse", "Contexts", "contexts.html", browse.contexts, nav="Browse", group="Data"),
    Page("/browse/streams", "Streams", "streams.html", browse.streams, within="/browse"),
    Page("/browse/stream", "Stream", "stream.html", browse.stream, within="/browse"),
    Page("/browse/history", "History", "history.html", browse.history, nav="History", group="Data"),
    Page("/browse/event", "Event", "event.html", browse.event, within="/browse"),
    Page("/browse/body", "Body", "", browse.body, within="/browse"),
    Page("/logs", "Logs", "logs.html", logs.logs, nav="Logs", group="Data"),
    Page("/logs/log", "Log", "log.html", logs.log, within="/logs"),
    Page("/iterators", "Iterators", "iterators.html", logs.iterators, nav="Iterators", group="Data"),
    Page("/iterators/iterator", "Iterator", "iterator.html", logs.iterator, within="/iterators"),
    Page("/iterators/try", "Try a function", "try.html", logs.attempt, within="/iterators", posts=True),
    Page("/sql", "SQL", "sql.html", sql.sql, nav="SQL", group="Data", posts=True),
)

ACTIONS: Final[tuple[Action, ...]] = (
    Action("/logs/create", "/logs", logs.create_log, Right.APPEND),
    Action("/logs/delete", "/logs/log", logs.delete_log, Right.APPEND, confirm="log"),
    Action("/iterators/create", "/iterators/try", logs.create_iterator, Right.APPEND),
    Action("/iterators/delete", "/iterators/iterator", logs.delete_iterator, Right.APPEND, confirm="iterator"),
)
