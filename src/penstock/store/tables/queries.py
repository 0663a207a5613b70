"""A database as the parts of a store need it that are the same for all of them: it answers to the names of queries.

What a query asks is written in each backend's own `queries.sql`; what its values and columns mean is the same in all.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVar


class Queries(Protocol):
    """A database that is read."""

    def rows(self, name: str, values: dict[str, Any] = ..., /) -> list[Any]:
        """All rows of a query."""
        ...

    def row(self, name: str, values: dict[str, Any] = ..., /) -> Any:
        """The first row of a query, or None."""
        ...

    def value(self, name: str, values: dict[str, Any] = ..., /) -> Any:
        """The first column of the first row, or None."""
        ...

    def each(self, name: str, values: dict[str, Any] = ..., /) -> Iterator[Any]:
        """Rows one by one; the caller may stop early."""
        ...

    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see one state."""
        ...


AnyQueries = TypeVar("AnyQueries", bound=Queries)
"""The database of a backend, as a part of its store has it."""


class Statements(Queries, Protocol):
    """A database that is written, inside a transaction."""

    def later(self, name: str, values: dict[str, Any] = ..., /) -> object:
        """Carry out a statement whose result nobody waits for, before anything that is asked or sent after it."""
        ...


class Rows(Protocol):
    """A database that takes many rows at once."""

    def rows(self, name: str, /) -> list[Any]:
        """All rows of a query."""
        ...

    def value(self, name: str, values: dict[str, Any] = ..., /) -> Any:
        """The first column of the first row, or None."""
        ...

    def run_many(self, name: str, rows: Sequence[Sequence[Any]], /) -> None:
        """Carry out a statement for every row."""
        ...
