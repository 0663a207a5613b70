"""The tables of the console: its pages in the order of the navigation, and what can be changed."""

from typing import Final

from penstock.console import browse, overview
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
)

ACTIONS: Final[tuple[Action, ...]] = ()
