"""The connection of the plain client: threads that share it, interrupts, deadlines, silence, servers that restart."""

import errno
import gc
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import Client
from penstock.client import AsyncClient, blocking, stream
from penstock.client.blocking import BlockingLink, BlockingTransport
from penstock.client.sync import Direct, Portal
from penstock.client.transport import LIMITS
from penstock.errors import CannotConnect, ClientClosed, ConnectionLost, DeadlinePassed, InvalidRequest, PenstockError
from penstock.model import ANY, Append, GetStats
from penstock.wire.mqframe import PING, Parser, encode
from penstock.wire.res01.dialects import OWN_TAG
from penstock.wire.res01.messages import OWN_LARGE_TAG, join_fields, split_fields
from tests.client.fakes import COMMITTED, PATIENT_S, FakeMq, Fields, answering
from tests.client.support import calls_of, numbers, one, some
from tests.gates.retries import Mortal, Worker
from tests.gates.serving import Served, until
from tests.seeds import rng


@pytest.fixture
def plain(served: Served) -> Iterator[Client]:
    with penstock.connect(f"penstock://{served.mq}") as client:
        yield client


def link_of(client: Client) -> Any:
    return calls_of(client).transport._link


# ---------------------------------------------------------------- threads


def test_answers_go_to_the_threads_that_asked(plain: Client, context: str) -> None:
    """Small answers and long ones, of which each comes in many pieces."""
    sizes = [10, 1000, 20_000, 300_000]
    for number, size in enumerate(sizes * 2):
        plain.append(context, f"s-{number}", [penstock.event("Sized", b"%d" % number * size)])

    def read(number: int) -> None:
        for _ in range(30):
            event = plain.read_event(context, f"s-{number}", 1)
            assert (event.stream, event.body) == (f"s-{number}", b"%d" % number * sizes[number % 4])

    workers = [Worker(lambda number=number: read(number)) for number in range(8)]  # type: ignore[misc]
    for worker in workers:
        worker.finish()
    assert len(link_of(plain).pending) == 0


def test_a_long_poll_does_not_hold_up_other_threads(plain: Client, context: str) -> None:
    """The thread with the long poll reads for the others as well."""
    taken: list[int] = []

    def consume() -> None:
        taken.extend(numbers(plain.queue(context, "work", filter="wanted").take(wait=PATIENT_S)))

    waiting = [Worker(consume)]
    until(lambda: len(link_of(plain).pending) == 1)
    for number in range(1, 51):
        assert plain.append(context, "other", some(1, number)).sequence == number
    assert waiting[0].is_alive()
    plain.append(context, "wanted", some(1, 7))
    waiting[0].finish()
    assert taken == [7]


def test_another_thread_reads_when_the_one_that_read_has_its_answer(plain: Client, context: str) -> None:
    polls = [Worker(lambda wait=wait: plain.read_page(context=context, wait=wait)) for wait in (0.2, 0.4, PATIENT_S)]  # type: ignore[misc]
    until(lambda: len(link_of(plain).pending) == 3)
    polls[0].finish()
    polls[1].finish()
    plain.append(context, "s", one())
    polls[2].finish()


def test_a_thread_that_gives_up_leaves_the_reading_to_another() -> None:
    with FakeMq(lambda _: None) as fake, penstock.connect(fake.url, timeout=PATIENT_S) as client:

        def give_up() -> None:
            with pytest.raises(DeadlinePassed):
                client.append("c", "s", one(), timeout=0.5)

        # The one with the short deadline reads first.
        short = Worker(give_up)
        until(lambda: len(fake.asked) == 1)
        patient = Worker(lambda: client.append("c", "s", one()))
        until(lambda: len(fake.asked) == 2)
        short.finish()
        answer_to(fake, fake.asked[1])
        patient.finish()


def answer_to(fake: FakeMq, asked: Fields) -> None:
    """Answer a request later than it came."""

    async def send() -> None:
        for session in fake._server._sessions.values():
            session.send([b"PEN1", asked[1], *COMMITTED])

    fake._portal.run(send())


