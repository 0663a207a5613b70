"""Logs through the engine: adding, showing, deleting, and what other gates may do with them."""

import asyncio
import subprocess
from collections.abc import Coroutine
from itertools import groupby
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock.engine import Engine, background
from penstock.errors import InvalidRequest, LimitExceeded, LogNotFound, NotAllowed, NotCbor, PenstockError, WriterBusy
from penstock.model import (
    ANONYMOUS,
    ANY,
    AddMessages,
    Append,
    Appended,
    CreateLog,
    Done,
    DropLog,
    EventPage,
    ListLogs,
    NewEvent,
    ProducerMark,
    ReadStream,
    ShowLog,
    Transact,
    Transacted,
    new_event,
    now_ticks,
)
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.contract import Erase
from tests.engine.caller import Caller, events, principal
from tests.engine.logs import Remits, until


def message(value: object, type: str = "cbor") -> NewEvent:
    return new_event(type, cbor2.dumps(value))


def files_with(directory: Path, secret: bytes) -> list[str]:
    """The files of a store that have some bytes in them; another process looks.

    A process that closes a file loses all its locks on it, those of SQLite too. Then the next one that opens the store
    takes it for left behind and cuts the shared memory off, and who has that mapped dies of a bus error.
    """
    command = ["grep", "--text", "--fixed-strings", "--files-with-matches", "--recursive", "--no-messages"]
    found = subprocess.run(
        [*command, secret.decode(), directory / "store"], capture_output=True, text=True, check=False
    )
    return sorted(Path(line).name for line in found.stdout.splitlines())


async def test_a_log_is_made_once_and_shown_with_what_is_in_it(remits: Remits) -> None:
    before = now_ticks()
    await remits.create("log", 1, 2, "three")
    await remits.create("log")
    await remits.create("another")
    await remits.iterator("it")
    shown = await remits.show()
    assert before <= shown.created <= now_ticks()
    assert (shown.log, shown.messages, shown.size_bytes, shown.iterators) == ("log", 3, 8, ["it"])
    assert await remits.logs() == ["another", "log"]


async def test_a_log_that_is_not_there_is_told(remits: Remits) -> None:
    for request in (ShowLog("log"), AddMessages("log", (b"\x01",)), AddMessages("log", ())):
        with pytest.raises(LogNotFound, match="no log log"):
            await remits.ask(request)
    await remits.drop("log")
    assert await remits.logs() == []


@pytest.mark.parametrize("name", ["", "\0", "\ud800", "x" * 513])
async def test_a_name_that_cannot_be_is_refused(remits: Remits, name: str) -> None:
    with pytest.raises(InvalidRequest):
        await remits.ask(CreateLog(name))


async def test_no_messages_are_fine_and_do_nothing(remits: Remits) -> None:
    await remits.create()
    assert await remits.ask(AddMessages("log", ())) == Done()
    assert (await remits.show()).messages == 0


async def test_messages_are_events_of_a_stream_with_ids_of_their_own(caller: Caller, remits: Remits) -> None:
    await remits.create()
    number = await caller.register(context="remits")
    before = now_ticks()
    await remits.add("log", *range(100))
    await remits.add("log", "last")
    page = await caller.ask(EventPage, ReadStream("remits", "log"))
    assert [cbor2.loads(event.body) for event in page.events] == [*range(100), "last"]
    assert {(event.type, event.headers) for event in page.events} == {("cbor", None)}
    assert {event.uuid.version for event in page.events} == {4}
    assert len({event.id for event in page.events}) == 101
    assert all(before <= event.ticks <= now_ticks() for event in page.events)
    assert (await caller.fetch(number, 1000)).events == page.events


async def test_many_who_add_at_once_are_all_there_in_one_order(remits: Remits) -> None:
    await remits.create()
    await remits.iterator("all")
    await asyncio.gather(*(remits.add("log", *((who, n) for n in range(3))) for who in range(200)))
    found = await remits.everything("all")
    assert len(found) == 600
    assert [n for _, n in found] == [0, 1, 2] * 200, "each request is there as one piece"
    assert (await remits.show()).messages == 600


class TestSmallLimits:
    @pytest.fixture
    def settings(self) -> Settings:
        return Settings(commit_events_max=10, commit_bytes_max=4000, event_bytes_max=1000)

    @pytest.mark.parametrize(
        ("messages", "limit"),
        [((b"\x01",) * 11, "commit_events_max"), ((b"x" * 999,) * 5, "commit_bytes_max"), ((b"x" * 1001,), "event")],
    )
    async def test_what_is_too_large_is_refused(self, remits: Remits, messages: tuple[bytes, ...], limit: str) -> None:
        await remits.create()
        with pytest.raises(LimitExceeded, match=limit):
            await remits.ask(AddMessages("log", messages))
        await remits.add("log", *["x" * 90] * 10)
        assert (await remits.show()).messages == 10


async def test_rights_are_asked_for(engine: Engine) -> None:
    reader = principal("reader", "read")
    for request in (CreateLog("log"), DropLog("log"), AddMessages("log", (b"\x01",))):
        with pytest.raises(NotAllowed):
            await engine.execute(reader, request)
    await engine.execute(reader, ListLogs())


