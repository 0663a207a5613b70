"""Checking a whole store on SQLite: see `penstock.store.tables.verifying`, and the pages of its file besides."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw

from penstock.store.contract import Finding
from penstock.store.sqlite.database import Database, translate
from penstock.store.sqlite.lock import is_served
from penstock.store.tables import verifying

CHECKED_BESIDE_A_SERVER: Final = (
    *("meta", "timelines", "contexts", "streams", "blocks", "subscriptions", "queues", "allocations"),
    *("producers", "logs", "iterators", "erasures"),
)


class Verifying(verifying.Verifying[Database]):
    """The part of a store on SQLite that checks it."""

    directory: Path

    def _pages(self) -> Iterator[Finding]:
        """SQLite's own look at its file; beside a server, at its smaller tables only.

        It is one long read, and a server's WAL would grow all the while. The large tables are read in steps.
        """
        served = is_served(self.directory)
        for scope in [f"({table})" for table in CHECKED_BESIDE_A_SERVER] if served else [""]:
            try:
                for (line,) in self.db.connection.execute(f"PRAGMA quick_check{scope}"):
                    if line != "ok":
                        yield Finding("file", line)
            except apsw.Error as error:
                yield Finding("file", str(translate(error)))
