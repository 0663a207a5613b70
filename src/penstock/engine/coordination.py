"""Coordination with other servers that share the store: notices of what they commit, and leases on tasks.

The store itself prevents that anything happens twice; leases only save work. A lease expires, so that another server
takes over when its holder dies. An embedded store has one server, and all of this costs nothing.

A separate thread owns the store's listener. When notices do not arrive, appends go on. When they arrive again, the
engine wakes everything that a missed notice would have woken.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import Closed, PenstockError, StorageFailure, StoreError
from penstock.store import Store
from penstock.store.contract import EVERYTHING, Notice

if TYPE_CHECKING:
    from penstock.store.postgres import PostgresListener

log = logging.getLogger(__name__)

LISTEN_S: Final = 0.1
"""How long the thread listens at a time. A request for a lease waits that long at most."""
LEASE_MS: Final = 5_000
"""How long a lease lasts without renewal: after that, another server takes over from one that died."""
RENEWED_AFTER: Final = 0.3
"""The holder renews a lease after this part of its time."""
REFUSED_S: Final = 1.0
"""How long not to ask again for a lease that another server holds."""
PROBE_S: Final = 2.0
"""How often to check that notices of other servers still arrive."""
PROBE: Final = "probe"
"""A lease that no server ever takes."""
AGAIN_S: Final = 0.5
"""Until the next attempt after a failure."""
END_S_MAX: Final = 2.0
"""How long a stopping server waits for its leases to end. Otherwise they expire."""

Heard = Callable[[Notice], None]
"""Called on the loop's thread with the changes of other servers."""
_Request = tuple[Callable[["PostgresListener"], bool], "Future[bool]"]
"""A question for the thread, and its answer."""


class OwnStore:
    """A store that only this server writes."""

    is_shared = False
    trouble: str | None = None
    """Why the store that is shared is not reached at present, as a sentence for operators."""

    def start(self, heard: Heard) -> None: ...

    async def stop(self) -> None: ...

    async def may(self, name: str, ms: int = LEASE_MS) -> bool:  # noqa: ARG002 - no other server would
        """Whether this server holds the lease of a task. Asked before every step of the task."""
        return True

    def give_up(self, name: str) -> None:
        """Give the lease of a task up."""


OWN_STORE: Final = OwnStore()


class _Lease(NamedTuple):
    """The last answer about a lease, and until when (the loop's time) it holds."""

    is_mine: bool
    until: float


class SharedStore(OwnStore):
    """A store that other servers may write."""

    is_shared = True

    def __init__(self, store: Store, listener: "PostgresListener | None") -> None:
        self._store = store
        self._listener = listener
        self._loop = asyncio.get_running_loop()
        self._heard: Heard | None = None
        self._leases: dict[str, _Lease] = {}
        self._requests: SimpleQueue[_Request] = SimpleQueue()
        self._closing = False
        self._is_deaf = listener is None
        self._probe_at = 0.0
        self._thread = threading.Thread(target=self._work, name="penstock-sharing", daemon=True)

    def start(self, heard: Heard) -> None:
        self._heard = heard
        self._thread.start()

    async def stop(self) -> None:
        """Listen no more, and end all leases."""
        self._closing = True
        if self._heard is None:
            # It never started.
            if self._listener is not None:
                await asyncio.to_thread(self._listener.close)
            return
        await asyncio.to_thread(self._thread.join, END_S_MAX)
        self._heard = None

    # -- leases

    async def may(self, name: str, ms: int = LEASE_MS) -> bool:
        """Whether this server holds a lease, or gets it. Asks the store only when the last answer is old."""
        now = self._loop.time()
        known = self._leases.get(name)
        if known is not None and now < known.until:
            return known.is_mine
        try:
            is_mine = await self._ask(lambda listener: listener.lease(name, ms))
        except PenstockError:
            # A server that cannot ask does not work on the task; the thread logs what is wrong.
            is_mine = False
        believed_s = RENEWED_AFTER * ms / 1000 if is_mine else REFUSED_S
        self._leases[name] = _Lease(is_mine, now + believed_s)
        return is_mine

    def give_up(self, name: str) -> None:
        lease = self._leases.pop(name, None)
        if lease is not None and lease.is_mine:
            self._requests.put((lambda listener: bool(listener.end_lease(name)), Future()))

    async def _ask(self, ask: Callable[["PostgresListener"], bool]) -> bool:
        if self._closing:
            raise Closed
        answer: Future[bool] = Future()
        self._requests.put((ask, answer))
        return await asyncio.wrap_future(answer)

    # -- on the thread

    def _work(self) -> None:
        while not self._closing:
            try:
                self._listen()
            except StoreError as error:
                self._failed(error)
            except Exception as error:
                log.exception("notices of other servers could not be read")
                self._failed(StorageFailure(repr(error)))
        self._refuse_all(Closed())
        if self._listener is not None:
            self._listener.close()

    def _listen(self) -> None:
        """Answer the questions, then read the notices."""
        notices: list[Notice] = []
        if self._listener is None:
            self._listener = self._store.listener()
        assert self._listener is not None
        while not self._requests.empty():
            ask, answer = self._requests.get_nowait()
            if answer.set_running_or_notify_cancel():
                try:
                    answer.set_result(ask(self._listener))
                except StoreError as error:
                    answer.set_exception(error)
                    raise
        if time.monotonic() >= self._probe_at:
            # Asking something finds out a connection that is silent because it is dead.
            self._listener.end_lease(PROBE)
            self._probe_at = time.monotonic() + PROBE_S
        if self._is_deaf:
            self._is_deaf = False
            self.trouble = None
            log.warning("notices of other servers arrive again")
            notices = [EVERYTHING]
        notices += self._listener.wait(LISTEN_S)
        if others := [notice for notice in notices if not notice.is_own]:
            # A loop that was closed while this thread was still waiting for a database needs nothing any more.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell, together(others))

    def _failed(self, error: StoreError) -> None:
        """The log has the first failure only."""
        if not self._is_deaf:
            self._is_deaf = True
            log.warning("notices of other servers do not arrive at present; trying again: %s", error)
        self.trouble = f"notices of other servers do not arrive: {error}"
        self._probe_at = 0.0
        self._refuse_all(error)
        time.sleep(AGAIN_S)

    def _refuse_all(self, error: PenstockError) -> None:
        with suppress(Empty):
            while True:
                _, answer = self._requests.get_nowait()
                if answer.set_running_or_notify_cancel():
                    answer.set_exception(error)

    # -- on the loop again

    def _tell(self, notice: Notice) -> None:
        if self._heard is not None and not self._closing:
            self._heard(notice)


def coordination(store: Store) -> OwnStore:
    """How this server shares a store with others; an embedded store is not shared."""
    try:
        listener = store.listener()
    except StoreError as error:
        log.warning("notices of other servers do not arrive at present; trying again: %s", error)
        return SharedStore(store, None)
    return OWN_STORE if listener is None else SharedStore(store, listener)


def together(notices: Sequence[Notice]) -> Notice:
    """Several notices as one."""
    streams = {stream for notice in notices for stream in notice.streams or ()}
    queues = {queue for notice in notices for queue in notice.queues or ()}
    return Notice(
        is_own=False,
        head=max(notice.head for notice in notices),
        streams=None if any(notice.streams is None for notice in notices) else tuple(streams),
        has_changed_logs=any(notice.has_changed_logs for notice in notices),
        queues=None if any(notice.queues is None for notice in notices) else tuple(queues),
        has_changed_access=any(notice.has_changed_access for notice in notices),
    )