# --- other gates ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (message(1, "json"), NotCbor),
        (new_event("cbor", b""), NotCbor),
        (new_event("cbor", b"\x01\x02"), NotCbor),
        (new_event("cbor", b"\x62a"), NotCbor),
    ],
)
async def test_only_messages_may_be_appended_to_a_log(
    caller: Caller, remits: Remits, event: NewEvent, error: type[PenstockError]
) -> None:
    await remits.create()
    append = Append("remits", "log", (message(1), event), ANY)
    for request in (append, Transact((Append("shop", "s", tuple(events("x")), ANY), append))):
        with pytest.raises(error, match="message 1"):
            await remits.ask(request)
    assert await caller.everything() == []


async def test_an_append_to_a_log_needs_the_log(caller: Caller, remits: Remits) -> None:
    append = Append("remits", "log", (message(1),), ANY)
    both = Transact((Append("shop", "s", tuple(events("x")), ANY), append))
    for request in (append, both):
        with pytest.raises(LogNotFound):
            await remits.ask(request)
    assert await caller.everything() == []
    await remits.create()
    await remits.iterator("all")
    marked = Append("remits", "log", (message("marked"),), ANY, ProducerMark("p", 1))
    assert isinstance(await remits.ask(append), Appended)
    assert isinstance(await remits.ask(both), Transacted)
    first, again = [await caller.ask(Appended, marked) for _ in range(2)]
    assert (first.commit, again.repeated) == (again.commit, True)
    assert await remits.everything("all") == [1, 1, "marked"]


# --- deleting -------------------------------------------------------------------------------------------------


async def test_a_deleted_log_is_gone_at_once_for_everyone(caller: Caller, remits: Remits) -> None:
    await remits.create("log", *range(500))
    await remits.create("other", "stays")
    number = await caller.register(context="remits")
    await remits.drop()
    assert await remits.logs() == ["other"]
    assert (await caller.ask(EventPage, ReadStream("remits", "log"))).events == []
    assert [event.stream for event in (await caller.fetch(number)).events] == ["other"]
    with pytest.raises(LogNotFound):
        await remits.show()


async def test_a_log_added_again_starts_at_ordinal_0(remits: Remits) -> None:
    for generation in range(3):
        await remits.create("log", f"first of {generation}", "second")
        for indexed in (False, True):
            await remits.iterator(f"it{indexed}", indexed=indexed)
            assert await remits.next(f"it{indexed}") == [f"first of {generation}", "second"]
        assert (await remits.show()).messages == 2
        await remits.drop()
        assert await remits.iterators() == []


async def test_what_a_deleted_log_held_leaves_every_file(tmp_path: Path, engine: Engine, remits: Remits) -> None:
    await remits.create("log", *(f"top-secret {number}" for number in range(2000)))
    await remits.iterator("all", indexed=True)
    await remits.iterator("over it", log="all", indexed=True)
    assert len(await remits.everything("over it")) == 2000
    for _ in range(50):
        await remits.add("log", "top-secret")
    assert files_with(tmp_path, b"top-secret")
    await remits.drop()
    await until(lambda: not files_with(tmp_path, b"top-secret"))
    await engine.stop()
    assert files_with(tmp_path, b"top-secret") == []


async def test_erasing_goes_on_after_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = store_url(tmp_path / "store")
    with monkeypatch.context() as slow:
        slow.setattr(background, "ERASE_RECORDS_MAX", 1)
        slow.setattr(background, "ERASE_PAUSE_S", 3600)
        async with Engine(url, Settings()) as engine:
            for _ in range(20):
                await Remits(engine).create("log", "top-secret")
            await Remits(engine).drop()
    assert files_with(tmp_path, b"top-secret")
    async with Engine(url, Settings()) as engine:
        await until(lambda: not files_with(tmp_path, b"top-secret"))
        assert await Remits(engine).logs() == []


async def test_erasing_goes_on_after_a_failure(
    tmp_path: Path, engine: Engine, remits: Remits, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = engine._context.write
    failures: list[object] = []

    async def failing(*arguments: Any, **more: Any) -> Any:
        if isinstance(arguments[0].operations[0], Erase) and len(failures) < 2:
            failures.append(arguments)
            raise WriterBusy(1)
        return await write(*arguments, **more)

    monkeypatch.setattr(background, "ERASE_RETRY_S", 0.01)
    monkeypatch.setattr(engine._context, "write", failing)
    await remits.create("log", "top-secret")
    await remits.drop()
    await until(lambda: len(failures) == 2 and not files_with(tmp_path, b"top-secret"))


async def test_messages_race_with_a_deletion_and_none_is_lost_or_left(engine: Engine, remits: Remits) -> None:
    await remits.create()
    answers: list[object] = []

    def add(number: int) -> None:
        engine.submit(ANONYMOUS, AddMessages("log", (cbor2.dumps(number),)), answers.append)

    async def beside(work: Coroutine[Any, Any, None], numbers: range) -> None:
        doing = asyncio.ensure_future(work)
        for number in numbers:
            add(number)
            await asyncio.sleep(0)
        await doing

    for number in range(100):
        add(number)
    await beside(remits.drop(), range(100, 200))
    await beside(remits.create(), range(200, 300))
    for number in range(300, 350):
        add(number)
    await until(lambda: len(answers) == 350)
    kinds = [type(answer).__name__ for answer in answers]
    assert [kind for kind, _ in groupby(kinds)] == ["Done", "LogNotFound", "Done"]
    await remits.iterator("all")
    kept = kinds[::-1].index("LogNotFound")
    assert await remits.everything("all") == list(range(350 - kept, 350))
