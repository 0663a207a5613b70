"""Calls whose answer was lost: whatever the server says to a repeat, no error claims that nothing was written.

Every error that a server may answer, over every wire of the client, on both stores. The servers run in this process on
real sockets; a proxy cuts the connection once the store has written the first attempt, and the engine refuses repeats.
"""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from typing import Any, Final

import pytest

import penstock
from penstock import NEW, Appended, Client
from penstock.client import calls, local
from penstock.client.sync import Portal
from penstock.engine.access import Login
from penstock.engine.appends import OnReply
from penstock.engine.engine import Abandon, AnyEncoder
from penstock.errors import (
    ConnectionLost,
    DeadLetterNotFound,
    DeadlinePassed,
    EventNotFound,
    LogNotFound,
    MarkSuperseded,
    NotAppended,
    NotDurable,
    PenstockError,
    Refused,
    Retry,
    StorageFull,
    VersionConflict,
    WriterBusy,
)
from penstock.gates import MqGate, ZeromqGate
from penstock.model import (
    ANONYMOUS,
    ANY,
    AcknowledgeQueue,
    AddMessages,
    Append,
    CreateLog,
    ListPage,
    ListStreams,
    Principal,
    ProducerMark,
    ReleaseQueue,
    Repeat,
    Replayed,
    ReplayQueue,
    Reply,
    Request,
    SubscribeQueue,
    Transact,
    Transacted,
)
from penstock.settings import Settings
from penstock.store import store_url
from penstock.testing.harness import ThreadedEngine
from penstock.wire.codes import ERROR_CODES
from tests.client.support import append_by, one, some
from tests.postgres import Postgres
from tests.proxy import Proxy

STORES: Final = ("sqlite", "postgres")
WIRES: Final = ("penstock", "zmq+tcp")
METHODS: Final = ("append", "append_many", "transaction", "expected")
PATIENT_S: Final = 600.0
REFUSED: Final = "no room|commit_events_max|fsync = off"
FIELDS: Final[dict[Any, Any]] = {str: "x", int: 7, float: 1.0, bool: False, Retry: Retry.SAFE, int | None: None}


class NewerBusy(WriterBusy):
    """An error of another version: the client knows the code, and not the sentence."""

    def __str__(self) -> str:
        return "come back on Monday"


def made(kind: type[PenstockError]) -> PenstockError:
    return kind(*(FIELDS[field.type] for field in fields(kind)))


REFUSALS: Final = [made(kind) for kind in [*ERROR_CODES, NewerBusy] if kind not in (VersionConflict, MarkSuperseded)]
"""What settles nothing. The two others have tests of their own."""
SAFE: Final = [error for error in REFUSALS if error.retry is Retry.SAFE]


class FaultyEngine(ThreadedEngine):
    """An engine in whose way something can be put."""

    fault: "Fault | None" = None

    def submit(
        self,
        principal: Principal,
        request: Request,
        answer: OnReply,
        present: AnyEncoder | None = None,
        sender: Login | None = None,
    ) -> Abandon:
        if self.fault is None or request.repeat is Repeat.READS:
            return super().submit(principal, request, answer, present, sender)
        return self.fault.submit(partial(super().submit, sender=sender), principal, request, answer, present)


class Fault:
    """The first attempt is carried out, and then something happens in place of its answer; the others are met.

    `between` is what others do before the second attempt arrives.
    """

    def __init__(
        self, lose: Callable[[], object], meet: Callable[[], PenstockError | None], between: Sequence[Request] = ()
    ) -> None:
        self._lose = lose
        self._meet = meet
        self._between = list(between)
        self.before: Callable[[], object] | None = None
        """Done before the second attempt."""
        self.never_arrives = False
        """Whether the first attempt is lost on its way to the engine."""
        self.attempts = 0

    def submit(
        self,
        carry_out: Callable[..., Abandon],
        principal: Principal,
        request: Request,
        answer: OnReply,
        present: AnyEncoder | None,
    ) -> Abandon:
        self.attempts += 1
        if self.attempts == 1:
            if self.never_arrives:
                self._lose()
                return lambda: False

            def lost(outcome: Reply | PenstockError) -> None:
                assert not isinstance(outcome, PenstockError)
                self._lose()
                answer(outcome)

            return carry_out(principal, request, lost, present)
        if self.before is not None:
            self.before()
            self.before = None
        error = self._meet()
        if error is not None:
            answer(error)
        elif self._between:
            first = self._between.pop(0)
            carry_out(principal, first, lambda _: self.submit(carry_out, principal, request, answer, present), None)
        else:
            return carry_out(principal, request, answer, present)
        return lambda: False


