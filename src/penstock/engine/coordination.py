"""This server among others that share one store: hears what they commit, and agrees with them who does what.

What must not happen twice the store compares; leases only save work. They run out by themselves, so that another server
takes over what one that died was at. With an embedded store there is nobody else, and all of this costs nothing.

A thread of its own owns the store's `Listener`. When it cannot be heard what others do, appends go on; what they woke
here before is woken again when they are heard again.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple

from penstock.errors import Closed, PenstockError, StorageFailure, StoreError
from penstock.store import Store
from penstock.store.contract import EVERYTHING, Listener, Notice

log = logging.getLogger(__name__)

LISTEN_S: Final = 0.1
"""How long the thread listens at a time. Whoever asks it for a lease waits that long at most."""
LEASE_MS: Final = 5_000
"""How long a lease lasts that nobody renews: so long it takes until others take over from one that died."""
RENEWED_AFTER: Final = 0.3
"""The part of its time after which a lease is asked for again by who holds it."""
REFUSED_S: Final = 1.0
"""How long a lease that another server has is not asked for again."""
PROBE_S: Final = 2.0
"""How often it is made sure that others can still be heard."""
PROBE: Final = "probe"
"""A lease that nobody ever takes."""
AGAIN_S: Final = 0.5
"""Until the next attempt to reach others that failed."""
END_S_MAX: Final = 2.0
"""How long a server that stops waits for its leases to be ended. They run out otherwise."""

Heard = Callable[[Notice], None]
"""Told on the loop's thread what others have changed."""


class OwnStore:
    """Nobody else writes this store."""

    is_shared = False

    def start(self, heard: Heard) -> None:
        """Begin to listen."""

    async def stop(self) -> None:
        """Listen no more, and end all leases."""

    async def may(self, name: str, ms: int = LEASE_MS) -> bool:  # noqa: ARG002 - nobody else would
        """Whether this server shall do what a name stands for. Asked before every step of it."""
        return True

    def give_up(self, name: str) -> None:
        """This server does no more of it for now."""


OWN_STORE: Final = OwnStore()


class _Lease(NamedTuple):
    """What was said of a lease, and until when (the loop's time) that is believed."""

    is_mine: bool
    until: float


class _Request(NamedTuple):
    """Something to be asked by the thread; nobody may wait for it."""

    ask: Callable[[Listener], bool]
    answer: "asyncio.Future[bool] | None"


class SharedStore(OwnStore):
    """Others may write this store."""

    is_shared = True

    def __init__(self, store: Store, listener: Listener | None) -> None:
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
        """Begin to listen."""
        self._heard = heard
        self._thread.start()

    async def stop(self) -> None:
        """Listen no more, and end all leases."""
        self._closing = True
        if self._heard is None:
            # It never began.
            if self._listener is not None:
                await asyncio.to_thread(self._listener.close)
            return
        await asyncio.to_thread(self._thread.join, END_S_MAX)
        self._heard = None

    # -- leases

    async def may(self, name: str, ms: int = LEASE_MS) -> bool:
        """Whether this server holds a lease, or gets it. The store is asked only when the last answer is old."""
        now = self._loop.time()
        known = self._leases.get(name)
        if known is not None and now < known.until:
            return known.is_mine
        try:
            is_mine = await self._ask(lambda listener: listener.lease(name, ms))
        except PenstockError:
            # Who cannot ask does not do it; the thread says in the log what is wrong.
            is_mine = False
        believed_s = RENEWED_AFTER * ms / 1000 if is_mine else REFUSED_S
        self._leases[name] = _Lease(is_mine, now + believed_s)
        return is_mine

    def give_up(self, name: str) -> None:
        """Let another server have it, if this one does."""
        lease = self._leases.pop(name, None)
        if lease is not None and lease.is_mine:
            self._requests.put(_Request(lambda listener: _ended(listener, name), None))

    async def _ask(self, ask: Callable[[Listener], bool]) -> bool:
        if self._closing:
            raise Closed
        answer: asyncio.Future[bool] = self._loop.create_future()
        self._requests.put(_Request(ask, answer))
        return await answer

    # -- on the thread

    def _work(self) -> None:
        while not self._closing:
            try:
                self._listen()
            except StoreError as error:
                self._failed(error)
            except Exception as error:
                log.exception("what other servers do could not be heard")
                self._failed(StorageFailure(repr(error)))
        self._refuse_all(Closed())
        if self._listener is not None:
            self._listener.close()

    def _listen(self) -> None:
        """Answer who asks, then hear what there is."""
        notices: list[Notice] = []
        if self._listener is None:
            self._listener = self._store.listener()
        assert self._listener is not None
        self._answer_all(self._listener)
        if time.monotonic() >= self._probe_at:
            # A connection that is silent because it is dead is found out by asking something.
            self._listener.end_lease(PROBE)
            self._probe_at = time.monotonic() + PROBE_S
        if self._is_deaf:
            self._is_deaf = False
            log.warning("other servers are heard again")
            notices = [EVERYTHING]
        notices += self._listener.wait(LISTEN_S)
        if others := [notice for notice in notices if not notice.is_own]:
            self._on_loop(partial(self._tell, together(others)))

    def _answer_all(self, listener: Listener) -> None:
        while not self._requests.empty():
            request = self._requests.get_nowait()
            try:
                said = request.ask(listener)
            except StoreError as error:
                self._refuse(request, error)
                raise
            self._on_loop(partial(_settle, request, said))

    def _failed(self, error: StoreError) -> None:
        """The log has the first failure only."""
        if not self._is_deaf:
            self._is_deaf = True
            log.warning("other servers cannot be heard at present; trying again: %s", error)
        self._probe_at = 0.0
        self._refuse_all(error)
        time.sleep(AGAIN_S)

    def _refuse_all(self, error: PenstockError) -> None:
        with suppress(Empty):
            while True:
                self._refuse(self._requests.get_nowait(), error)

    def _refuse(self, request: _Request, error: PenstockError) -> None:
        self._on_loop(partial(_settle, request, error))

    def _on_loop(self, call: Callable[[], None]) -> None:
        # A loop that was closed while this thread was still waiting for a database needs nothing any more.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(call)

    # -- on the loop again

    def _tell(self, notice: Notice) -> None:
        if self._heard is not None and not self._closing:
            self._heard(notice)


def coordination(store: Store) -> OwnStore:
    """How a server shares a store: not at all if it is an embedded one."""
    try:
        listener = store.listener()
    except StoreError as error:
        log.warning("other servers cannot be heard at present; trying again: %s", error)
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
    )


def _ended(listener: Listener, name: str) -> bool:
    listener.end_lease(name)
    return True


def _settle(request: _Request, said: bool | PenstockError) -> None:
    answer = request.answer
    if answer is None or answer.done():
        return
    if isinstance(said, PenstockError):
        answer.set_exception(said)
    else:
        answer.set_result(said)
