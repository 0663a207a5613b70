"""Where the tests of the sink write to: all kinds of URL, and what has come there, seen without Spark."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import apsw
import psycopg

from penstock.model import Event, EventFilter
from penstock.store import store_url
from penstock.store.sqlite.directory import FILE_NAME
from tests.spark.support import history

WAYS: Final = ("sqlite", "penstock", "postgresql")
SQLITE, PENSTOCK, POSTGRESQL = WAYS


@dataclass(frozen=True)
class Target:
    """A history that is written to: its kind, its URL, and the directory of its store if that is embedded."""

    way: str
    url: str
    directory: Path | None = None

    def history(self, context: str) -> list[Event]:
        """The events of a context."""
        return history(store_url(self.directory) if self.directory else self.url, EventFilter(context))

    def staged(self) -> list[int]:
        """The parts of which something is staged, once for each attempt."""
        return sorted(self._parts())

    def _parts(self) -> Iterator[int]:
        asking = "SELECT part FROM stages WHERE units > 0"
        if self.way == POSTGRESQL:
            with psycopg.connect(self.url) as database:
                yield from (part for (part,) in database.execute(asking))
            return
        assert self.directory is not None
        for path in (self.directory / "staging").glob("*/*"):
            if path.stat().st_size:
                yield int(path.name.partition("-")[0])
        if (self.directory / FILE_NAME).exists():
            place = str(self.directory / FILE_NAME)
            with closing(apsw.Connection(place, flags=apsw.SQLITE_OPEN_READONLY)) as file:
                yield from (part for (part,) in file.execute(asking))