class Site:
    """An engine with gates, each behind a proxy, and a client for each."""

    def __init__(self, url: str) -> None:
        self._undo = ExitStack()
        self._portal = Portal()
        self._undo.callback(self._portal.close)
        self.engine: FaultyEngine = self._portal.run(self._started(url))
        self._undo.callback(lambda: self._portal.run(self._stop()))
        ports = [int(address.rpartition(":")[2]) for address in (self._mq.address, self._res.address)]
        self.proxies = {
            scheme: self._undo.enter_context(Proxy(port)) for scheme, port in zip(WIRES, ports, strict=True)
        }
        self.clients = {
            scheme: self._undo.enter_context(penstock.connect(f"{scheme}://127.0.0.1:{proxy.port}", timeout=PATIENT_S))
            for scheme, proxy in self.proxies.items()
        }

    async def _started(self, url: str) -> FaultyEngine:
        engine = FaultyEngine(url, Settings(workers=1))
        self._mq, self._res = MqGate(engine, "127.0.0.1:0"), ZeromqGate(engine, "tcp://127.0.0.1:0")
        for part in (engine, self._mq, self._res):
            await part.start()
        # The tests say when the disk is full; the watch would take that back within a second.
        engine._disk.stop()
        return engine

    async def _stop(self) -> None:
        for part in (self._mq, self._res, self.engine):
            await part.stop()

    def ask(self, request: Request) -> Reply:
        """Ask the engine directly, as an embedded client does."""
        return self._portal.run(self.engine.execute(ANONYMOUS, request))

    def count(self, context: str) -> int:
        """How many events a context has."""
        page = self.ask(ListStreams(context))
        assert isinstance(page, ListPage)
        return sum(info.events for info in page.items)

    def close(self) -> None:
        self._undo.close()


@pytest.fixture(scope="module")
def url_of(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Callable[[str, str], str]:
    def url(store: str, name: str) -> str:
        if store == "sqlite":
            return store_url(tmp_path_factory.mktemp(name) / "data")
        server: Postgres = request.getfixturevalue("postgres_server")
        return server.url(f"doubt_{name}_{os.getpid()}")

    return url


@pytest.fixture(scope="module", params=STORES)
def site(request: pytest.FixtureRequest, url_of: Callable[[str, str], str]) -> Iterator[Site]:
    site = Site(url_of(request.param, "served"))
    yield site
    site.close()


@pytest.fixture(params=WIRES)
def wire(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def refusing(site: Site, wire: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[PenstockError], Fault]]:
    """Lose the answer of the next call, and refuse its repeats; after the first there is no time for another."""

    def refuse(error: PenstockError) -> Fault:
        def meet() -> PenstockError:
            monkeypatch.setattr(calls, "ATTEMPT_S_MIN", 2 * PATIENT_S)
            return error

        site.engine.fault = Fault(site.proxies[wire].cut, meet)
        return site.engine.fault

    yield refuse
    site.engine.fault = None


def told(client: Client, method: str, context: str) -> PenstockError:
    """The error of an append that fails."""
    with pytest.raises(PenstockError) as caught:
        append_as(method, client, context)
    if isinstance(caught.value, NotAppended):
        assert isinstance(caught.value.__cause__, PenstockError)
        return caught.value.__cause__
    return caught.value


def append_as(method: str, client: Client, context: str) -> Appended | None:
    if method == "expected":
        return client.append(context, "s", one(), expected=NEW)
    append_by(method, client, context, one())
    return None


def is_unknown(error: PenstockError, refusal: PenstockError) -> None:
    """An error says that the outcome is unknown, and what the refusal was."""
    assert error.retry is Retry.UNKNOWN
    assert isinstance(error, ConnectionLost | DeadlinePassed)
    assert "may have carried" in str(error)
    assert "nothing" not in str(error).lower()
    assert str(error.__cause__) == str(refusal)
    assert type(error.__cause__).__name__ in error.reason


# ---------------------------------------------------------------- the client


def test_the_matrix_has_every_error_that_a_server_may_answer() -> None:
    safe = {StorageFull, NotDurable, EventNotFound, WriterBusy, NewerBusy, DeadlinePassed, Refused}
    assert safe < set(map(type, SAFE))
    assert {kind for kind in ERROR_CODES if kind._retry is Retry.SAFE} < set(map(type, SAFE))
    assert set(ERROR_CODES) == {*map(type, REFUSALS), VersionConflict, MarkSuperseded} - {NewerBusy}
    assert {error.retry for error in REFUSALS} == set(Retry)


@pytest.mark.parametrize("error", REFUSALS, ids=lambda error: type(error).__name__)
def test_a_call_in_doubt_is_not_said_to_have_done_nothing(
    site: Site, wire: str, error: PenstockError, refusing: Callable[[PenstockError], Fault], context: str
) -> None:
    fault = refusing(error)
    is_unknown(told(site.clients[wire], "append", context), error)
    assert fault.attempts == 2
    assert site.count(context) == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "error", [StorageFull("no room"), NotDurable("off"), WriterBusy(7)], ids=lambda error: type(error).__name__
)
def test_however_it_was_appended(
    site: Site, wire: str, method: str, error: PenstockError, refusing: Callable[[PenstockError], Fault], context: str
) -> None:
    refusing(error)
    is_unknown(told(site.clients[wire], method, context), error)
    assert site.count(context) == 1


