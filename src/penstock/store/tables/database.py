"""A database as the code that both backends share needs it: its named queries and its statements.

Each backend has a `queries.sql`, where every query stands below a line `-- name: …`. A name means the same in both: the
same values go in and the same columns come out. Migrations are one file each.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib.resources import files
from typing import Any, Final

_MARK: Final = "-- name: "
_MIGRATION: Final = re.compile(r"(\d{4})_\w+\.sql")


def load_queries(package: str, file: str) -> dict[str, str]:
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    queries: dict[str, str] = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        if name.strip() in queries:
            raise ValueError(f"{file} has two queries named {name.strip()}")
        queries[name.strip()] = body.strip().rstrip(";")
    return queries


def load_migrations(package: str) -> list[str]:
    """The text of every migration, in order; the first one creates version 1 in an empty database."""
    folder = files(package).joinpath("migrations")
    named = sorted((entry.name, entry) for entry in folder.iterdir() if _MIGRATION.fullmatch(entry.name))
    return [entry.read_text(encoding="utf-8") for _, entry in named]


Values = Mapping[str, Any]
NO_VALUES: Final[Values] = {}


class Database(ABC):
    """A connection with named queries. Belongs to one thread at a time."""

    @abstractmethod
    def rows(self, name: str, values: Values = NO_VALUES) -> list[Any]:
        """All rows of a query."""

    def row(self, name: str, values: Values = NO_VALUES) -> Any:
        """The first row of a query, or None."""
        rows = self.rows(name, values)
        return rows[0] if rows else None

    def value(self, name: str, values: Values = NO_VALUES) -> Any:
        """The first column of the first row, or None."""
        rows = self.rows(name, values)
        return rows[0][0] if rows else None

    @abstractmethod
    def each(self, name: str, values: Values = NO_VALUES) -> Iterator[Any]:
        """Rows one by one; the caller may stop early."""

    @abstractmethod
    def snapshot(self) -> AbstractContextManager[None]:
        """Reads inside see one state. Keep it short: it delays the removal of old data."""

    def can_retry(self) -> bool:
        """After a failed read: whether the database has a new connection, on which a retry makes sense."""
        return False

    @abstractmethod
    def later(self, name: str, values: Values = NO_VALUES) -> object:
        """Run a statement of a transaction without waiting for it, before every statement that comes after it."""

    @abstractmethod
    def send(self, name: str, values: Values = NO_VALUES) -> Callable[[], list[Any]]:
        """The same, with a function that waits for the rows of the statement."""

    @abstractmethod
    def run_many(self, name: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement for each row."""

    @abstractmethod
    def command(self, text: str) -> None:
        """Run SAVEPOINT and the like."""

    @abstractmethod
    def close(self) -> None: ...
