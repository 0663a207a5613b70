"""What a server does when it hears of another server's commit: whoever waits here for such a thing looks again."""

from penstock.engine.eraser import Eraser
from penstock.engine.iterators import Iterators
from penstock.engine.queues import Queues
from penstock.engine.sealer import Sealer
from penstock.engine.waiters import Waiters
from penstock.store.contract import Notice


class Hearing:
    """Passes notices on."""

    def __init__(self, waiters: Waiters, queues: Queues, iterators: Iterators, sealer: Sealer, eraser: Eraser) -> None:
        self._waiters = waiters
        self._queues = queues
        self._iterators = iterators
        self._sealer = sealer
        self._eraser = eraser

    def heard(self, notice: Notice) -> None:
        """Others have changed something."""
        if notice.streams is None or notice.queues is None:
            self._waiters.ring_all()
        else:
            self._waiters.committed(notice.streams)
            self._queues.heard(notice.queues)
        self._iterators.heard(notice.streams, has_changed=notice.has_changed_logs)
        self._sealer.committed(notice.head)
        if notice.has_changed_logs:
            # Whoever deleted something erases it; if that server dies, this one does.
            self._eraser.ring()