def test_a_producer_in_doubt_is_not_used_for_another_write(
    site: Site, wire: str, refusing: Callable[[PenstockError], Fault], context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusing(StorageFull("no room"))
    client = site.clients[wire]
    told(client, "append_many", context)
    site.engine.fault = None
    monkeypatch.undo()
    for _ in range(3):
        assert not client.append(context, "s", one()).repeated
    assert site.count(context) == 4


@pytest.mark.parametrize("actual", [1, 2])
def test_a_conflict_is_told_as_such_where_it_settles_the_matter(
    site: Site, wire: str, actual: int, refusing: Callable[[PenstockError], Fault], context: str
) -> None:
    """The stream has been taken by others, or may still come to where the first attempt wants it."""
    error = VersionConflict(context, "s", 2, actual)
    refusing(error)
    found = told(site.clients[wire], "append", context)
    if actual == 1:
        is_unknown(found, error)
    else:
        assert isinstance(found, VersionConflict)


def test_a_mark_that_is_superseded_is_told_as_such(
    site: Site, wire: str, refusing: Callable[[PenstockError], Fault], context: str
) -> None:
    refusing(MarkSuperseded("p", 1, 2))
    assert isinstance(told(site.clients[wire], "append", context), MarkSuperseded)


def test_a_subscription_progresses_past_a_server_that_has_forgotten_its_batch(
    site: Site, wire: str, losing: Callable[..., Fault], context: str
) -> None:
    """The first attempt never arrives, and the second meets a server that has handed nothing out."""
    client = site.clients[wire]
    client.append(context, "s", some(4))

    def forget() -> None:
        site.engine._subscriptions._pending.clear()

    for method in ("progress", "transaction"):
        subscription = client.subscription(method, context=context, count=2, follow=False)
        batch = subscription.fetch()
        fault = losing()
        fault.never_arrives, fault.before = True, forget
        if method == "progress":
            subscription.progress(batch)
        else:
            with client.transaction() as transaction:
                transaction.append(context, "out", one())
                transaction.progress(subscription, batch)
        assert fault.attempts > 1
        site.engine.fault = None
        assert [int(event.body) for event in subscription.fetch() if event.stream == "s"] == [3, 4]
    assert site.count(context) == 5


# ---------------------------------------------------------------- the server


@pytest.fixture(params=["disk", "limits", "fsync"])
def refusal(
    request: pytest.FixtureRequest, site: Site, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[], None]]:
    """From when this is called, nothing new is taken."""
    engine = site.engine
    is_postgres = engine.url.startswith("postgresql")
    if request.param == "fsync" and not is_postgres:
        pytest.skip("PostgreSQL's setting")

    def begin() -> None:
        if request.param == "fsync":
            request.getfixturevalue("postgres_server").set("fsync", "off")
            # Nothing is being written at this moment, so that the store may be asked from here.
            until(lambda: engine._store.refusal() is not None)
        elif request.param == "disk":
            monkeypatch.setattr(engine._disk, "is_refusing", True)
            monkeypatch.setattr(engine._disk, "refusal", lambda: StorageFull("no room"))
        else:
            small = replace(engine.settings, commit_events_max=0)
            monkeypatch.setattr(engine._context, "settings", small)

    yield begin
    if request.param == "fsync":
        request.getfixturevalue("postgres_server").set("fsync", "on")
        until(lambda: engine.trouble is None and engine._store.refusal() is None)


