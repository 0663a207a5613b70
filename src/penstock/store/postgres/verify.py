"""Checking a whole store on PostgreSQL: everything but the pages, of which PostgreSQL keeps checksums of its own."""

from collections.abc import Iterator

from penstock.store.contract import Finding
from penstock.store.postgres.database import Database
from penstock.store.sqlite.verify import Verifying as WithPages


class Verifying(WithPages):
    """The part of a store on PostgreSQL that checks it."""

    db: Database  # type: ignore[assignment]

    def _pages(self) -> Iterator[Finding]:
        return iter(())
