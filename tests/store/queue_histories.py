"""Random histories of one queue, against what a queue promises.

Consumers take, settle event by event, extend, give back and lose their leases; events come at once or are due later;
the queue is paused, and its dead letters are put back or dropped. Whatever happens: an event is with one consumer at a
time, and comes again until it is acknowledged or a dead letter, and not after. Of an ordered queue, the events of a key
come in order, and to one consumer at a time. Meanwhile the queue gets other names and filters, is moved, deleted and
made anew, and delivers again what it has delivered.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import astuple, dataclass, field, replace
from random import Random
from typing import Final

from penstock import model
from penstock.engine.queue_jobs import bury_exhausted, plan_settlement, propose, reviving
from penstock.engine.queues import find_events, runs_of
from penstock.engine.read_ahead import Ready, prepare
from penstock.errors import AllocationLost, InvalidRequest, PenstockError
from penstock.model import Event, Rest, Run, Selection
from penstock.store import Store
from penstock.store.contract import (
    STALE,
    Acknowledge,
    Allocate,
    AllocateParts,
    ChangeQueue,
    DeclareQueue,
    DeleteQueue,
    Extend,
    Held,
    MoveQueue,
    Operation,
    QueueState,
    ReadLimits,
    Reoffer,
    Result,
    Revive,
    Settle,
)
from tests.store.kit import TICKS_PER_MS, Clock, append, attempt, do_one, event

LIMITS: Final = ReadLimits()
STREAMS: Final = ("a-1", "a-2", "b-1", "c", "-d")
CONSUMERS: Final = ("ann", "bob", "cid", "original")
"""The last one asks as the original's consumers do: for one allocation at a time."""
TTL_MS: Final = 1000
STEPS: Final = 60
ALLOCATE_ATTEMPTS: Final = 50
FILTERS: Final = (
    ("", Selection()),
    ("a-", Selection()),
    ("", Selection(("U",))),
    ("", Selection(None, ("a-1", "b"))),
    ("a", Selection(("T",), ("a-2", "b-"))),
)


@dataclass(eq=False)
class Batch:
    """What a consumer believes to hold."""

    who: str
    runs: tuple[Run, ...]
    events: list[Event]
    expires: int


@dataclass
class Known:
    """What the test knows of an event."""

    event: Event
    key: str
    due: int
    holder: Batch | None = None
    state: str = "open"
    """open, done, dead or dropped; or passed over, because of the filter or a move."""
    comes_back: bool = False
    """It was a dead letter, or is delivered again: others of its key may have overtaken it."""


