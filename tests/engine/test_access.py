"""Access in the engine: changes, revocations, limits, marks, long polls and the audit."""

import asyncio
import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from penstock import model
from penstock.engine import Engine, access
from penstock.engine.access import NOBODY, Login, Usage, authorize
from penstock.errors import (
    InvalidRequest,
    IteratorNotFound,
    MarkSuperseded,
    NotAllowed,
    NotAuthenticated,
    OverLimit,
    PenstockError,
    ReaderBusy,
    StorageFailure,
)
from penstock.model import (
    ANONYMOUS,
    ANY,
    AUDIT_CONTEXT,
    Append,
    Appended,
    EventPage,
    Limits,
    Principal,
    ProducerMark,
    ReadAll,
    ReadStream,
    Request,
    Right,
    Transact,
    new_event,
    now_ticks,
)
from penstock.model.requests import StagedUnit, SubscriptionStart
from penstock.model.times import TICKS_PER_SECOND
from penstock.settings import Settings
from penstock.store import contract, store_url
from penstock.store.stages import make_unit
from tests.engine.caller import Caller, principal
from tests.engine.logs import MAP, Remits, until

ADMIN = principal("root", "all")


def append(context: str = "shop", stream: str = "order-1", mark: ProducerMark | None = None) -> Append:
    return Append(context, stream, (new_event("Tested", b"{}"),), ANY, mark)


async def closed(engine: Engine, *grants: str, name: str = "eve", limits: Limits = model.NO_LIMITS) -> Principal:
    """Close the engine's store, and make a principal."""
    if not engine.access.is_closed:
        await engine.execute(ANONYMOUS, model.PutPrincipal("root", ("all",)))
    await engine.execute(ADMIN, model.PutPrincipal(name, grants, limits))
    found = engine.access.principal(name)
    assert found is not None
    return found


async def token_of(engine: Engine, name: str, **more: Any) -> str:
    issued = await engine.execute(ADMIN, model.IssueToken(name, **more))
    assert isinstance(issued, model.IssuedToken)
    return issued.token


async def audited(engine: Engine) -> list[tuple[str, dict[str, Any]]]:
    page = await engine.execute(ADMIN, ReadAll(1, AUDIT_CONTEXT))
    assert isinstance(page, EventPage)
    return [(event.type, json.loads(event.body)) for event in page.events]


def ignore(_login: Login) -> None:
    """A login that ends."""


# --- changes ----------------------------------------------------------------------------------------------------


async def test_a_change_of_rights_ends_those_who_had_others_and_no_one_else(engine: Engine) -> None:
    await closed(engine, "read:shop")
    await closed(engine, "read:shop", name="bob")
    ended: list[str] = []
    eve = engine.access.by_token(await token_of(engine, "eve"), lambda _login: ended.append("eve"))
    engine.access.by_token(await token_of(engine, "bob"), lambda _login: ended.append("bob"))
    await engine.execute(ADMIN, model.PutPrincipal("eve", ("read:bank",)))
    assert (ended, eve.principal) == (["eve"], NOBODY)
    assert engine.access.usage["eve"].connections == 0


