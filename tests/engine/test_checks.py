"""Whether messages are CBOR: who looks at them, when, and in what order they are written."""

import asyncio
from collections.abc import Sequence
from typing import Any

import cbor2
import pytest

from penstock.engine import Engine, appends, jobs
from penstock.engine.workers import Job
from penstock.errors import Closed, LogNotFound, NotCbor, PenstockError, ReaderBusy, WriterBusy
from penstock.model import ANONYMOUS, ANY, AddMessages, Append, Appended, Done, Reply, Request, Transact, new_event
from penstock.settings import Settings
from penstock.wire.remits import cbor
from tests.engine.logs import Remits, until

LARGE = cbor2.dumps(["x" * 1000] * (appends.CHECKED_BYTES_MAX // 1000 + 1))
MANY = tuple(cbor2.dumps({number: "by number"}) for number in range(500))
"""More than is looked at at once, and not what cbor2 can judge."""
BROKEN = (*MANY, b"\x81", b"\x82")


def appended(messages: Sequence[bytes], log: str = "log") -> Append:
    return Append("remits", log, tuple(new_event("cbor", message) for message in messages), ANY)


class Workers:
    """The reading workers: what they were asked to check, answered when a test says so."""

    def __init__(self, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self._answers: list[asyncio.Future[Any]] = []
        self._run = engine.pool.run
        monkeypatch.setattr(engine.pool, "run", self._held)

    def _held(self, job: Job, *arguments: Any) -> "asyncio.Future[Any]":
        if job is not jobs.check_messages:
            return self._run(job, *arguments)
        self.asked.append(arguments)
        self._answers.append(asyncio.get_running_loop().create_future())
        return self._answers[-1]

    async def answer(self, index: int) -> None:
        try:
            result = await self._run(jobs.check_messages, *self.asked[index])
        except PenstockError as error:
            self._answers[index].set_exception(error)
        else:
            self._answers[index].set_result(result)


@pytest.fixture
def workers(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Workers:
    return Workers(engine, monkeypatch)


@pytest.fixture
def scanned(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What the slow scanner was given in this process."""
    seen: list[bytes] = []
    scan = cbor.end_of

    def noted(data: bytes, at: int) -> int:
        seen.append(data)
        return scan(data, at)

    monkeypatch.setattr(cbor, "end_of", noted)
    return seen


@pytest.mark.parametrize("messages", [(LARGE,), MANY, (b"\x00" * appends.SCANNED_BYTES_MAX + b"\x00",)], ids=len)
async def test_what_takes_long_is_looked_at_by_a_worker_only(
    engine: Engine, remits: Remits, workers: Workers, scanned: list[bytes], messages: tuple[bytes, ...]
) -> None:
    await remits.create()
    requests = [AddMessages("log", messages), appended(messages), Transact((appended(messages),))]
    asking = [asyncio.ensure_future(remits.ask(request)) for request in requests]
    await until(lambda: len(workers.asked) == 3)
    assert [arguments[0] for arguments in workers.asked] == ["log"] * 3
    for index in range(3):
        await workers.answer(index)
    replies = await asyncio.gather(*asking, return_exceptions=True)
    kinds = [NotCbor] * 3 if messages[0].startswith(b"\x00") else [Done, Appended, type(replies[2])]
    assert [type(reply) for reply in replies] == kinds
    assert scanned == []


async def test_what_is_plainly_valid_or_small_needs_no_worker(remits: Remits, workers: Workers) -> None:
    await remits.create()
    usual = tuple(cbor2.dumps({"number": number, "text": "x" * 100}) for number in range(500))
    for messages in (usual, (cbor2.dumps({1: 2}),), (b"\xbf\xff",), ()):
        await remits.ask(AddMessages("log", messages))
    await remits.ask(appended(usual))
    assert workers.asked == []
    assert (await remits.show()).messages == 1002


@pytest.mark.parametrize("bad", [b"", b"\xff", b"\x00\x00", b"\xa1\x61", b"\x61\xff", b"\xa2\x01\x01\x01\x02"])
@pytest.mark.parametrize("before", [0, 64, 200])
async def test_one_message_that_is_not_cbor_is_told_wherever_it_is(remits: Remits, bad: bytes, before: int) -> None:
    await remits.create()
    messages = (*[b"\x00"] * before, bad, *[b"\x00"] * 70)
    for request in (AddMessages("log", messages), appended(messages), Transact((appended(messages),))):
        with pytest.raises(NotCbor) as caught:
            await remits.ask(request)
        assert caught.value.index == before
    assert (await remits.show()).messages == 0


async def test_that_a_log_is_missing_is_told_before_messages_are_looked_at(remits: Remits) -> None:
    for messages in (BROKEN, (b"\x81",)):
        for request in (AddMessages("log", messages), appended(messages), Transact((appended(messages),))):
            with pytest.raises(LogNotFound):
                await remits.ask(request)


async def test_nothing_of_a_log_overtakes_what_is_being_checked(
    engine: Engine, remits: Remits, workers: Workers
) -> None:
    await remits.create()
    await remits.create("other")
    answers: dict[str, Reply | PenstockError] = {}

    def submit(name: str, request: Request) -> None:
        engine.submit(ANONYMOUS, request, lambda reply: answers.update({name: reply}))

    submit("slow", AddMessages("log", MANY))
    submit("quick", AddMessages("log", (cbor2.dumps("quick"),)))
    submit("broken", AddMessages("log", BROKEN))
    submit("appended", appended([cbor2.dumps("appended")]))
    submit("slow too", AddMessages("log", (*MANY, cbor2.dumps("slow too"))))
    submit("elsewhere", AddMessages("other", (b"\x00",)))
    await until(lambda: list(answers) == ["elsewhere"])
    await workers.answer(2)
    await workers.answer(1)
    assert list(answers) == ["elsewhere"], "who comes later waits, checked or not"
    await workers.answer(0)
    await until(lambda: len(answers) == 6)
    assert isinstance(answers["broken"], NotCbor)
    assert answers["broken"].index == 500
    await remits.iterator("all")
    found = await remits.everything("all")
    assert [found[500], found[501], found[-1], len(found)] == ["quick", "appended", "slow too", 1003]
    submit("at once", AddMessages("log", (b"\x00",)))
    await until(lambda: len(answers) == 7)
    assert len(workers.asked) == 3
    assert engine._checks._lines == {}
    assert (engine._checks._waiting, engine._checks._waiting_bytes) == (0, 0)


async def test_what_is_being_checked_when_the_server_stops_is_finished(
    engine: Engine, remits: Remits, workers: Workers
) -> None:
    await remits.create()
    answers: list[Reply | PenstockError] = []
    engine.submit(ANONYMOUS, AddMessages("log", MANY), answers.append)
    engine.submit(ANONYMOUS, AddMessages("log", (b"\x00",)), answers.append)
    stopping = asyncio.ensure_future(engine.stop())
    await asyncio.sleep(0)
    await workers.answer(0)
    await stopping
    assert answers == [Done(), Done()]


class TestSmallLimits:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(writer_queue_bytes_max=4 * len(LARGE), reader_queue_max=2, workers=1)

    async def test_only_so_much_waits_to_be_checked(self, engine: Engine, remits: Remits, workers: Workers) -> None:
        await remits.create()
        answers: list[Reply | PenstockError] = []
        for _ in range(5):
            engine.submit(ANONYMOUS, AddMessages("log", (LARGE,)), answers.append)
        (busy,) = answers
        assert isinstance(busy, WriterBusy)
        for index in range(4):
            await workers.answer(index)
        await until(lambda: len(answers) == 5)
        assert {type(answer) for answer in answers} == {WriterBusy, Done}
        assert (await remits.show()).messages >= 2

    async def test_a_check_that_no_worker_can_take_is_told(self, engine: Engine, remits: Remits) -> None:
        await remits.create()
        answers: list[Reply | PenstockError] = []
        for _ in range(5):
            engine.submit(ANONYMOUS, AddMessages("log", MANY), answers.append)
        assert [type(answer) for answer in answers] == [ReaderBusy] * 2
        await until(lambda: len(answers) == 5)
        assert (await remits.show()).messages == 1500
        await engine.stop()
        engine.submit(ANONYMOUS, AddMessages("log", MANY), answers.append)
        assert isinstance(answers[-1], Closed)
