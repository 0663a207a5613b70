"""What cannot be, and what goes wrong: each a named error that says what happened and whether to try again."""

import contextlib
import re
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any, Final

import pytest

import penstock
from penstock import ANY, Client
from penstock.client.sync import Portal
from penstock.errors import (
    AnswerMalformed,
    BadUrl,
    CannotConnect,
    DeadlinePassed,
    InvalidRequest,
    LimitExceeded,
    NotAppended,
    NotAStore,
    Retry,
    StoreInUse,
)
from tests.client.conftest import Connect, Way, end, url_of
from tests.client.fakes import COMMITTED, PATIENT_S, FakeMq, answering, silent
from tests.client.support import append_by, calls_of, numbers, one, some
from tests.gates.retries import free_port
from tests.gates.serving import Served

LONG_ENOUGH_S = 1.0
"""A deadline for what is sent before it and never answered."""

# ---------------------------------------------------------------- addresses


@pytest.mark.parametrize(
    "url",
    [
        "",
        "127.0.0.1:8472",
        "penstock",
        "penstock:",
        "penstock://",
        "penstock:///",
        "penstock://:8472",
        "penstock://host:port",
        "penstock://host:99999",
        "penstock://host:-1",
        "penstock://host:0",
        "penstock://host:8472/path",
        "penstock://host:8472?x=1",
        "penstock://host:8472#x",
        "penstock://user:secret@host:8472",
        "penstock://[::1",
        "zmq+tcp://",
        "zmq+tcp://host/x",
        "tcp://127.0.0.1:8471",
        "http://127.0.0.1:8470",
        "mysql://host/db",
        "sqlite:",
        "sqlite://",
        "sqlite:///",
        "sqlite://relative",
        None,
        8472,
        b"penstock://host",
        Path("/tmp"),
    ],
)
@pytest.mark.over("penstock")
def test_an_address_that_is_none_is_named(connect: Connect, url: Any) -> None:
    with pytest.raises(BadUrl) as caught:
        connect(url)
    assert caught.value.retry is Retry.NEVER
    assert "is no address of a Penstock" in str(caught.value)


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_server_that_is_down_is_said_to_be_at_once(way: Way, connect: Connect) -> None:
    with pytest.raises(CannotConnect, match="nothing was sent, so it is safe to try again") as caught:
        connect(f"{way.scheme}://127.0.0.1:{free_port()}", timeout=PATIENT_S)
    assert caught.value.retry is Retry.SAFE


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_host_that_does_not_exist_is_said_to(way: Way, connect: Connect) -> None:
    with pytest.raises(CannotConnect):
        connect(f"{way.scheme}://no-such-host.invalid", timeout=PATIENT_S)


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_host_may_have_several_addresses(way: Way, connect: Connect, url: str) -> None:
    client = connect(re.sub(r"127\.0\.0\.1", "localhost", url))
    assert client.stats().head >= 0


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_server_that_never_greets_cannot_be_connected_to(way: Way, connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises((CannotConnect, DeadlinePassed)):
        connect(f"{way.scheme}://127.0.0.1:{mute.getsockname()[1]}", timeout=0.3).stats()


@pytest.mark.over("penstock")
@pytest.mark.parametrize("gate", ["res", "http"])
def test_another_gate_than_the_one_asked_for_is_no_penstock(connect: Connect, served: Served, gate: str) -> None:
    address = re.sub(r"^\w+://", "", getattr(served, gate))
    client = connect(f"penstock://{address}", timeout=PATIENT_S)
    with pytest.raises(AnswerMalformed):
        client.stats()


@pytest.mark.over("zmq+tcp")
@pytest.mark.parametrize("gate", ["mq", "http"])
def test_another_gate_than_zeromq_cannot_be_connected_to(connect: Connect, served: Served, gate: str) -> None:
    with pytest.raises(CannotConnect):
        connect(f"zmq+tcp://{getattr(served, gate)}", timeout=2.0)


@pytest.mark.over("sqlite")
def test_what_is_no_store_is_not_opened(connect: Connect, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no directory")
    with pytest.raises((NotAStore, CannotConnect)):
        connect(f"sqlite:///{tmp_path / 'file'}")
    with pytest.raises((NotAStore, CannotConnect)):
        connect("sqlite:////proc/no/such/place")


@pytest.mark.over("sqlite")
def test_a_store_that_is_open_elsewhere_is_in_use(connect: Connect, url: str) -> None:
    first = connect(url)
    with pytest.raises(StoreInUse):
        connect(url)
    end(first)
    assert connect(url).stats().head == 0


# ---------------------------------------------------------------- sizes


@pytest.mark.parametrize("way_of_sending", ["append", "append_many", "transaction"])
def test_too_large_an_event_is_refused(client: Client, context: str, way_of_sending: str) -> None:
    events = [penstock.event("Large", bytes((8 << 20) + 1))]
    with pytest.raises((LimitExceeded, NotAppended)) as caught:
        append_by(way_of_sending, client, context, events)
    error = caught.value.__cause__ or caught.value
    assert isinstance(error, LimitExceeded)
    assert (error.limit, error.value, error.maximum) == ("event_bytes_max", (8 << 20) + 6, 8 << 20)
    assert error.retry is Retry.NEVER
    assert list(client.read_stream(context, "s")) == []


def test_too_many_events_in_a_commit_are_refused(client: Client, context: str) -> None:
    with pytest.raises(LimitExceeded) as caught:
        client.append(context, "s", [penstock.event("T")] * 10_001)
    assert (caught.value.limit, caught.value.value, caught.value.maximum) == ("commit_events_max", 10_001, 10_000)


def test_the_largest_event_passes(client: Client, context: str) -> None:
    body = bytes((8 << 20) - 5)
    client.append(context, "s", [penstock.event("Large", body)])
    assert client.read_event(context, "s", 1).body == body
    assert next(iter(client.read_all(context=context))).body == body


@pytest.mark.over("penstock", "zmq+tcp")
def test_what_no_server_takes_is_not_sent(way: Way, client: Client, context: str) -> None:
    limit, size = ("mq_message_bytes_max", 64 << 20) if way.scheme == "penstock" else ("res_frame_bytes_max", 16 << 20)
    with pytest.raises(LimitExceeded) as caught:
        client.append(context, "s", [penstock.event("Large", bytes(size + 1))])
    assert caught.value.limit == limit
    assert client.append(context, "s", one()).sequence == 1


# ---------------------------------------------------------------- times


TIMES: Final[dict[str, Callable[[Client, datetime], object]]] = {
    "event": lambda _client, time: penstock.event("T", time=time),
    "position_of": lambda client, time: client.position_of(time, context="c"),
    "subscription": lambda client, time: client.subscription("s", context="c", start=time),
    "Subscription.set": lambda client, time: client.subscription("s", context="c").set(time),
    "queue": lambda client, time: client.queue("c", "q", start=time),
    "Queue.reset": lambda client, time: client.queue("c", "q").reset(time),
    "Access.issue_token": lambda client, time: client.access.issue_token("p", expires=time),
}


@pytest.mark.over("penstock", both=True)
@pytest.mark.parametrize("name", TIMES)
def test_a_time_without_a_time_zone_is_refused(client: Client, name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        TIMES[name](client, datetime(2026, 11, 15, 6))  # noqa: DTZ001
    asked = "add tzinfo=UTC, or call .astimezone() if it is a local time"
    assert caught.value.reason == f"2026-11-15T06:00:00 has no time zone: {asked}"
    assert caught.value.field in ("time", "start", "expires")
    with pytest.raises(InvalidRequest, match="pass a datetime, such as"):
        TIMES[name](client, "2026-11-15")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequest, match="outside the years 1 to 9999 in UTC"):
        TIMES[name](client, datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=1))))