async def test_a_credential_that_expires_ends_its_login_by_itself(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CHECK_S", 0.05)
    await closed(engine, "read:shop")
    token = await token_of(engine, "eve", expires=now_ticks() + TICKS_PER_SECOND // 2)
    ended = asyncio.Event()
    engine.access.by_token(token, lambda _login: ended.set())
    await asyncio.wait_for(ended.wait(), 10)
    with pytest.raises(NotAuthenticated, match="has expired"):
        engine.access.by_token(token, ignore)


async def test_the_first_principal_ends_all_that_came_in_before(engine: Engine) -> None:
    ended: asyncio.Queue[Login] = asyncio.Queue()
    login = engine.access.arrive(None, ended.put_nowait)
    assert login.principal is ANONYMOUS
    await closed(engine)
    assert engine.access.arrive(None, ended.put_nowait).principal is NOBODY
    # One of them made it, and has a moment for its answer.
    assert await asyncio.wait_for(ended.get(), 30) is login


async def test_a_change_holds_however_busy_the_workers_are(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    eve = await closed(engine, "read:shop")
    token = await token_of(engine, "eve")
    ended: list[Login] = []
    login = engine.access.by_token(token, ended.append)

    def busy(*_: Any) -> Any:
        raise ReaderBusy(1)

    for way in ("run", "run_first"):
        monkeypatch.setattr(engine.pool, way, busy)
    await engine.execute(ADMIN, model.DropCredential(token.partition(".")[0]))
    assert ended == [login]
    await engine.execute(ADMIN, model.DropPrincipal(eve.name))
    assert engine.access.principal("eve") is None
    await engine._context.apply(contract.StorePrincipal("ann", (), Limits()))
    await engine.access.reload()
    assert engine.access.principal("ann") is not None


async def test_a_change_that_fails_after_it_is_on_disk_holds_too(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access, "CHECK_S", 0.05)
    eve = await closed(engine, "read:shop")
    is_ended = asyncio.Event()
    engine.access.by_token(await token_of(engine, "eve"), lambda _login: is_ended.set())
    write = engine._context.write

    async def failing(transaction: contract.Transaction, size: int = 0) -> Any:
        await write(transaction, size)
        raise StorageFailure("the disk said nothing")

    monkeypatch.setattr(engine._context, "write", failing)
    with pytest.raises(StorageFailure):
        await engine.execute(ADMIN, model.DropPrincipal(eve.name))
    await asyncio.wait_for(is_ended.wait(), 30)


async def test_what_was_staged_with_other_grants_is_not_published(engine: Engine) -> None:
    unit: StagedUnit = make_unit("bank", "account-1", [new_event("Tested", b"{}")])
    wide, narrow = principal("eve", "append:shop", "append:bank"), principal("eve", "append:shop")
    await engine.execute(wide, model.StageEvents("job", 0, "a", 0, (unit,)))
    publish = model.PublishStages("job", (model.Winner(0, "a", 1),), ProducerMark("job", 1))
    with pytest.raises(Exception, match="job"):
        await engine.execute(narrow, publish)
    published = await engine.execute(wide, publish)
    assert isinstance(published, model.Published)
    assert published.events == 1


# --- marks ------------------------------------------------------------------------------------------------------


async def test_a_mark_of_one_principal_tells_another_nothing_and_does_not_stop_it(engine: Engine) -> None:
    eve, bob = principal("eve", "append:shop"), principal("bob", "append:bank")
    first = await engine.execute(bob, append("bank", "account", ProducerMark("etl", 7)))
    other = await engine.execute(eve, append(mark=ProducerMark("etl", 7)))
    assert isinstance(first, Appended)
    assert isinstance(other, Appended)
    assert (other.repeated, other.position) == (False, first.position + 1)
    await engine.execute(eve, append(mark=ProducerMark("etl", 1 << 40)))
    again = await engine.execute(bob, append("bank", "account", ProducerMark("etl", 7)))
    assert isinstance(again, Appended)
    assert (again.repeated, again.position) == (True, first.position)
    transacted = await engine.execute(bob, Transact((append("bank", "account"),), mark=ProducerMark("etl", 8)))
    assert isinstance(transacted, model.Transacted)


async def test_a_superseded_mark_is_told_by_the_name_that_the_client_gave(engine: Engine) -> None:
    eve = principal("eve", "append:shop")
    await engine.execute(eve, append(mark=ProducerMark("etl", 7)))
    with pytest.raises(MarkSuperseded) as caught:
        await engine.execute(eve, append(mark=ProducerMark("etl", 6)))
    assert caught.value.producer == "etl"


async def test_who_may_append_everywhere_goes_on_with_the_marks_of_an_open_store(engine: Engine) -> None:
    await engine.execute(ANONYMOUS, append(mark=ProducerMark("etl", 7)))
    again = await engine.execute(principal("etl", "append"), append(mark=ProducerMark("etl", 7)))
    assert isinstance(again, Appended)
    assert again.repeated


# --- long polls, iterators --------------------------------------------------------------------------------------


async def test_a_long_poll_goes_on_over_hidden_events_and_wakes_for_one_it_may_see(
    engine: Engine, caller: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each look at the store comes no further than a few events.
    monkeypatch.setattr(engine._context, "limits", engine._context.limits._replace(events_max=2, scan_ms_max=0))
    eve = principal("eve", "read:shop/order-*", "read:shop/other")
    for _ in range(20):
        await engine.execute(ANONYMOUS, append("bank", "account"))
    start = 1
    for kind in (ReadAll, model.ReadRecords):
        request: Any = kind(start, wait_ms=30_000)
        poll = asyncio.ensure_future(engine.execute(eve, request))
        await until(lambda: bool(engine._wakeups._count))
        for _ in range(20):
            await engine.execute(ANONYMOUS, append("bank", "account"))
        await asyncio.sleep(0.1)
        assert not poll.done()
        await engine.execute(ANONYMOUS, append("shop", "order-1"))
        page: Any = await asyncio.wait_for(poll, 20)
        assert page.next > start + 20
        start = page.next


async def test_a_page_is_of_an_iterator_that_one_may_read_even_if_it_was_replaced_meanwhile(
    engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    await remits.create("seen", 1)
    await remits.create("hidden", 2)
    await remits.iterator("it", MAP, "return msg", "seen")
    requests, plain = engine._iterators, engine._iterators._plain

    async def replaced(iterator: Any, wanted: Any, count: int) -> Any:
        if iterator.log == "seen":
            await engine.execute(ANONYMOUS, model.DropIterator("seen", "it"))
            await remits.iterator("it", MAP, "return msg", "hidden")
        return await plain(iterator, wanted, count)

    monkeypatch.setattr(requests, "_plain", replaced)
    with pytest.raises(IteratorNotFound):
        await engine.execute(principal("eve", "read:log:seen"), model.NextItems("it", 0, 10))


async def test_the_number_of_a_hidden_iterator_does_not_tell_its_name(engine: Engine, remits: Remits) -> None:
    await remits.create("hidden")
    await remits.iterator("secret-name", MAP, "return msg", "hidden", indexed=True)
    eve = principal("eve", "append:log:seen")
    for request in (model.DropOutput(1), model.StageOutput(1, 0, "a", 0, ())):
        with pytest.raises(IteratorNotFound, match="of number 1") as caught:
            await engine.execute(eve, request)
        assert "secret" not in str(caught.value)


async def test_a_wrong_function_does_not_tell_whether_its_source_exists(engine: Engine, remits: Remits) -> None:
    await remits.create("hidden")
    await remits.iterator("over", MAP, "return msg", "hidden", indexed=True)
    eve = principal("eve", "append:log:a*", "append:log:o*")
    answers = []
    for source in ("over", "other"):
        for function in ("return msg", "no lua"):
            with pytest.raises(Exception, match=r".") as caught:
                await engine.execute(eve, model.CreateIterator("mine", source, MAP, function, False))
            answers.append((type(caught.value), str(caught.value).replace(source, "…")))
    assert answers[:2] == answers[2:]


# --- the audit --------------------------------------------------------------------------------------------------


async def test_nobody_writes_or_erases_the_audit_and_only_its_right_reads_it(engine: Engine, remits: Remits) -> None:
    await closed(engine)
    everything = principal("eve", "read,append,consume,admin")
    unit = make_unit(AUDIT_CONTEXT, "access", [new_event("Forged", b"{}")])
    writes: list[Request] = [
        append(AUDIT_CONTEXT, "access"),
        Transact((append(AUDIT_CONTEXT, "access"),)),
        model.StageEvents("job", 0, "a", 0, (unit,)),
        model.EraseStream(AUDIT_CONTEXT, "access"),
        model.EraseSubject("ann", AUDIT_CONTEXT),
    ]
    for request in writes:
        for who in (everything, ADMIN):
            with pytest.raises(InvalidRequest, match=r"\$audit is that of the audit"):
                await engine.execute(who, request)
    start = SubscriptionStart(AUDIT_CONTEXT, "", 0)
    reads: list[Request] = [
        ReadStream(AUDIT_CONTEXT, "access"),
        ReadAll(1, AUDIT_CONTEXT),
        model.ReadRecords(1, AUDIT_CONTEXT),
        model.ListStreams(AUDIT_CONTEXT),
        model.RegisterSubscriptions("eve", (start,)),
        model.SubscribeQueue(AUDIT_CONTEXT, "q", "eve", "", 0, 1, 1000),
    ]
    for request in reads:
        with pytest.raises(NotAllowed):
            await engine.execute(everything, request)
    with pytest.raises(Exception, match="no log"):
        await engine.execute(everything, model.CreateIterator("it", f"{AUDIT_CONTEXT}/access", MAP, "return 1", False))
    for seen in (ReadAll(), model.ReadRecords(), model.ListContexts()):
        page: Any = await engine.execute(everything, seen)
        assert not any(getattr(page, name, ()) for name in ("events", "records", "items"))
    assert [what for what, _ in await audited(engine)] == ["principal-changed", "principal-changed"]


async def test_changes_are_recorded_with_who_made_them_and_erased_names_as_digests(
    engine: Engine, remits: Remits
) -> None:
    await closed(engine, "read:shop")
    await engine.execute(ADMIN, append())
    await remits.create("log")
    await remits.iterator("it")
    await engine.execute(ADMIN, model.SubscribeQueue("shop", "q", "ann", "", 0, 1, 1000))
    await engine.execute(ADMIN, model.RegisterSubscriptions("ann", (SubscriptionStart("shop", "", 0),)))
    taken: Any = await engine.execute(ADMIN, model.AcknowledgeQueue("shop", "q", "ann", 0, 0, 1, 60_000))
    letter, last = taken.allocation.first, taken.allocation.last
    buried = (model.Buried(letter, "wrong"),)
    await engine.execute(ADMIN, model.SettleQueue("shop", "q", "ann", (model.Run(letter, last),), buries=buried))
    before = len(await audited(engine))
    for request in (
        model.PutBackLetters("shop", "q", (letter,), drop=True),
        model.PutBackLetters("shop", "q", (letter,), drop=True),
        model.ReplayQueue("shop", "q", letter, letter, model.ProducerMark("replays", 1)),
        model.ReplayQueue("shop", "q", letter, letter, model.ProducerMark("replays", 1)),
        model.ResetQueue("shop", "q", 0),
        model.PauseQueue("shop", "q"),
        model.PauseQueue("shop", "q", False),
        model.SetRetryPolicy("shop", "q", '{"delay":5}'),
        model.SetDeadLetterRule("shop", "q", 3),
        model.SetQueueFilter("shop", "q", "order-"),
        model.RenameQueue("shop", "q", "r"),
        model.DeleteQueue("shop", "r"),
        model.SetSubscription("ann", "shop", "", 0),
        model.DeleteSubscription(1),
        model.DropIterator("log", "it"),
        model.DropLog("log"),
        model.EraseStream("shop", "order-1"),
        model.DropPrincipal("eve"),
    ):
        await engine.execute(ADMIN, request)
    entries = (await audited(engine))[before:]
    assert [what for what, _ in entries] == [
        *(
            "queue-letters-dropped",
            "queue-replay",
            "queue-reset",
            "queue-pause",
            "queue-resume",
            "queue-retry",
            "queue-dead-letters",
        ),
        *("queue-filter", "queue-rename", "queue-delete"),
        *("subscription-reset", "subscription-deleted"),
        *("iterator-deleted", "log-deleted", "erased", "principal-revoked"),
    ]
    assert {facts["by"] for _, facts in entries} == {"root"}
    facts = dict(entries)
    assert "order-1" not in json.dumps(facts["erased"])
    assert facts["erased"]["stream"].startswith("sha256:")
    assert facts["log-deleted"]["log"].startswith("sha256:")
    assert (facts["queue-reset"]["queue"], facts["principal-revoked"]["principal"]) == ("q", "eve")


async def test_what_was_refused_is_not_in_the_audit(engine: Engine) -> None:
    await closed(engine, "read:shop")
    before = await audited(engine)
    for request in (model.DropIterator("log", "absent"), model.ResetQueue("shop", "absent", 0), model.DropLog("none")):
        with suppress(PenstockError):
            await engine.execute(ADMIN, request)
    assert await audited(engine) == before


# --- limits -----------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(access, "time", made)
    return made


def login(**limits: int) -> Login:
    return Login(Principal("eve", (), Limits(**limits)), Usage())


def said(error: OverLimit | None) -> tuple[str, str, int, int] | None:
    return None if error is None else (error.principal, error.limit, error.maximum, error.retry_after_ms)


def test_requests_per_second_allow_a_second_at_once_and_then_one_each_time(clock: Clock) -> None:
    who = login(requests_per_s_max=10)
    # One that is due now, and those of the second ahead.
    assert [who.admit(0) for _ in range(11)] == [None] * 11
    assert said(who.admit(0)) == ("eve", "requests_per_s_max", 10, 100)
    clock.now += 0.099
    assert who.admit(0) is not None
    clock.now += 0.002
    assert who.admit(0) is None
    assert who.admit(0) is not None
    assert (who.usage.requests, who.usage.busy) == (15, 3)


def test_a_message_with_many_requests_counts_as_so_many(clock: Clock) -> None:
    who = login(requests_per_s_max=10)
    assert who.admit(0, 1000) is None
    assert said(who.admit(0)) == ("eve", "requests_per_s_max", 10, 99_000)
    clock.now += 99
    assert who.admit(0) is None
    assert who.usage.requests == 1002


def test_bytes_per_second_let_one_large_request_pass_and_count_it_against_the_next(clock: Clock) -> None:
    who = login(bytes_per_s_max=1000)
    assert who.admit(5000) is None
    assert said(who.admit(1)) == ("eve", "bytes_per_s_max", 1000, 4000)
    clock.now += 4.0
    assert who.admit(1) is None
    assert who.usage.bytes == 5002


def test_a_refused_request_uses_nothing_of_the_other_limit(clock: Clock) -> None:
    who = login(requests_per_s_max=1, bytes_per_s_max=1000)
    assert [who.admit(1) is None for _ in range(3)] == [True, True, False]
    assert who.usage.bytes_until == pytest.approx(clock.now + 0.002)


def test_long_polls_are_counted_until_they_end() -> None:
    who = login(polls_max=2)
    assert said(who.begin_polls(3)) == ("eve", "polls_max", 2, access.RETRY_MS)
    assert (who.begin_polls(1), who.begin_polls(1)) == (None, None)
    assert said(who.begin_polls(1)) == ("eve", "polls_max", 2, access.RETRY_MS)
    who.end_polls(1)
    assert who.begin_polls(1) is None


async def test_connections_are_limited_by_token_and_by_the_principal_of_a_gate_or_of_a_key(engine: Engine) -> None:
    await closed(engine, "read:shop", limits=Limits(connections_max=1))
    token = await token_of(engine, "eve")
    certificate = "certificate:eve.example"
    await engine.execute(ANONYMOUS, model.AddCredential("eve", certificate))
    first = engine.access.by_token(token, ignore)
    with pytest.raises(OverLimit) as caught:
        engine.access.by_token(token, ignore)
    for login in (engine.access.arrive("eve", ignore), engine.access.arrive(None, ignore, [certificate])):
        assert login.principal is NOBODY
        assert login.refusal is not None
        assert vars(login.refusal) == vars(caught.value)
        engine.access.leave(login)
    assert (caught.value.limit, caught.value.maximum) == ("connections_max", 1)
    engine.access.leave(first)
    assert engine.access.arrive(None, ignore, [certificate]).usage.connections == 1


async def test_a_raised_limit_forgets_what_a_principal_has_to_wait_for_and_a_new_token_does_not(engine: Engine) -> None:
    await closed(engine, "read:shop", limits=Limits(bytes_per_s_max=1000))
    who = engine.access.by_token(await token_of(engine, "eve"), ignore)
    assert who.admit(10_000_000) is None
    again = engine.access.by_token(await token_of(engine, "eve", rotate=0), ignore)
    refusal = again.admit(1)
    assert refusal is not None
    assert (refusal.limit, refusal.maximum) == ("bytes_per_s_max", 1000)
    await closed(engine, "read:shop", limits=Limits(bytes_per_s_max=1_000_000))
    raised = engine.access.by_token(await token_of(engine, "eve"), ignore)
    assert raised.admit(1) is None


async def test_a_principal_stages_only_so_many_bytes(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), Settings(workers=1)) as engine:
        eve = Principal("eve", model.grants_of(("append:shop",)), Limits(staged_bytes_max=2000))
        unit = make_unit("shop", "s", [new_event("T", b"x" * 1500)])
        await engine.execute(eve, model.StageEvents("a", 0, "a", 0, (unit,)))
        with pytest.raises(OverLimit, match="staged_bytes_max"):
            await engine.execute(eve, model.StageEvents("b", 0, "a", 0, (unit,)))
        await engine.execute(eve, model.DropStages("a"))
        await engine.execute(eve, model.StageEvents("b", 0, "a", 0, (unit,)))


def test_a_decision_is_cheap() -> None:
    """The best of several rounds, with room for a slow machine: this finds what became ten times slower."""
    who = principal("eve", *(f"append:context-{number}" for number in range(20)), "read,append:shop/order-*")
    request, best = append(), float("inf")
    for _ in range(5):
        start = time.perf_counter()
        for _ in range(1000):
            authorize(who, request, Right.APPEND)
        best = min(best, time.perf_counter() - start)
    assert best / 1000 < 20e-6
