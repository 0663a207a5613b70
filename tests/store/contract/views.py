"""What a principal reads is what all could read without what it may not see, on every way to events and records."""

from collections.abc import Callable
from random import Random

import pytest

from penstock.engine import jobs
from penstock.model import AUDIT_CONTEXT, LOG_CONTEXT, Event, EventFilter, Grant, Principal, Right, View
from penstock.store import Store
from penstock.store.contract import AddLog, HideEvents, HideStream, ReadLimits
from penstock.store.record import Record
from tests.seeds import rng
from tests.store.contract.case import StoreCase
from tests.store.contract.logs import erase_all
from tests.store.contract.seals import close_block, seal_all
from tests.store.kit import commit, do, do_one, event, everything, find, passes

PLACES = [
    (context, f"{name}<{context}.{number}>")
    for context in ("shop", "stock", LOG_CONTEXT, AUDIT_CONTEXT)
    for number, name in enumerate(("a", "ab", "b", "Ω"))
]
"""Each name is in no other one, so that it can be searched for in the bytes of records."""
GRANTS = [
    *("*", "shop", "stock", "shop/a*", "shop/ab*", "shop/c*", "log:a*", "nowhere", "stock/ab<*"),
    *(f"{context}/{stream}" for context, stream in PLACES if context not in (AUDIT_CONTEXT, LOG_CONTEXT)),
]
LIMITS = [ReadLimits(), ReadLimits(events_max=7), ReadLimits(bytes_max=700), ReadLimits(scan_ms_max=0)]


def secret(context: str, stream: str) -> str:
    return f"the secret of {context} {stream}"


def write(store: Store, random: Random, commits: int) -> None:
    """Commits of a few events in streams that follow one another in any order."""
    for log in [stream for context, stream in PLACES if context == LOG_CONTEXT]:
        do_one(store, AddLog(log))
    operations = []
    for number in range(commits):
        context, stream = random.choice(PLACES)
        text = secret(context, stream)
        events = [
            event(number + random.randrange(9), f"type {text}", f'{{"h": "{text}"}}', f"body {text}".encode())
            for _ in range(random.choice([1, 1, 1, 4]))
        ]
        operations.append(commit(stream, events, context=context))
    do(store, *operations)


def as_appended(_store: Store, _random: Random) -> None:
    """Records as appends have left them."""


def sealed(store: Store, _random: Random) -> None:
    """Records of many runs."""
    close_block(store)
    assert seal_all(store) > 0


def hidden(store: Store, random: Random) -> None:
    """With erasures that are not finished."""
    sealed(store, random)
    do_one(store, HideStream(*PLACES[0]))
    do_one(store, HideEvents(((20, 35),), tuple(PLACES)))


def erased(store: Store, random: Random) -> None:
    """With tombstones."""
    hidden(store, random)
    erase_all(store)


def views(random: Random) -> list[View]:
    """What some principals may read."""
    made = [(), ("read:*",), ("audit",), ("read:*", "audit"), ("read:shop/a*", "read:stock/b<*")]
    made += [tuple(f"read:{place}" for place in random.sample(GRANTS, random.randint(1, 4))) for _ in range(12)]
    people = [Principal("ann", tuple(map(Grant.of, grants))) for grants in made]
    return [one.views.get(Right.READ, View(())) for one in people]


def filters(random: Random) -> list[EventFilter]:
    given = [
        EventFilter(),
        EventFilter("shop"),
        EventFilter(None, "a"),
        EventFilter("stock", "ab"),
        EventFilter("gone"),
    ]
    kind = f"type {secret(*random.choice(PLACES))}"
    return [*given, EventFilter(types=(kind,)), EventFilter("shop", random.choice(PLACES)[1])]


def records_of(store: Store, wanted: EventFilter, limits: ReadLimits, view: View) -> list[Record]:
    """The records that a principal gets, as the server hands them out."""
    found: list[Record] = []
    position = 1
    while True:
        page = jobs.read_records(store, position, wanted, limits, view)
        found += [Record(bytes(data), _position(bytes(data))) for data in page.records]
        if page.end:
            return found
        assert page.next > position, "a page that is not the last must lead on"
        position = page.next


def _position(data: bytes) -> int:
    return int.from_bytes(data[16:24], "little")


class ViewContract(StoreCase):
    @pytest.mark.parametrize("state", [as_appended, sealed, hidden, erased])
    def test_a_principal_reads_what_it_may_see_and_nothing_else(
        self, store: Store, state: Callable[[Store, Random], None]
    ) -> None:
        random = rng(f"views of {state.__name__}")
        write(store, random, 150)
        state(store, random)
        history = everything(store)
        for view in views(random):
            for wanted in filters(random):
                seen = [one for one in history if passes(wanted, one) and view.has_stream(one.context, one.stream)]
                mine, limits = wanted.seen_by(view), random.choice(LIMITS)
                assert everything(store, mine, limits) == seen, (view, wanted)
                ticks = random.randrange(160)
                first = next((one.position for one in seen if one.ticks >= ticks), None)
                assert find(store, mine, ticks, limits) == first, (view, wanted)
                if wanted.types is None:
                    self.check_records(store, history, view, mine, seen, limits)

    def check_records(
        self, store: Store, history: list[Event], view: View, mine: EventFilter, seen: list[Event], limits: ReadLimits
    ) -> None:
        records = records_of(store, mine, limits, view)
        assert [one for record in records for one in record.events(mine)] == seen
        assert all(view.has_stream(run.context, run.stream) for record in records for run in record.runs())
        given = b"".join(record.data for record in records)
        for context, stream in PLACES:
            if not view.has_stream(context, stream):
                assert stream.encode() not in given
                assert secret(context, stream).encode() not in given
        if not any((one.context, one.stream) == PLACES[0] for one in history):
            assert secret(*PLACES[0]).encode() not in given, "what was erased is in no record that is handed out"
        shown = {context for context, stream in PLACES if view.has_stream(context, stream)}
        assert not any(context.encode() in given for context in {"shop", "stock", AUDIT_CONTEXT} - shown)
