"""What a principal may not see does not exist for it.

Two stores hold the same things that a principal may see, and one of them others besides. Every request gets the same
answer in both. Positions and times are not compared: they are global.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import cbor2
import pytest
import pytest_asyncio

from penstock import model
from penstock.engine import Engine
from penstock.errors import PenstockError
from penstock.model import (
    ANONYMOUS,
    ANY,
    Append,
    Event,
    IteratorKind,
    NewEvent,
    ProducerMark,
    Request,
    SubscriptionReceipt,
    Transact,
    Winner,
)
from penstock.model.requests import QueueReceipt, Reach, StagedUnit, SubscriptionStart
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.record import Record
from penstock.store.stages import make_unit
from tests.engine.caller import principal

CALLER: Final = principal("eve", "read,append,consume,admin:shop/order-*", "read,append:log:seen*")
MARK: Final = ProducerMark("etl", 7)
OF_POSITIONS: Final = frozenset(("position", "next", "head", "first", "last", "commit"))
OF_TIMES: Final = frozenset(
    ("ticks", "recorded", "created", "now", "expires", "last_ticks", "requested", "finished", "behind_ms")
)
OF_STORES: Final = frozenset(("store_id",))
GLOBAL: Final = OF_POSITIONS | OF_TIMES | OF_STORES
"""Attributes of replies that are not compared."""
VISIBLE_QUEUE, HIDDEN_QUEUE = "seen", "hidden"


def event(body: str) -> NewEvent:
    return NewEvent(UUID(int=len(body)).bytes, model.stamp_of(TICKS), "Tested", '{"subject":"ann"}', body.encode())


TICKS: Final = 638_505_760_891_234_567


def append(context: str, stream: str, body: str = "1", mark: ProducerMark | None = None) -> Append:
    return Append(context, stream, (event(body),), ANY, mark)


class World:
    """A store; with `full`, one that has what the caller may not see, too."""

    def __init__(self, engine: Engine, *, full: bool) -> None:
        self.engine = engine
        self.full = full

    async def do(self, *requests: Request) -> None:
        for request in requests:
            await self.engine.execute(ANONYMOUS, request)

    async def hidden(self, *requests: Request) -> None:
        if self.full:
            await self.do(*requests)

    async def build(self) -> None:
        await self.hidden(append("bank", "account-1"), append("shop", "secret", "22"))
        await self.do(
            append("shop", "order-1", "a"),
            append("shop", "order-2", "b"),
            model.RegisterSubscriptions("eve", (SubscriptionStart("shop", "order-", 0),)),
            model.SubscribeQueue("shop", VISIBLE_QUEUE, "eve", "order-", 0, 1, 3_600_000),
            model.CreateLog("seen"),
            model.AddMessages("seen", (cbor2.dumps(1),)),
            model.CreateIterator("seen", "seen", IteratorKind.MAP, "return msg", False),
        )
        await self.hidden(
            append("bank", "account-2", "333", MARK),
            append("bank", "account-2", "4444"),
            model.RegisterSubscriptions("bob", (SubscriptionStart("shop", "", 0), SubscriptionStart("bank", "", 0))),
            model.SubscribeQueue("bank", HIDDEN_QUEUE, "bob", "", 0, 1, 3_600_000),
            model.SubscribeQueue("shop", HIDDEN_QUEUE, "bob", "", 0, 1, 1),
            model.SetDeadLetterRule("shop", HIDDEN_QUEUE, 1),
            model.CreateLog("hidden"),
            model.AddMessages("hidden", (cbor2.dumps(2),)),
            model.CreateIterator("hidden", "hidden", IteratorKind.MAP, "return msg", True),
            model.CreateIterator("over", "hidden", IteratorKind.MAP, "return msg", True),
            model.CreateIterator("above", "over", IteratorKind.MAP, "return msg", False),
            model.CreateIterator("of-bank", "bank/account-1", IteratorKind.MAP, "return msg", True),
            model.EraseStream("bank", "account-2", 1),
            model.StageEvents("job", 0, "a", 0, (make_unit("shop", "order-1", [event("staged")]),)),
        )
        await self.do(append("shop", "order-1", "c"))
        await self.hidden(append("bank", "account-1", "55555"))

    async def answer(self, request: Request) -> Any:
        try:
            reply: object = await self.engine.execute(CALLER, request)
        except PenstockError as error:
            return type(error).__name__, vars(error), str(error)
        return comparable(reply)


def comparable(value: Any) -> Any:
    """A reply without what is global."""
    if isinstance(value, model.RecordPage):
        events = [event for data in value.records for event in Record.stored(bytes(data)).events()]
        return "RecordPage", comparable(events), value.end
    if is_dataclass(value) and not isinstance(value, type):
        shown = {one.name: comparable(getattr(value, one.name)) for one in fields(value) if one.name not in GLOBAL}
        return type(value).__name__, shown
    if isinstance(value, Event):
        return value.context, value.stream, value.sequence, value.type, value.headers, value.body
    if hasattr(value, "_fields"):
        return {name: comparable(part) for name, part in value._asdict().items() if name not in GLOBAL}
    return [comparable(one) for one in value] if isinstance(value, list | tuple) else value


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def worlds(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[list[World]]:
    path: Path = tmp_path_factory.mktemp("worlds")
    async with AsyncExitStack() as stack:
        made = []
        for full in (True, False):
            url = store_url(path / str(full))
            engine = await stack.enter_async_context(Engine(url, Settings(workers=1, reader_wait_ms_max=60_000)))
            made.append(World(engine, full=full))
        await asyncio.gather(*(world.build() for world in made))
        yield made


GONE: Final = 2
"""A subscription that the caller may not use, or that does not exist."""
UNIT: Final[StagedUnit] = make_unit("shop", "order-3", [event("new")])
HIDDEN_UNIT: Final[StagedUnit] = make_unit("bank", "account-1", [event("new")])
QUEUES: Final = [(context, HIDDEN_QUEUE) for context in (None, "shop", "bank", "nowhere")]
PLACES: Final = [("shop", "order-1"), ("shop", "order-9"), ("shop", "secret"), ("bank", "account-1"), ("x", "y")]
FILTERS: Final = [("shop", "order-"), ("shop", ""), ("shop", "*"), ("shop", "secret"), ("bank", ""), ("x", "")]
LOGS: Final = ["seen", "seen-not", "hidden", "absent"]
ITERATORS: Final = ["seen", "hidden", "over", "above", "of-bank", "absent"]
WINNERS: Final = (Winner(0, "a", 1),)

PROBES: Final[dict[type[Request], list[Request]]] = {
    model.ReadStream: [model.ReadStream(*place) for place in PLACES],
    model.ReadEvent: [model.ReadEvent(*place, 1) for place in PLACES],
    model.ReadAll: [
        *(model.ReadAll(1, *where) for where in FILTERS),
        *(model.ReadAll(), model.ReadAll(limit=1), model.ReadAll(types=["Tested"]), model.ReadAll(1 << 40)),
        model.ReadAll(1, "shop", "order-1", wait_ms=1),
    ],
    model.ReadRecords: [model.ReadRecords(), *(model.ReadRecords(1, *where) for where in FILTERS)],
    model.FindPosition: [
        model.FindPosition(*where, ticks) for where in FILTERS for ticks in (0, TICKS, model.TICKS_MAX)
    ],
    model.ListContexts: [model.ListContexts(), model.ListContexts("a", 1), model.ListContexts("bank", 1)],
    model.ListStreams: [
        *(model.ListStreams(*where) for where in FILTERS),
        *(model.ListStreams("shop", limit=1), model.ListStreams("shop", after="order-1", limit=1)),
        model.ListStreams("shop", after="order-2", limit=1),
    ],
    model.ListSubscriptions: [model.ListSubscriptions(), model.ListSubscriptions(0, 1), model.ListSubscriptions(1)],
    model.ListQueues: [model.ListQueues(), model.ListQueues(0, 1), model.ListQueues(1)],
    model.ListErasures: [model.ListErasures(), model.ListErasures(0, 1)],
    model.GetStats: [model.GetStats()],
    model.ListLogs: [model.ListLogs()],
    model.ListIterators: [model.ListIterators(None), *map(model.ListIterators, [*LOGS, *ITERATORS])],
    model.ShowLog: list(map(model.ShowLog, LOGS)),
    model.ShowIterator: list(map(model.ShowIterator, ITERATORS)),
    model.NextItems: [model.NextItems(name, number, 10) for name in ITERATORS for number in (0, -1)],
    model.BeginBuild: list(map(model.BeginBuild, ITERATORS)),
    model.ReadMessages: [model.ReadMessages(name, number, 0, 10) for name in ITERATORS for number in (1, 2, 9)],
    model.FindMessage: [model.FindMessage(name, number, 0) for name in ITERATORS for number in (2, 9)],
    model.StageOutput: [model.StageOutput(number, 0, "a", 0, ()) for number in (2, 3, 9)],
    model.InstallOutput: [model.InstallOutput(name, 2, 0, 0, 0, ()) for name in ITERATORS if name != "seen"],
    model.DropOutput: list(map(model.DropOutput, (2, 3, 9))),
    model.ListDeadLetters: [
        *(model.ListDeadLetters(*queue) for queue in QUEUES),
        *(model.ListDeadLetters(None, VISIBLE_QUEUE), model.ListDeadLetters("bank", VISIBLE_QUEUE)),
    ],
    model.FetchSubscription: [model.FetchSubscription(number, 10) for number in (1, GONE, 3, 9)],
    model.ProgressSubscription: [model.ProgressSubscription(number, TICKS) for number in (GONE, 3, 9)],
    model.DeleteSubscription: [model.DeleteSubscription(number) for number in (GONE, 3, 9)],
    model.SetSubscription: [
        *(model.SetSubscription(who, *where, 0) for who in ("eve", "bob") for where in (*FILTERS, (None, "secret"))),
    ],
    model.RegisterSubscriptions: [
        model.RegisterSubscriptions(who, (SubscriptionStart(*where, 0),))
        for who in ("eve", "bob")
        for where in FILTERS
        if where != ("shop", "order-") or who == "eve"
    ],
    model.AcknowledgeQueue: [
        model.AcknowledgeQueue(*queue, "bob", first, first, 1, ttl)
        for queue in QUEUES
        for first in (0, 1)
        for ttl in (-1, 1000)
    ],
    model.ReleaseQueue: [model.ReleaseQueue(*queue, "bob", 1, 1) for queue in QUEUES],
    model.ResetQueue: [model.ResetQueue(*queue, 0) for queue in QUEUES],
    model.SetDeadLetterRule: [model.SetDeadLetterRule(*queue, 3) for queue in QUEUES],
    model.PutBack: [model.PutBack(*queue, 1) for queue in QUEUES],
    model.SettleQueue: [model.SettleQueue(*queue, "bob", (model.Run(1, 1),)) for queue in QUEUES],
    model.ExtendQueue: [model.ExtendQueue(*queue, "bob", (model.Run(1, 1),), 1000) for queue in QUEUES],
    model.PauseQueue: [model.PauseQueue(*queue) for queue in QUEUES],
    model.RenameQueue: [model.RenameQueue(*queue, "new") for queue in QUEUES],
    model.DeleteQueue: [model.DeleteQueue(*queue) for queue in QUEUES],
    model.SetRetryPolicy: [model.SetRetryPolicy(*queue, "") for queue in QUEUES],
    model.SetQueueFilter: [model.SetQueueFilter(*queue, "") for queue in QUEUES],
    model.PreviewQueue: [
        model.PreviewQueue(*queue, prefix, None, ticks)
        for queue in QUEUES
        for prefix in (None, "")
        for ticks in (None, 0)
    ],
    model.ListLetters: [model.ListLetters(*queue) for queue in QUEUES],
    model.PutBackLetters: [model.PutBackLetters(*queue, (1,)) for queue in QUEUES],
    model.ReplayQueue: [model.ReplayQueue(*queue, 1, 1, mark) for queue in QUEUES for mark in (None, MARK)],
    model.SubscribeQueue: [
        model.SubscribeQueue(*(where[0], name, "eve", where[1], 0, 1, -1))
        for where in FILTERS
        if where != ("shop", "order-")
        for name in (VISIBLE_QUEUE, HIDDEN_QUEUE)
    ],
    model.EraseStream: [model.EraseStream(*place) for place in PLACES if place != ("shop", "order-1")],
    model.EraseSubject: [model.EraseSubject("bob", "shop"), model.EraseSubject("ann", "bank"), model.EraseSubject("x")],
    model.CreateLog: list(map(model.CreateLog, ("seen", "hidden", "absent"))),
    model.DropLog: [model.DropLog(log, created) for log in ("seen-not", "hidden", "absent") for created in (None, 1)],
    model.AddMessages: [model.AddMessages(log, (message,)) for log in LOGS for message in (b"\x01", b"\xff")],
    model.CreateIterator: [
        model.CreateIterator("new", log, IteratorKind.MAP, function, False)
        for log in ("hidden", "absent", "over", "bank/account-1", "shop/secret", "x/y", "$audit/access")
        for function in ("return msg", "no lua")
    ],
    model.DropIterator: [model.DropIterator(log, name) for log in ("hidden", "over") for name in ITERATORS[1:]],
    model.Append: [
        *(append(*place) for place in PLACES),
        append("shop", "order-1", "6", MARK),
        append("shop", "order-1", "6", ProducerMark("etl", 3)),
    ],
    model.Transact: [
        *(Transact((append(*place),)) for place in PLACES),
        Transact((append("shop", "order-1"), append("bank", "account-1"))),
        *(
            Transact((append("shop", "order-1"),), (QueueReceipt(context or "", name, "bob", 1, 1),))
            for context, name in QUEUES
        ),
        *(Transact((append("shop", "order-1"),), (), (SubscriptionReceipt(number, TICKS),)) for number in (GONE, 9)),
        Transact((append("shop", "order-1", "7"),), mark=ProducerMark("etl", 5)),
    ],
    model.StageEvents: [
        model.StageEvents("job", 0, "a", 0, units) for units in ((), (HIDDEN_UNIT,), (UNIT, HIDDEN_UNIT))
    ],
    model.PublishStages: [
        model.PublishStages("job", WINNERS, mark) for mark in (ProducerMark("other", 1), ProducerMark("etl", 1))
    ],
    model.DropStages: [model.DropStages("job"), model.DropStages("absent")],
}


def test_every_request_that_a_restricted_principal_may_send_is_probed() -> None:
    every = {kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Request)} - {Request}
    assert {kind for kind in every if kind.reach not in (Reach.STORE, Reach.NOTHING)} == PROBES.keys()


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("kind", PROBES, ids=lambda kind: kind.__name__)
async def test_answers_are_the_same_whether_what_is_hidden_exists_or_not(
    worlds: list[World], kind: type[Request]
) -> None:
    full, empty = worlds
    for request in PROBES[kind]:
        assert await full.answer(request) == await empty.answer(request), request


@pytest.mark.asyncio(loop_scope="module")
async def test_a_subscription_to_a_part_is_not_a_hidden_one_of_the_same_name(worlds: list[World]) -> None:
    for world in worlds:
        ask = partial(world.engine.execute, CALLER)
        start = SubscriptionStart("shop", "", 0, '{"prefixes":["order-"]}')
        made: Any = await ask(model.RegisterSubscriptions("bob", (start,)))
        again: Any = await ask(model.RegisterSubscriptions("bob", (start,)))
        assert again.ids == made.ids
        batch: Any = await ask(model.FetchSubscription(made.ids[0], 10))
        assert {one.stream[:6] for one in batch.events} == {"order-"}
        await ask(model.SetSubscription("bob", "shop", "", 0, start.selection))
        listed: Any = await ask(model.ListSubscriptions())
        found = next(one for one in listed.items if one.id == made.ids[0])
        assert (found.subscriber, found.context, found.filter, found.selection) == ("bob", "shop", "", start.selection)