def test_a_time_of_any_time_zone_is_the_moment_that_it_is(client: Client, context: str) -> None:
    moment = datetime(2026, 11, 15, 6, tzinfo=UTC)
    first = client.append(context, "s", [penstock.event("T", time=moment)]).position
    for zone in (timezone(timedelta(hours=-7)), None):
        client.append(context, "s", [penstock.event("T", time=moment.astimezone(zone))])
        assert client.position_of(moment.astimezone(zone), context=context) == first
        assert client.position_of(moment.astimezone(zone) + timedelta(seconds=1), context=context) is None
    assert [event.timestamp for event in client.read_stream(context, "s")] == [moment] * 3


# ---------------------------------------------------------------- deadlines


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_deadline_leaves_the_outcome_unknown_once_it_was_sent(way: Way, connect: Connect) -> None:
    with silent(way.scheme) as url:
        client = connect(url)
        with pytest.raises(DeadlinePassed, match="it was sent, and the server may have carried it out") as caught:
            client.append("c", "s", one(), timeout=LONG_ENOUGH_S)
        assert (caught.value.seconds, caught.value.was_sent) == (LONG_ENOUGH_S, True)
        assert caught.value.retry is Retry.UNKNOWN
        with pytest.raises(NotAppended) as failed:
            client.append_many([("c", "s", one())] * 3, timeout=LONG_ENOUGH_S)
        assert isinstance(failed.value.__cause__, DeadlinePassed)
        assert failed.value.written == 0
        calls = calls_of(client)
        assert len(calls.transport._link.pending) <= 1  # the hello, if this server does not answer it
        end(client)