def until(condition: Callable[[], bool]) -> None:
    """A reload reaches a session a moment after it was asked for."""
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("method", METHODS)
def test_what_was_written_is_answered_so_when_nothing_new_is_taken(
    site: Site, wire: str, method: str, refusal: Callable[[], None], context: str
) -> None:
    def lose() -> None:
        refusal()
        site.proxies[wire].cut()

    site.engine.fault = fault = Fault(lose, lambda: None)
    try:
        append_as(method, site.clients[wire], context)
    finally:
        site.engine.fault = None
    assert fault.attempts == 2
    assert site.count(context) == 1


def test_a_new_append_is_refused_before_and_after(site: Site, refusal: Callable[[], None], context: str) -> None:
    refusal()
    mark = ProducerMark(context, 1)
    for request in (
        Append(context, "s", one(), ANY),
        Append(context, "s", one(), NEW),
        Append(context, "s", one(), ANY, mark),
        Transact((Append(context, "s", one(), ANY),), mark=mark),
        Transact((Append(context, "s", one(), NEW),)),
    ):
        with pytest.raises(PenstockError, match=REFUSED):
            site.ask(request)
    assert site.count(context) == 0


def test_a_marked_repeat_needs_no_wire(site: Site, refusal: Callable[[], None], context: str) -> None:
    mark = ProducerMark(context, 1)
    append = Append(context, "s", some(2), ANY, mark)
    first = site.ask(append)
    refusal()
    assert isinstance(first, Appended)
    with pytest.raises(PenstockError, match=REFUSED):
        site.ask(replace(append, mark=ProducerMark(context, 2)))
    assert site.ask(append) == replace(first, repeated=True)
    together = Transact((replace(append, mark=None),), mark=mark)
    assert site.ask(together) == Transacted((replace(first, repeated=True),))


