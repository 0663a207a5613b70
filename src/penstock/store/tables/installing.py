"""Installing output that was computed elsewhere: chunks become rows of an iterator's output, and it moves.

The server may have built on since the build began, and the same function over the same messages gives the same items.
So as many items are passed over as the iterator has by now, wherever in a chunk that ends. Chunks come one by one.
"""

from collections.abc import Callable, Iterable

from penstock.errors import InvalidRequest, IteratorNotFound
from penstock.model import Installed, IteratorKind
from penstock.store.operations import Install
from penstock.store.outputs import Row, Rows
from penstock.store.tables.iterators import iterator_of
from penstock.store.tables.queries import Statements


class Installing:
    """One installation, inside a transaction. Whoever calls takes back what fails."""

    def __init__(self, db: Statements, op: Install, forget_state: Callable[[int], object]) -> None:
        row = db.row("iterator_numbered", {"id": op.iterator})
        if row is None:
            raise IteratorNotFound(f"of number {op.iterator}")
        self._db = db
        self._op = op
        self._forget_state = forget_state
        self._iterator = iterator_of(row)
        self._read = self._iterator.source - self._iterator.base
        self._items = self._iterator.outputs
        self._is_filter = self._iterator.kind == IteratorKind.FILTER
        self._check_start()

    def _check_start(self) -> None:
        op, found = self._op, self._iterator
        if not found.indexed:
            raise InvalidRequest("iterator", f"{found.name} is not indexed, so it has no index to install")
        is_even = op.items == op.source or self._is_filter
        if not 0 <= op.source <= self._read or not 0 <= op.items <= self._items or not is_even:
            reason = f"began at message {op.source} and item {op.items}, where the iterator has never been"
            raise InvalidRequest("build", reason)

    @property
    def is_there(self) -> bool:
        """Whether the iterator has read as far by itself."""
        return self._op.messages <= self._read

    @property
    def installed(self) -> Installed:
        """What the iterator has now."""
        return Installed(self._items, self._items - self._iterator.outputs, self._read)

    def add(self, chunks: Iterable[bytes]) -> None:
        """Add what the iterator does not have yet."""
        rows = Rows(self._items - self._op.items)
        held: Row | None = None
        for chunk in chunks:
            for row in rows.add(chunk):
                held = self._next(held, row)
        for row in rows.rest():
            held = self._next(held, row)
        self._check_items(rows.items)
        if held is not None:
            # The accumulator is in the last row only.
            self._put(held, self._op.state)
        self._read = self._op.messages
        place = {"source": self._iterator.base + self._read, "outputs": self._items}
        self._db.later("move_iterator", {"id": self._iterator.id, **place})

    def _next(self, before: Row | None, row: Row) -> Row:
        if before is None:
            self._forget_state(self._iterator.id)
        else:
            self._put(before, None)
        return row

    def _put(self, row: Row, state: bytes | None) -> None:
        values = {"id": self._iterator.id, "ordinal": self._items, "count": row.items, "data": row.data, "state": state}
        self._db.later("add_output", values)
        self._items += row.items

    def _check_items(self, items: int) -> None:
        """A map and a reduce give an item for each message, a filter one at most."""
        messages = self._op.messages - self._op.source
        if items > messages or (items < messages and not self._is_filter):
            raise InvalidRequest("winners", f"have {items} items for {messages} messages of a {self._iterator.kind}")
        if self._op.items + items < self._iterator.outputs:
            has = self._iterator.outputs - self._op.items
            raise InvalidRequest("winners", f"have {items} items, where the iterator has {has} for fewer messages")