# ---------------------------------------------------------------- closing


def test_closing_tells_the_thread_that_reads_and_those_that_sleep() -> None:
    told: list[BaseException] = []
    with FakeMq(lambda _: None) as fake:
        client = penstock.connect(fake.url, timeout=PATIENT_S)

        def work(call: Callable[[], object]) -> None:
            try:
                call()
            except PenstockError as error:
                told.append(error)

        calls: list[Callable[[], object]] = [lambda: client.append("c", "s", one())] * 3 + [client.stats] * 3
        threads = [threading.Thread(target=work, args=(call,)) for call in calls]
        for thread in threads:
            thread.start()
        until(lambda: len(fake.asked) == 6)
        client.close()
        for thread in threads:
            thread.join(30)
        assert sorted(type(error).__name__ for error in told) == ["ClientClosed"] * 3 + ["ConnectionLost"] * 3
        until(lambda: fake.sessions == 0)


def test_a_forked_child_can_neither_call_nor_read_ahead(served: Served, context: str) -> None:
    with penstock.connect(f"penstock://{served.mq}") as client:
        client.append(context, "s", one())
        before = link_of(client)
        child = os.fork()
        if not child:
            code = 1
            try:
                for use in (client.stats, lambda: list(client.read_all(context=context))):
                    with pytest.raises(ClientClosed):
                        use()
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.append(context, "s", one()).sequence == 2
        assert link_of(client) is before


def test_a_client_that_nobody_closes_can_be_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LIMITS", replace(LIMITS, ping_ms=50))
    before = set(threading.enumerate())
    with FakeMq(answering(COMMITTED)) as fake:
        started = set(threading.enumerate()) - before
        client = penstock.connect(fake.url)
        (pings,) = set(threading.enumerate()) - before - started
        assert client.append("c", "s", one()).count == 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            del client
            gc.collect()
        until(lambda: fake.sessions == 0)
        until(lambda: not pings.is_alive())


# ---------------------------------------------------------------- interrupts


class Interrupted(BaseException):
    """As KeyboardInterrupt, which would end the test run."""