@dataclass
class History:
    store: Store
    clock: Clock
    random: Random
    ordered: str = ""
    dead_after: int | None = None
    context: str = "shop"
    known: dict[int, Known] = field(default_factory=dict)
    batches: dict[str, Batch] = field(default_factory=dict)
    steps: list[str] = field(default_factory=list)
    """What was done, for the message of a failure."""
    paused: bool = False
    name: str = "work"
    ready: deque[Ready] = field(default_factory=deque)
    """Batches that were prepared ahead. Some changes drop them; otherwise the store notices that they are old."""

    def __post_init__(self) -> None:
        self.declare(1)

    def declare(self, position: int) -> None:
        declare = DeclareQueue(self.context, self.name, "", position, self.ordered, dead_after=self.dead_after)
        queue = do_one(self.store, declare)
        assert isinstance(queue, QueueState)
        self.queue = queue

    def run(self, steps: int) -> None:
        actions = (
            *(self.append,) * 3,
            *(self.take,) * 6,
            *(self.settle,) * 4,
            *(self.wait, self.extend, self.pause, self.letters, self.prepare),
            self.random.choice((self.refilter, self.move, self.rename, self.make_anew, self.replay, self.replay)),
        )
        for _ in range(steps):
            self.random.choice(actions)()
        self.drain()

    # -- steps

    def append(self) -> None:
        stream = self.random.choice(STREAMS)
        dues: list[int] = []
        events = []
        for _ in range(self.random.randint(1, 4)):
            due = self.clock.ticks + self.random.choice((0, 0, 0, -500, 700, 2500)) * TICKS_PER_MS
            is_due = due != self.clock.ticks
            type = self.random.choice("TTU")
            made = model.event(type, b"body", due=model.times.datetime_of(due)) if is_due else event(type=type)
            events.append(made)
            dues.append(due // 10 * 10 if is_due else 0)
        appended = append(self.store, stream, events, context=self.context)
        page = self.store.read_all(appended.position, model.EventFilter(), LIMITS, None)
        for one, due in zip(page.events, dues, strict=True):
            self.known[one.position] = Known(one, self.queue.key_of(one.stream), due, state=self._state_of(one))
        self.steps.append(f"append {stream} {[one.position for one in page.events]} due {dues}")

    def _state_of(self, one: Event) -> str:
        """Of an event that the queue has not come to."""
        wanted = self.queue.wanted
        is_wanted = wanted.wants_stream(self.context, one.stream) and (wanted.types is None or one.type in wanted.types)
        return "open" if is_wanted else "passed over"

    def wait(self) -> None:
        ms = self.random.choice((1, 100, 600, TTL_MS, 3000))
        self.clock.advance(ms)
        self.steps.append(f"wait {ms}")

    def prepare(self) -> None:
        count = self.random.choice((1, 2, 5))
        found = prepare(self.store, self.name, self.context, 0, count, LIMITS, None)
        self.ready = deque(found.batches)
        self.steps.append(f"prepare {len(self.ready)} of {count} from {found.queue.position}")

    def _take_ready(self, who: str) -> tuple[tuple[Held, ...], list[Event]]:
        """The next batch that was prepared, as the engine hands it out."""
        if who == CONSUMERS[-1] or not self.ready or self.random.random() < 0.2:
            return (), []
        ready = self.ready.popleft()
        given = do_one(self.store, replace(ready.operation, subscriber=who, ttl_ms=TTL_MS))
        if given == STALE:
            self.ready.clear()
            return (), []
        return tuple(_held(given)), ready.events

    def take(self, who: str | None = None, count: int | None = None) -> bool:
        who = who or self.random.choice(CONSUMERS)
        several = who != CONSUMERS[-1]
        count = count or self.random.choice((1, 2, 5, 100))
        request = model.SubscribeQueue(self.context, self.name, who, "", 0, count, TTL_MS, several=several)
        given, events = self._take_ready(who)
        what = "take what was prepared" if given else "take"
        if not given:
            given, events = allocated(self.store, request, self.bury)
        self.steps.append(f"{what} {who} {count}: {[(*one[:3], one.deliveries) for one in given]}")
        if not given:
            assert not self._holds(who), f"{who} holds something and got nothing"
            return False
        assert len(given) == 1 or several
        assert sorted(one.position for one in events) == [one.position for one in events]
        self._delivered(who, given, events)
        return True

    def _delivered(self, who: str, given: tuple[Held, ...], events: list[Event]) -> None:
        now = self.clock.ticks
        before = self.batches.get(who)
        is_again = before is not None and before.expires > now and self._holds(who)
        if is_again:
            assert before is not None
            kept = [one for one in before.events if self.known[one.position].holder is before]
            assert [one.position for one in events] == [one.position for one in kept], "another batch while one is held"
            return
        keys = {self.known[one.position].key for one in events}
        positions = {one.position for one in events}
        for position, known in self.known.items():
            if known.holder is not None and known.holder.expires > now:
                holder = known.holder.who
                assert position not in positions, f"{position} is with {holder}"
                assert not known.key or known.key not in keys, f"key {known.key} is with {holder}"
        tried = {position: run.deliveries for run in given for position in range(run.first, run.last + 1)}
        batch = Batch(who, tuple(Run(*one.run) for one in given), events, now + TTL_MS * TICKS_PER_MS)
        for one in events:
            known = self.known[one.position]
            assert known.state == "open", f"{one.position} is {known.state}"
            assert known.due <= now, f"{one.position} is due in {known.due - now} ticks"
            if known.key:
                for other in self.known.values():
                    is_before = other.key == known.key and other.event.position < one.position
                    is_open = other.state == "open" and not other.comes_back
                    assert not (is_before and is_open) or other.event.position in positions, (
                        f"{one.position} overtakes {other.event.position}"
                    )
            limit = self.dead_after
            assert limit is None or tried[one.position] <= limit or len(given) > 1, f"{one.position} came too often"
            known.holder = batch
        self.batches[who] = batch

    def _holds(self, who: str) -> bool:
        batch = self.batches.get(who)
        return (
            batch is not None
            and batch.expires > self.clock.ticks
            and any(self.known[one.position].holder is batch for one in batch.events)
        )

    def settle(self) -> None:
        if not self.batches:
            return
        who = self.random.choice(list(self.batches))
        batch = self.batches[who]
        retries, buries = [], []
        if who != CONSUMERS[-1] and self.random.random() < 0.4:
            for one in batch.events:
                chance = self.random.random()
                if chance < 0.3:
                    delay = self.random.choice((None, 0, 200, 5000))
                    retries.append(model.Retried(one.position, delay, "no"))
                elif chance < 0.4:
                    buries.append(model.Buried(one.position, "never"))
        rest = self.random.choice((Rest.DONE, Rest.DONE, Rest.DONE, Rest.RETRY, Rest.BACK))
        delay_ms = self.random.choice((None, 0, 300))
        request = model.SettleQueue(
            *(self.context, self.name, who, batch.runs, rest, delay_ms, "", tuple(retries), tuple(buries))
        )
        is_lost = any(self.known[one.position].holder is not batch for one in batch.events)
        self.steps.append(f"settle {who} {batch.runs} {rest} {retries} {buries}")
        try:
            _, operation = plan_settlement(self.store, request, None)
            outcome = attempt(self.store, operation)
        except AllocationLost as error:
            outcome = error
        del self.batches[who]
        if isinstance(outcome, PenstockError):
            assert isinstance(outcome, AllocationLost)
            assert is_lost or any(self.known[one.position].state != "open" for one in batch.events), "it was not lost"
            return
        assert not is_lost, "settled what another consumer holds"
        letters = {one.position for one in self.store.letters(self.queue.id, 0, 1000)}
        again, failed = {one.position for one in retries}, set[str]()
        buried = {one.position for one in buries}
        for one in batch.events:
            known = self.known[one.position]
            known.holder = None
            assert known.state == "open"
            if one.position in buried:
                assert one.position in letters
                self._died(known)
            elif one.position in letters:
                assert self.dead_after is not None
                self._died(known)
            elif one.position in again or rest != Rest.DONE or known.key in failed:
                failed |= {known.key} - {""}
            else:
                known.state = "done"

    def extend(self) -> None:
        if not self.batches:
            return
        who = self.random.choice(list(self.batches))
        batch = self.batches[who]
        outcome = attempt(self.store, Extend(self.queue.id, who, batch.runs, TTL_MS))
        is_lost = any(self.known[one.position].holder is not batch for one in batch.events)
        self.steps.append(f"extend {who} {batch.runs} {is_lost}")
        if isinstance(outcome, PenstockError):
            assert isinstance(outcome, AllocationLost)
            del self.batches[who]
        else:
            assert not is_lost
            batch.expires = self.clock.ticks + TTL_MS * TICKS_PER_MS

    def pause(self) -> None:
        self.paused = self.random.random() < 0.3
        do_one(self.store, ChangeQueue(self.queue.id, paused=int(self.paused)))
        self.steps.append(f"paused {self.paused}")
        if self.paused and not self._holds("ann"):
            assert not self.take("ann")

    def bury(self) -> None:
        while (operation := bury_exhausted(self.store, self.queue, LIMITS)) is not None:
            do_one(self.store, operation)
            for letter in operation.dead:
                known = self.known[letter.position]
                assert known.holder is None or known.holder.expires <= self.clock.ticks
                self._died(known)

    @staticmethod
    def _died(known: Known) -> None:
        assert known.state == "open"
        known.state, known.comes_back, known.holder = "dead", True, None

    def letters(self) -> None:
        self.bury()
        dead = [one.position for one in self.store.letters(self.queue.id, 0, 1000)]
        assert set(dead) == {position for position, one in self.known.items() if one.state == "dead"}
        chosen = tuple(position for position in dead if self.random.random() < 0.5)
        if not chosen:
            return
        drop = self.random.random() < 0.3
        request = model.PutBackLetters(self.context, self.name, chosen, drop)
        _, positions, parts = reviving(self.store, request, None)
        assert do_one(self.store, Revive(self.queue.id, positions, () if drop else parts)) == len(chosen)
        self.steps.append(f"{'drop' if drop else 'put back'} {chosen}")
        for position in chosen:
            known = self.known[position]
            known.state = "dropped" if drop else "open"

    # -- another life of the queue

    def _marker(self) -> int:
        (found,) = self.store.find_queues(self.name, self.context)
        self.queue = found
        return found.position

    def refilter(self) -> None:
        """Refused while there are allocations, or letters of others; then other events come, from the marker on."""
        marker = self._marker()
        prefix, selection = self.random.choice(FILTERS)
        outcome = attempt(self.store, ChangeQueue(self.queue.id, filter=prefix, selection=selection.text))
        self.steps.append(f"filter {prefix} {selection} from {marker}: {outcome}")
        wanted = selection.events(self.context, prefix)
        letters = self.store.letters(self.queue.id, 0, len(self.known))
        are_wanted = all(wanted.wants_stream(self.context, one.stream) for one in letters)
        is_refused = bool(self.store.outstanding(self.queue.id)) or not are_wanted
        assert isinstance(outcome, InvalidRequest) == is_refused
        if not isinstance(outcome, InvalidRequest):
            self._marker()
            self._begins_at(marker, passes_over=False)

    def move(self) -> None:
        position = self.random.randint(1, self.store.head() + 1)
        do_one(self.store, MoveQueue(self.queue.id, position))
        self.steps.append(f"move to {position}")
        self._begins_at(position)

    def rename(self) -> None:
        self.name = self.random.choice(("work", "toil", "labour"))
        do_one(self.store, ChangeQueue(self.queue.id, name=self.name))
        self._marker()
        self.steps.append(f"rename to {self.name}")

    def make_anew(self) -> None:
        """Delete it, with what consumers hold."""
        assert do_one(self.store, DeleteQueue(self.queue.id)) is True
        assert do_one(self.store, DeleteQueue(self.queue.id)) is False
        assert self.store.find_queues(self.name, self.context) == []
        assert self.store.letters(self.queue.id, 0, 10) == []
        position = self.random.randint(1, self.store.head() + 1)
        self.declare(position)
        self.paused = False
        self.steps.append(f"deleted and made anew at {position}")
        self._begins_at(position)

    def _begins_at(self, position: int, *, passes_over: bool = True) -> None:
        """What lies before a position is over if the queue was moved; from there on all begins again."""
        self.ready.clear()
        for one in self.known.values():
            if one.event.position >= position:
                one.state, one.comes_back, one.holder = self._state_of(one.event), False, None
            elif passes_over:
                one.state, one.comes_back, one.holder = "passed over", False, None

    def replay(self) -> None:
        """What is open comes anyway, dead letters stay; the rest of a range comes again."""
        marker = self._marker()
        if marker == 1:
            return
        first = self.random.randint(1, marker - 1)
        last = self.random.randint(first, marker - 1)
        request = model.ReplayQueue(self.context, self.name, first, last)
        shared = self.store.shared_allocations(self.queue.id, first, last, 1000)
        found = find_events(self.store, request, first, 1000, LIMITS, None)
        runs = () if self.ordered else runs_of(found.events, shared, found.left_out, 1 << 20)
        do_one(self.store, Reoffer(self.queue.id, runs, tuple(found.parts) if self.ordered else ()))
        self.steps.append(f"replay {first} to {last}")
        for position, known in self.known.items():
            # An allocation of a queue that is not ordered has all between its ends.
            is_shared = not self.ordered and any(one.first <= position <= one.last for one in shared)
            is_wanted = self._state_of(known.event) == "open" and known.due <= self.clock.ticks
            is_over = known.state in ("done", "dropped", "passed over")
            if first <= position <= last and is_wanted and is_over and not is_shared:
                known.state, known.comes_back = "open", True

    # -- the end

    def drain(self) -> None:
        """Whatever was open comes once more, and then nothing."""
        do_one(self.store, ChangeQueue(self.queue.id, paused=0))
        self.clock.advance(3_600_000)
        self.steps.append("drain")
        while self.take("zoe", 3):
            batch = self.batches.pop("zoe")
            operation: Operation = Settle(self.queue.id, "zoe", batch.runs, strict=True)
            do_one(self.store, operation)
            for one in batch.events:
                known = self.known[one.position]
                known.state, known.holder = "done", None
        self.bury()
        lost = [position for position, one in self.known.items() if one.state == "open"]
        assert not lost, f"{lost} were lost"
        assert self.store.allocations(self.queue.id, 0, 10) == []
        assert self.store.outstanding(self.queue.id) == 0
        assert do_one(self.store, Acknowledge(self.queue.id, "zoe", 1, None)) is False


def allocated(
    store: Store, request: model.SubscribeQueue, bury: Callable[[], None]
) -> tuple[tuple[Held, ...], list[Event]]:
    """As the engine does: propose and carry out until a proposal holds."""
    for _ in range(ALLOCATE_ATTEMPTS):
        found = propose(store, request, None, request.count, LIMITS, None, None)
        if found.is_exhausted:
            bury()
        elif found.operation is None:
            if found.end:
                return (), []
        else:
            given = do_one(store, found.operation)
            if found.empty:
                do_one(store, Settle(found.queue.id, request.subscriber, found.empty))
            if given == STALE:
                continue
            assert isinstance(found.operation, AllocateParts | Allocate)
            if given:
                return tuple(one for one in _held(given) if one.run not in found.empty), found.events
            if found.end:
                return (), []
    raise AssertionError("no proposal came to an end")


def _held(given: Result) -> Iterator[Held]:
    if isinstance(given, model.Allocation):
        yield Held(*astuple(given))
    else:
        assert isinstance(given, tuple)
        for one in given:
            assert isinstance(one, Held)
            yield one


def play(store: Store, clock: Clock, seed: int, steps: int, context: str = "shop") -> None:
    """One history; a failure says what was done."""
    random = Random(seed)
    ordered = random.choice(("", "stream", "stream", "prefix:-"))
    history = History(store, clock, random, ordered, random.choice((None, 1, 2, 3)), context)
    try:
        history.run(steps)
    except Exception as error:
        known = [f"{position}: {one.state} {one.holder and one.holder.who}" for position, one in history.known.items()]
        error.add_note(
            "\n".join([f"seed {seed}, ordered {ordered!r}, dead after {history.dead_after}", *history.steps])
        )
        error.add_note(", ".join(known))
        raise
