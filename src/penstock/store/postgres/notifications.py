"""Notices and leases between the servers of a store.

A commit sends its notice with NOTIFY, and other servers get it after the commit. A notice is a hint: a server then
reads the store. After a lost connection notices may be missing, so the listener answers "everything".
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final
from uuid import UUID

import psycopg

from penstock.errors import StoreError
from penstock.store.contract import EVERYTHING, Notice
from penstock.store.postgres.connection import Target, translate
from penstock.store.postgres.database import PostgresDatabase

PAYLOAD_BYTES_MAX: Final = 7_900
"""PostgreSQL takes up to 8,000."""
RECONNECT_PAUSE_S: Final = 0.2
NOTICES_MAX: Final = 1_000
"""At most so many notices at once."""


def payload(
    writer: UUID, head: int, streams: Sequence[tuple[str, str]], changes: Mapping[str, bool], queues: Iterable[int]
) -> str:
    """The notice of a commit. If it has too many streams to name, it says "all of them"."""
    notice: dict[str, Any] = {"by": writer.hex, "head": head, **changes, "queues": sorted(queues)}
    text = _json({**notice, "streams": streams})
    return text if len(text.encode()) <= PAYLOAD_BYTES_MAX else _json({**notice, "queues": None, "streams": None})


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def notice_of(text: str, listener: UUID) -> Notice:
    """A notice from its text; a broken text means everything."""
    try:
        given = json.loads(text)
        streams, queues = given["streams"], given["queues"]
        return Notice(
            is_own=UUID(hex=given["by"]) == listener,
            head=int(given["head"]),
            streams=None if streams is None else tuple((context, stream) for context, stream in streams),
            has_changed_logs=bool(given["logs"]),
            queues=None if queues is None else tuple(queues),
            has_changed_access=bool(given["access"]),
        )
    except (ValueError, KeyError, TypeError):
        return EVERYTHING


class PostgresListener:
    """Notices from the other servers of a store, and leases that the servers share.

    It has its own connection and belongs to one thread, which need not be the store's.
    """

    def __init__(self, target: Target, listener: UUID) -> None:
        self._target = target
        self._id = listener
        self._db: PostgresDatabase | None = None
        self._listens_on: psycopg.Connection[Any] | None = None
        self._listen()

    def _listen(self) -> None:
        if self._db is None:
            self._db = PostgresDatabase(self._target, write=True)
        # The channel has the name of the schema, which has only letters, digits and _.
        self._db.command(f"LISTEN {self._target.schema}")
        self._listens_on = self._db.connection

    def wait(self, seconds: float) -> list[Notice]:
        """Wait for notices, at most so long; they come in the order of their commits.

        After a lost connection it reconnects and answers EVERYTHING. While that fails, it answers early, with nothing.
        """
        deadline = time.monotonic() + seconds
        # A lease may have reconnected, and that connection does not listen yet.
        if self._db is None or self._db.connection is not self._listens_on:
            return self._try_again(seconds)
        try:
            found = self._db.connection.notifies(timeout=max(deadline - time.monotonic(), 0), stop_after=1)
            notices = [notice_of(one.payload, self._id) for one in found]
            if notices:
                # Take everything else that has arrived.
                more = self._db.connection.notifies(timeout=0, stop_after=NOTICES_MAX)
                notices += [notice_of(one.payload, self._id) for one in more]
        except psycopg.Error:
            self._give_up()
            return self._try_again(max(deadline - time.monotonic(), 0))
        return notices

    def _give_up(self) -> None:
        if self._db is not None:
            self._db.close()
        self._db = None

    def _try_again(self, seconds: float) -> list[Notice]:
        """Listen again, after a pause if that fails. Notices may be missing."""
        try:
            self._listen()
        except StoreError:
            self._give_up()
            time.sleep(min(seconds, RECONNECT_PAUSE_S))
            return []
        return [EVERYTHING]

    def lease(self, name: str, ms: int) -> bool:
        """Take or renew a lease by the store's clock; False while another server has it.

        The holder renews it before it ends. A lease only saves work that need not be done twice; where it must not be
        done twice, the store compares (see WriteOutput, Seal). Raises StorageFailure.
        """
        return bool(self._rows("take_lease", {"name": name, "holder": self._id, "ms": ms}))

    def end_lease(self, name: str) -> bool:
        """End a lease; whether this server had it. Raises StorageFailure."""
        return bool(self._rows("end_lease", {"name": name, "holder": self._id}))

    def _rows(self, name: str, values: dict[str, Any]) -> list[Any]:
        try:
            if self._db is None:
                self._db = PostgresDatabase(self._target, write=True)
            return self._db.rows(name, values)
        except psycopg.Error as error:
            raise translate(error) from error

    def close(self) -> None:
        """End all leases, and release everything; never raises."""
        if self._db is not None and not self._db.is_lost:
            with suppress(StoreError):
                # Otherwise they expire.
                self._db.rows("end_leases", {"holder": self._id})
        self._give_up()
