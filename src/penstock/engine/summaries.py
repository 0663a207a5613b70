"""What worker processes tell of logs and iterators: each in one look at the store."""

from penstock.engine import sources
from penstock.engine.jobs import list_iterators
from penstock.errors import IteratorNotFound, LogNotFound
from penstock.model import IteratorKind, IteratorSummary, LogSummary, Over
from penstock.store import Store
from penstock.store.contract import LOG_CONTEXT, IteratorState


def show_log(store: Store, name: str) -> LogSummary:
    """A log and what is in it, or LogNotFound."""
    found = store.log(name)
    if found is None:
        raise LogNotFound(name)
    messages = store.stream_head(LOG_CONTEXT, name) - found.base
    return LogSummary(name, found.created, messages, found.bytes, list_iterators(store, name))


def show_iterator(store: Store, name: str) -> IteratorSummary:
    """An iterator and how far it is, or IteratorNotFound."""
    found = store.iterator(name)
    if found is None:
        raise IteratorNotFound(name)
    return IteratorSummary(
        found.name,
        found.log,
        Over(found.over),
        IteratorKind(found.kind),
        found.function,
        found.indexed,
        found.created,
        found.outputs if found.indexed else None,
        _behind(store, found) if found.indexed else None,
    )


def _behind(store: Store, iterator: IteratorState) -> int:
    """Messages that there are and that an indexed iterator has not read. Those it reads are counted after it."""
    return max(0, sources.count(store, iterator) - (iterator.source - iterator.base))