def test_a_queue_that_is_full_of_what_a_replay_put_there_says_that_it_was_done(
    site: Site, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.engine.queues.WAITING_ALLOCATIONS_MAX", 1)
    appended = site.ask(Append(context, "s", some(3), ANY))
    assert isinstance(appended, Appended)
    site.ask(SubscribeQueue(context, context, "me", "", 0, 3, 60_000))
    queue = site.clients["penstock"].queue(context, context, subscriber="me")
    with queue.next() as batch:
        assert len(batch) == 3
    place = (context, context, appended.position, appended.position + 2)
    done = site.ask(ReplayQueue(*place, ProducerMark(context, 1)))
    assert isinstance(done, Replayed)
    assert (done.events, done.is_full, done.repeated) == (3, False, False)
    again = site.ask(ReplayQueue(*place, ProducerMark(context, 1)))
    assert isinstance(again, Replayed)
    assert (again.is_full, again.repeated) == (False, True)
    other = site.ask(ReplayQueue(*place, ProducerMark(context, 2)))
    assert isinstance(other, Replayed)
    assert (other.is_full, other.repeated) == (True, False)


# ---------------------------------------------------------------- what is sent again


@pytest.fixture
def losing(site: Site, wire: str) -> Iterator[Callable[..., Fault]]:
    """Lose the answer of the next call; others do something before its repeat arrives."""

    def lose(*between: Request) -> Fault:
        site.engine.fault = Fault(site.proxies[wire].cut, lambda: None, between)
        return site.engine.fault

    yield lose
    site.engine.fault = None


def about(subject: str) -> penstock.NewEvent:
    return penstock.event("Counted", 1, {"subject": subject})


def test_an_erasure_that_is_sent_again_spares_what_has_come_since(
    site: Site, wire: str, losing: Callable[..., Fault], context: str
) -> None:
    client = site.clients[wire]
    client.append(context, "s", [about(context)] * 2)
    fault = losing(Append(context, "s", [about(context)], ANY))
    client.erase_stream(context, "s")
    assert fault.attempts > 1
    assert [event.sequence for event in client.read_stream(context, "s")] == [3]

    fault = losing(Append(context, "s", [about(context)], ANY))
    client.erase_subject(context)
    assert fault.attempts > 1
    assert [event.sequence for event in client.read_stream(context, "s")] == [4]


def test_a_deletion_that_is_sent_again_spares_a_log_that_was_made_since(
    site: Site, wire: str, losing: Callable[..., Fault], context: str
) -> None:
    log = site.clients[wire].log(context)
    log.create()
    log.append([1, 2])
    fault = losing(CreateLog(context), AddMessages(context, (b"\x07",)))
    log.delete()
    assert fault.attempts > 1
    assert log.show().messages == 1
    site.engine.fault = None
    log.delete()
    log.delete()
    with pytest.raises(LogNotFound):
        log.show()


def test_what_is_put_back_twice_is_back(site: Site, wire: str, losing: Callable[..., Fault], context: str) -> None:
    queue = site.clients[wire].queue(context, context, subscriber="me")
    site.clients[wire].append(context, "s", one())
    queue.declare()
    queue.dead_after(1)
    take = SubscribeQueue(context, context, "other", "", 0, 1, 60_000)
    queue.release(queue.take())
    (dead,) = queue.dead_letters()
    for between in ((), (take,)):
        fault = losing(*between)
        queue.put_back(dead.position)
        assert fault.attempts > 1
        site.engine.fault = None
        assert queue.dead_letters() == []
        if not between:
            queue.release(queue.take())
    # The other one has it now, and is done with it before the repeat comes.
    site.ask(ReleaseQueue(context, context, "other", dead.position, dead.position))
    losing(take, AcknowledgeQueue(context, context, "other", dead.position, dead.position, 1, -1))
    with pytest.raises(ConnectionLost) as caught:
        queue.put_back(dead.position)
    assert isinstance(caught.value.__cause__, DeadLetterNotFound)
    site.engine.fault = None
    with pytest.raises(DeadLetterNotFound):
        queue.put_back(dead.position)


def test_what_might_do_harm_is_not_sent_again(
    site: Site, wire: str, losing: Callable[..., Fault], context: str
) -> None:
    client = site.clients[wire]
    client.append(context, "s", one())
    queue, subscription = client.queue(context, context), client.subscription(context, context=context)
    queue.declare()
    subscription.fetch()
    client.log(context).create()
    iterator = client.iterator(f"{context}-all")
    iterator.create(context, "map", "return msg")
    harmful: list[Callable[[], object]] = [
        queue.reset,
        lambda: subscription.set(None),
        lambda: iterator.delete(context),
    ]
    for call in harmful:
        fault = losing()
        with pytest.raises(ConnectionLost, match="may have carried"):
            call()
        assert fault.attempts == 1
        site.engine.fault = None


# ---------------------------------------------------------------- without a wire


@pytest.fixture(scope="module", params=STORES)
def embedded(request: pytest.FixtureRequest, url_of: Callable[[str, str], str]) -> Iterator[Client]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "Engine", FaultyEngine)
        with penstock.connect(url_of(request.param, "embedded"), timeout=PATIENT_S) as client:
            yield client


@pytest.mark.parametrize("error", SAFE, ids=lambda error: type(error).__name__)
def test_an_engine_in_this_process_leaves_no_doubt(
    embedded: Client, error: PenstockError, monkeypatch: pytest.MonkeyPatch, context: str
) -> None:
    """No answer is lost on the way, so that the error is what it says, and nothing was written."""

    def refuse(
        _engine: FaultyEngine, _principal: Principal, request: Request, answer: OnReply, *_: object
    ) -> Callable[[], None]:
        assert isinstance(request, Append)
        monkeypatch.setattr(calls, "ATTEMPT_S_MIN", 2 * PATIENT_S)
        answer(error)
        return lambda: None

    with monkeypatch.context() as patch:
        patch.setattr(FaultyEngine, "submit", refuse)
        assert told(embedded, "append", context) is error
    assert list(embedded.read_stream(context, "s")) == []