@pytest.mark.over("penstock")
def test_a_deadline_before_sending_says_that_nothing_was_done(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        client = connect(f"penstock://127.0.0.1:{deaf.getsockname()[1]}")
        with pytest.raises(DeadlinePassed) as caught:
            client.append("c", "s", [penstock.event("Large", bytes(32 << 20))], timeout=LONG_ENOUGH_S)
        assert caught.value.was_sent
        with pytest.raises(DeadlinePassed, match="nothing was sent, so it is safe to try again") as caught:
            client.append("c", "s", one(), timeout=0.2)
        assert not caught.value.was_sent
        assert caught.value.retry is Retry.SAFE
        end(client)


def test_no_time_at_all_is_too_little(client: Client, context: str) -> None:
    with pytest.raises(DeadlinePassed):
        client.append(context, "s", one(), timeout=0)
    with pytest.raises(DeadlinePassed):
        client.append(context, "s", one(), timeout=-1)
    # It may have been written or not; the client goes on.
    assert client.append(context, "t", one()).sequence == 1


@contextlib.contextmanager
def alarm(kill: Callable[[], None]) -> Iterator[None]:
    """Interrupt what is done meanwhile, in a moment. Wherever that is on a slow machine, it is inside of this."""
    timer = threading.Timer(0.3, kill)
    try:
        timer.start()
        yield
    finally:
        timer.join()


@pytest.mark.parametrize("scheme", ["penstock", "zmq+tcp"])
def test_an_interrupted_call_is_given_up_and_the_client_goes_on(scheme: str) -> None:
    with silent(scheme) as mute, penstock.connect(mute, timeout=PATIENT_S) as client:
        main = threading.get_ident()
        with pytest.raises(KeyboardInterrupt), alarm(lambda: signal.pthread_kill(main, signal.SIGINT)):
            client.append("c", "s", one())
        with pytest.raises(DeadlinePassed):
            client.append("c", "s", one(), timeout=0.1)


@pytest.mark.parametrize("scheme", ["penstock", "zmq+tcp"])
def test_following_can_be_interrupted(scheme: str, served: Served, context: str) -> None:
    with penstock.connect(url_of(served, scheme)) as client:
        main = threading.get_ident()
        with pytest.raises(KeyboardInterrupt), alarm(lambda: signal.pthread_kill(main, signal.SIGINT)):
            list(client.follow(context=context))
        assert client.append(context, "s", one()).sequence == 1


def test_an_interrupt_that_wakes_nobody_is_noticed_soon(served: Served, context: str) -> None:
    """As one does that comes in the moment before the wait begins: Python notes it, and nothing ends the wait."""
    with penstock.connect(f"penstock://{served.mq}") as client:
        alone = alarm(lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
        with pytest.raises(KeyboardInterrupt), alone:
            list(client.follow(context=context))


def test_an_interrupt_before_the_wait_leaves_no_step_behind(
    served: Served, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with penstock.connect(f"penstock://{served.mq}") as client:
        waits = iter([KeyboardInterrupt])
        result = Portal.result

        def interrupted(self: Portal, future: Any) -> Any:
            for error in waits:
                raise error
            return result(self, future)

        monkeypatch.setattr(Portal, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            list(client.follow(context=context))
        assert client.append(context, "s", one()).sequence == 1


def test_append_many_can_be_interrupted() -> None:
    with FakeMq(answering(COMMITTED, None)) as fake, penstock.connect(fake.url, timeout=PATIENT_S) as client:

        def commits() -> Any:
            for _ in range(3):
                yield "c", "s", one()
            fake.came.wait()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            client.append_many(commits())
        fake.answering = answering(COMMITTED)
        assert client.append("c", "s", one()).count == 1


# ---------------------------------------------------------------- many threads


@pytest.mark.parametrize("scheme", ["penstock", "zmq+tcp", "sqlite"])
def test_threads_may_share_a_client(scheme: str, served: Served, tmp_path: Path, context: str) -> None:
    urls = {"penstock": f"penstock://{served.mq}", "zmq+tcp": f"zmq+{served.res}", "sqlite": f"sqlite:///{tmp_path}"}
    failures: list[BaseException] = []
    with penstock.connect(urls[scheme]) as client:

        def work(name: str) -> None:
            try:
                for number in range(1, 26):
                    client.append(context, name, some(1, number), expected=number if number % 2 else ANY)
                    assert client.read_event(context, name, number).json() == number
                client.append_many((context, name, some(1, number)) for number in range(26, 51))
            except BaseException as error:  # noqa: BLE001 - told below
                failures.append(error)

        threads = [threading.Thread(target=work, args=(f"s-{number}",)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not failures, failures
        for number in range(8):
            assert numbers(client.read_stream(context, f"s-{number}")) == list(range(1, 51))


@pytest.mark.over("penstock", "zmq+tcp")
def test_a_request_that_cannot_be_put_into_words_leaves_nobody_waiting(client: Client, context: str) -> None:
    for stream, kind in (("\ud800", "T"), ("s", "\ud800")):
        with pytest.raises(InvalidRequest):
            client.append(context, stream, [penstock.event(kind)])
    assert len(calls_of(client).transport._link.pending) == 0