@contextmanager
def alarms() -> Iterator[Callable[[float], object]]:
    """A function that interrupts this thread after so many seconds."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# An interrupt may come after a coroutine or a socket was made and before any code has hold of it: in Python 3.11 when
# `method(*args)` returns, and inside `socket.__init__`. Python closes what is dropped there, and warns. No `try` helps.
@pytest.mark.skipif(sys.gettrace() is not None, reason="an interrupt inside coverage's tracer leaves its lock taken")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_interrupts_at_any_moment_mix_nothing_up(plain: Client, context: str) -> None:
    """The interrupted call may have been written or not. All others get their own answers, in both threads."""
    dice = rng("interrupts of calls")
    over = threading.Event()
    other: list[int] = []

    def work() -> None:
        while not over.is_set():
            number = len(other) + 1
            assert plain.append(context, "other", some(1, number)).sequence == number
            assert plain.read_event(context, "other", number).json() == number
            other.append(number)

    worker = Worker(work)
    interrupted = 0
    written: dict[int, int] = {}
    began = time.monotonic()
    try:
        with alarms() as alarm:
            for number in range(100_000):
                try:
                    alarm(dice.uniform(0.0001, 0.01))
                    while True:
                        appended = plain.append(context, "s", some(1, number))
                        written[appended.sequence] = number
                        number += 100_000  # noqa: PLW2901
                except Interrupted:
                    interrupted += 1
                if interrupted >= 300 and time.monotonic() - began > 1:
                    break
        until(lambda: len(other) > 10)
    finally:
        over.set()
        worker.finish()
    found = numbers(plain.read_stream(context, "s"))
    assert all(found[sequence - 1] == number for sequence, number in written.items())
    assert len(found) - len(written) <= interrupted
    assert numbers(plain.read_stream(context, "other")) == list(range(1, len(other) + 1))


@pytest.mark.over("penstock", "zmq+tcp")
def test_an_interrupt_right_after_connecting_leaves_no_connection(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[AsyncClient] = []
    for runner in (Direct, Portal):
        run = runner.run

        def interrupted_run(self: Any, work: Any, run: Any = run) -> Any:
            result = run(self, work)
            if isinstance(result, AsyncClient):
                opened.append(result)
                raise Interrupted
            return result

        monkeypatch.setattr(runner, "run", interrupted_run)
    before = set(threading.enumerate())
    with pytest.raises(Interrupted):
        penstock.connect(url)
    (client,) = opened
    until(lambda: set(threading.enumerate()) <= before)
    transport: Any = client._calls.transport
    with pytest.raises(ClientClosed):
        client._calls.check()
    assert transport._link is None or not transport._link.is_open()


def test_a_signal_handler_can_close_the_client_of_the_call_it_interrupts_but_not_call_it() -> None:
    """Its call would wait for an answer that the interrupted call has to read."""
    told: list[Exception] = []
    with FakeMq(lambda _: None) as fake, penstock.connect(fake.url, timeout=PATIENT_S) as client:

        def handle(*_: object) -> None:
            try:
                client.append("c", "s", one())
            except PenstockError as error:
                told.append(error)
            client.close()

        before = signal.signal(signal.SIGUSR1, handle)
        main = threading.get_ident()

        def interrupt() -> None:
            fake.came.wait()
            signal.pthread_kill(main, signal.SIGUSR1)

        try:
            Worker(interrupt)
            with pytest.raises(ConnectionLost, match="the client was closed"):
                client.append("c", "s", one())
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert [str(error) for error in told] == [str(blocking.nested_error())]
        assert len(fake.asked) == 1


def test_a_signal_handler_cannot_call_a_client_that_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Exception] = []
    with FakeMq(answering(COMMITTED)) as fake, penstock.connect(fake.url, timeout=PATIENT_S) as client:
        attempt = BlockingTransport._attempt

        def interrupted_attempt(*arguments: Any) -> BlockingLink:
            with pytest.raises(InvalidRequest, match="signal handler") as caught:
                client.append("c", "s", one())
            told.append(caught.value)
            return attempt(*arguments)

        monkeypatch.setattr(BlockingTransport, "_attempt", interrupted_attempt)
        link_of(client).close()
        assert client.append("c", "s", one()).count == 1
        assert len(told) == len(fake.asked) == 1


@pytest.mark.parametrize("by", ["call", "ping"])
def test_nothing_follows_half_a_message(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The interrupt comes when the system has taken a part. Others are faster than the interrupted call's clean-up."""
    half_sent, others_done = threading.Event(), threading.Event()
    with FakeMq(answering(COMMITTED)) as fake, penstock.connect(fake.url, retries=False) as client:
        link = link_of(client)
        send, leave = link._stream.send, link._leave
        sent: list[bytes] = []

        def interrupted_send(data: bytes) -> int:
            sent.append(bytes(data))
            if not half_sent.is_set():
                send(memoryview(data)[: len(data) // 2])
                half_sent.set()
                raise Interrupted
            return int(send(data))

        def late_leave(waiter: blocking.Waiter) -> None:
            if threading.current_thread() is not threading.main_thread():
                others_done.wait()
            leave(waiter)

        def interrupted_append() -> None:
            with pytest.raises(Interrupted):
                client.append("c", "s", one())

        monkeypatch.setattr(link._stream, "send", interrupted_send)
        monkeypatch.setattr(link, "_leave", late_leave)
        worker = Worker(interrupted_append)
        half_sent.wait()
        if by == "call":
            with pytest.raises(CannotConnect, match="in the middle of a message"):
                client.append("c", "s", one())
        else:
            link._send(PING)
        assert len(sent) == 1
        others_done.set()
        worker.finish()
        assert client.append("c", "s", one()).count == 1
        assert len(fake.asked) == 1


# ---------------------------------------------------------------- hosts with several addresses


@pytest.mark.parametrize("first", ["takes nothing", "timed out", "has no such family"])
def test_another_address_of_a_host_is_tried(first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.2", 0), backlog=0) as deaf, ExitStack() as callers:
        if first == "takes nothing":
            # The system drops what comes when its queue is full.
            for _ in range(2):
                caller = callers.enter_context(socket.socket())
                caller.setblocking(False)
                caller.connect_ex(deaf.getsockname())
        elif first == "timed out":
            connect = stream._connect

            def timed_out(candidate: socket.socket, address: Any, *others: Any) -> None:
                if address == deaf.getsockname():
                    raise OSError(errno.ETIMEDOUT, "timed out")
                connect(candidate, address, *others)

            monkeypatch.setattr(stream, "_connect", timed_out)
        family = socket.AF_APPLETALK if first == "has no such family" else socket.AF_INET
        with FakeMq(answering(COMMITTED)) as fake:
            working = ("127.0.0.1", int(fake.url.rpartition(":")[2]))
            found = [
                (family, socket.SOCK_STREAM, 0, "", deaf.getsockname()),
                (socket.AF_INET, socket.SOCK_STREAM, 0, "", working),
            ]
            monkeypatch.setattr(stream, "_addresses", lambda *_: found)
            with penstock.connect("penstock://somewhere", timeout=2, retries=False) as client:
                assert client.append("c", "s", one()).count == 1


# ---------------------------------------------------------------- servers that go and come


@pytest.mark.parametrize("ending", ["kill", "restart"])
def test_a_server_that_went_and_came_between_two_calls_leaves_no_doubt(tmp_path: Path, ending: str) -> None:
    with (
        Mortal(tmp_path / "data") as mortal,
        penstock.connect(mortal.url("penstock"), retries=False, timeout=PATIENT_S) as client,
    ):
        assert client.append("c", "s", one()).sequence == 1
        for sequence in (2, 3):
            getattr(mortal, ending)()
            assert client.append("c", "s", one()).sequence == sequence


def test_a_connection_that_cannot_send_gets_no_new_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next call connects anew. A call that still waits for its answer on the old one is in doubt."""
    with (
        FakeMq(answering(None, COMMITTED)) as fake,
        penstock.connect(fake.url, retries=False, timeout=PATIENT_S) as client,
    ):
        before = link_of(client)

        def wait() -> None:
            with pytest.raises(ConnectionLost):
                client.append("c", "s", one())

        waiting = Worker(wait)
        until(lambda: len(fake.asked) == 1)

        def fail(_: bytes) -> int:
            raise BrokenPipeError

        monkeypatch.setattr(before._stream, "send", fail)
        before._send(PING)
        with pytest.raises(CannotConnect):
            before.exchange(GetStats(), time.monotonic() + PATIENT_S)
        assert client.append("c", "s", one()).count == 1
        assert link_of(client) is not before
        waiting.finish()


# ---------------------------------------------------------------- requests that are sent in part


def take_appends(listener: socket.socket, got: list[int], before_reading: Callable[[], object]) -> None:
    """A server for one connection, which reads as slowly as it is told. Adds the lengths of bodies to `got`."""
    accepted, _ = listener.accept()
    parser = Parser(250_000, 1 << 30)
    with accepted:
        before_reading()
        while data := accepted.recv(1 << 16):
            for tag, *rest in parser.receive(data):
                fields = split_fields(rest) if tag == OWN_LARGE_TAG else rest
                if fields[0] == b"AB":
                    got.append(len(fields[-1]))
                    answer = [fields[1], *COMMITTED]
                    accepted.sendall(encode([tag, join_fields(answer)] if tag == OWN_LARGE_TAG else [tag, *answer]))
            before_reading()


def test_the_rest_of_a_request_is_sent_when_its_caller_has_given_up() -> None:
    """What the server does not take before the deadline goes out with the next call, on the same connection."""
    read_on = threading.Event()
    got: list[int] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Worker(lambda: take_appends(listener, got, read_on.wait))
        with penstock.connect(f"penstock://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENT_S) as client:
            before = link_of(client)
            with pytest.raises(DeadlinePassed) as caught:
                client.append("c", "s", [penstock.event("Large", bytes(32 << 20))], timeout=0.3)
            assert caught.value.was_sent
            others = [Worker(lambda: client.append("c", "s", [penstock.event("T", b"small")])) for _ in range(3)]
            read_on.set()
            for other in others:
                other.finish()
            assert client.append("c", "s", [penstock.event("T", b"last")]).count == 1
            assert link_of(client) is before
        server.finish()
    assert got == [32 << 20, 5, 5, 5, 4]


def test_an_answer_is_noticed_while_bytes_wait_to_be_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "NOTICE_S_MAX", PATIENT_S)
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        url = f"penstock://127.0.0.1:{listener.getsockname()[1]}"
        link = link_of(stack.enter_context(penstock.connect(url, retries=False)))
        accepted = stack.enter_context(listener.accept()[0])

        def append(size: int) -> Worker:
            event = penstock.event("Sized", bytes(size))
            return Worker(lambda: link.exchange(Append("c", "s", (event,), ANY), time.monotonic() + PATIENT_S))

        leader = append(1)
        until(lambda: len(link.pending) == 1)
        large = append(32 << 20)
        until(lambda: len(link._out) > 0)
        waiting = append(1)
        until(lambda: len(link.pending) == 3)
        for worker, number in ((waiting, b"3"), (large, b"2"), (leader, b"1")):
            # This server answers what it has not read.
            accepted.sendall(encode([OWN_TAG, number, *COMMITTED]))
            worker.join(30)
            assert not worker.is_alive()
            worker.finish()


# ---------------------------------------------------------------- silence


def test_a_client_that_is_not_used_stays_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LIMITS", replace(LIMITS, ping_ms=50))
    with FakeMq(answering(COMMITTED), idle_ms_max=400) as fake, penstock.connect(fake.url) as client:
        until(lambda: fake.sessions == 1)
        until(lambda: fake._server.sessions()[0].age > 2)
        before = link_of(client)
        assert client.append("c", "s", one()).count == 1
        assert link_of(client) is before


def test_a_client_that_was_cut_off_for_its_silence_connects_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LIMITS", replace(LIMITS, ping_ms=3_600_000))
    with FakeMq(answering(COMMITTED), idle_ms_max=200) as fake, penstock.connect(fake.url, retries=False) as client:
        until(lambda: fake.sessions == 1)
        until(lambda: fake.sessions == 0)
        assert client.append("c", "s", one()).count == 1


def test_a_server_that_answers_no_pings_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LIMITS", replace(LIMITS, ping_ms=50, idle_ms_max=200))
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        penstock.connect(f"penstock://127.0.0.1:{mute.getsockname()[1]}", retries=False) as client,
        pytest.raises(ConnectionLost, match="time out"),
    ):
        client.append("c", "s", one(), timeout=PATIENT_S)


def test_an_upload_that_takes_long_is_not_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocking, "LIMITS", replace(LIMITS, ping_ms=50, idle_ms_max=500))
    slow_until = time.monotonic() + 2
    got: list[int] = []

    def pause() -> None:
        if time.monotonic() < slow_until:
            time.sleep(0.01)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        server = Worker(lambda: take_appends(listener, got, pause))
        url = f"penstock://127.0.0.1:{listener.getsockname()[1]}"
        with penstock.connect(url, retries=False, timeout=PATIENT_S) as client:
            link_of(client)._stream._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
            client.append("c", "s", [penstock.event("Large", bytes(32 << 20))])
        server.finish()
    assert got == [32 << 20]
