"""Servers that answer wrongly, or not at all: what is tried again, and what is told at once."""

import itertools
import random
import socket
import threading
import time
from collections.abc import Callable

import pytest

from penstock import ANY
from penstock.client import calls
from penstock.errors import (
    AnswerMalformed,
    CannotConnect,
    ConnectionLost,
    DeadlinePassed,
    EventNotFound,
    InvalidRequest,
    LimitExceeded,
    NotAppended,
    PenstockError,
    ReaderTimeout,
    Refused,
    Retry,
    StorageFull,
    VersionConflict,
    WriterBusy,
)
from tests.client.conftest import Connect, end
from tests.client.fakes import COMMITTED, PATIENT_S, FakeMq, Fields, answering
from tests.client.support import append_by, one, some

# ---------------------------------------------------------------- answers


@pytest.mark.over("penstock")
@pytest.mark.parametrize(("code", "retry"), [(b"2", Retry.NEVER), (b"3", Retry.NEVER), (b"77", Retry.UNKNOWN)])
def test_a_server_of_another_version_is_heard(connect: Connect, code: bytes, retry: Retry) -> None:
    with FakeMq(answering([b"ER", code, b"no such thing here"])) as fake:
        client = connect(fake.url, timeout=PATIENT_S)
        with pytest.raises(Refused, match="no such thing here") as caught:
            client.append("c", "s", one())
        assert (caught.value.code, caught.value.retry) == (int(code), retry)
        assert len(fake.asked) == 1


@pytest.mark.over("penstock")
@pytest.mark.parametrize(
    "answer", [[], [b"XX"], [b"CF"], [b"CF", b"short", b"1", b"1", b"1", b"0"], [*COMMITTED, b"more"], [b"ER", b"x"]]
)
def test_an_answer_that_makes_no_sense_is_said_to(connect: Connect, answer: Fields) -> None:
    with FakeMq(answering(answer, COMMITTED)) as fake:
        client = connect(fake.url, timeout=PATIENT_S)
        with pytest.raises(AnswerMalformed, match="may have carried") as caught:
            client.append("c", "s", one())
        assert caught.value.retry is Retry.UNKNOWN
        assert client.append("c", "s", one()).position == 1


@pytest.mark.over("penstock")
def test_bytes_that_are_no_answer_end_the_connection(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def junk() -> None:
            for what in (b"\x99", b"\x03\x04\x00PEN1", b"\x02\x05\x00PEN1L\x03\x01\x00x", b"\x03\x01\x00?"):
                accepted, _ = listener.accept()
                with accepted:
                    asked = b""
                    # A hello comes first.
                    while b"GS" not in asked:
                        asked += accepted.recv(1000)
                    accepted.sendall(what)
                    while accepted.recv(1000):
                        pass

        thread = threading.Thread(target=junk)
        thread.start()
        client = connect(f"penstock://127.0.0.1:{listener.getsockname()[1]}", timeout=PATIENT_S)
        for _ in range(4):
            with pytest.raises(AnswerMalformed):
                client.stats()
        thread.join()


@pytest.mark.over("penstock")
def test_what_passes_is_waited_for(connect: Connect) -> None:
    with FakeMq(answering(WriterBusy(5), ReaderTimeout(3), WriterBusy(5), COMMITTED)) as fake:
        assert connect(fake.url, timeout=PATIENT_S).append("c", "s", one()).position == 1
        assert len(fake.asked) == 4
        # It is the same append each time, with the same mark.
        assert len({tuple(fields[2:4]) for fields in fake.asked}) == 1


@pytest.mark.over("penstock")
@pytest.mark.parametrize(
    "error",
    [VersionConflict("c", "s", 1, 2), EventNotFound("c", "s", 1), StorageFull("no room"), LimitExceeded("x", 2, 1)],
)
def test_what_does_not_pass_is_told_at_once(connect: Connect, error: PenstockError) -> None:
    with FakeMq(answering(error)) as fake:
        with pytest.raises(type(error)) as caught:
            connect(fake.url, timeout=PATIENT_S).append("c", "s", one())
        assert str(caught.value) == str(error)
        assert len(fake.asked) == 1


@pytest.mark.over("penstock")
def test_what_is_busy_to_the_end_is_told_as_that(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    # A few short pauses, and one that would last beyond the end.
    factors = itertools.chain([1.0] * 3, itertools.repeat(2 * PATIENT_S / calls.PAUSE_S_MIN))
    monkeypatch.setattr(random, "uniform", lambda low, high: next(factors))
    with FakeMq(answering(WriterBusy(5))) as fake:
        with pytest.raises(WriterBusy, match="nothing was done, try again later"):
            connect(fake.url).append("c", "s", one(), timeout=PATIENT_S)
        assert len(fake.asked) == 4


@pytest.mark.over("penstock")
def test_nothing_is_tried_that_there_is_no_time_for(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeMq(answering(WriterBusy(5))) as fake:
        client = connect(fake.url, timeout=PATIENT_S)
        with monkeypatch.context() as patch:
            patch.setattr(calls, "ATTEMPT_S_MIN", 2 * PATIENT_S)
            with pytest.raises(WriterBusy, match="nothing was done"):
                client.append("c", "s", one())
        assert len(fake.asked) == 1

        async def oversleeping(*_: object) -> None:
            monkeypatch.setattr(calls, "ATTEMPT_S_MIN", 2 * PATIENT_S)

        monkeypatch.setattr(calls.Calls, "pause", oversleeping)
        with pytest.raises(WriterBusy, match="nothing was done"):
            client.append("c", "s", one())
        assert len(fake.asked) == 2


@pytest.mark.over("penstock")
def test_without_retries_nothing_is_tried_again_or_marked(connect: Connect) -> None:
    with FakeMq(answering(WriterBusy(5), COMMITTED)) as fake:
        client = connect(fake.url, retries=False)
        with pytest.raises(WriterBusy):
            client.append("c", "s", one())
        client.append("c", "s", one())
        assert client.append_many([("c", "s", one())]).commits == 1
        assert [fields[2:4] for fields in fake.asked] == [[b"", b""]] * 3


# ---------------------------------------------------------------- connections that end


def dropping(times: int) -> Callable[[Fields], Fields]:
    """Loses so many connections instead of answering."""
    left = times

    def answer(_: Fields) -> Fields:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ConnectionAbortedError
        return COMMITTED

    return answer


@pytest.mark.over("penstock")
def test_a_marked_append_is_sent_again_when_a_connection_is_lost(connect: Connect) -> None:
    with FakeMq(dropping(3)) as fake:
        assert connect(fake.url, timeout=PATIENT_S).append("c", "s", one()).count == 1
        assert len({tuple(fields[2:]) for fields in fake.asked}) == 1
        assert len(fake.asked) == 4


@pytest.mark.over("penstock")
def test_a_long_poll_that_is_sent_again_waits_for_the_rest_of_its_time(connect: Connect) -> None:
    def lose_the_first(_: Fields) -> PenstockError:
        if len(fake.asked) == 1:
            time.sleep(0.1)
            raise ConnectionAbortedError
        return InvalidRequest("position", "is odd")

    with FakeMq(lose_the_first) as fake:
        with pytest.raises(InvalidRequest, match="odd"):
            connect(fake.url, timeout=PATIENT_S).read_page(7, wait=60.0)
        first, second = ({int(field) for field in fields if field.isdigit()} for fields in fake.asked)
    assert max(first) == 60_000
    assert max(second) <= 59_900


@pytest.mark.over("penstock")
@pytest.mark.parametrize("method", ["append", "append_many", "transaction"])
def test_without_retries_a_lost_connection_is_told(connect: Connect, method: str) -> None:
    with FakeMq(dropping(1)) as fake:
        client = connect(fake.url, retries=False)
        with pytest.raises((ConnectionLost, NotAppended)) as caught:
            append_by(method, client, "c", one())
        error = caught.value.__cause__ if isinstance(caught.value, NotAppended) else caught.value
        assert isinstance(error, ConnectionLost)
        assert error.retry is Retry.UNKNOWN
        assert "may have carried" in str(caught.value)
        assert client.append("c", "s", one(), expected=ANY).count == 1


@pytest.mark.over("penstock")
def test_a_message_that_a_server_does_not_take_is_not_sent_again(connect: Connect) -> None:
    with FakeMq(answering(COMMITTED), message_bytes_max=10_000) as fake:
        client = connect(fake.url, timeout=PATIENT_S)
        with pytest.raises(Refused, match="none so large"):
            client.append("c", "s", one(b"x" * 20_000))
        assert client.append("c", "s", one()).count == 1


@pytest.mark.over("penstock")
def test_a_server_with_too_many_connections_is_waited_for(connect: Connect) -> None:
    with FakeMq(answering(COMMITTED), connections_max=1) as fake:
        first = connect(fake.url)
        first.append("c", "s", one())
        second = connect(fake.url)
        # What was sent before the refusal is read may make the system forget the refusal.
        with pytest.raises((CannotConnect, DeadlinePassed)):
            second.append("c", "s", one(), timeout=0.2)
        end(first)
        assert second.append("c", "s", one(), timeout=PATIENT_S).count == 1


@pytest.mark.over("penstock")
def test_commits_that_were_overtaken_are_not_sent_again(connect: Connect) -> None:
    with FakeMq(answering(COMMITTED, WriterBusy(9), COMMITTED)) as fake:
        client = connect(fake.url, timeout=PATIENT_S)
        commits = [("c", "s", some(1, number)) for number in range(4)]
        with pytest.raises(NotAppended) as caught:
            client.append_many(commits)
        assert isinstance(caught.value.__cause__, WriterBusy)
        assert (caught.value.index, caught.value.written) == (1, 3)
    with FakeMq(answering(COMMITTED, WriterBusy(9), COMMITTED)) as fake:
        commits = [("c", f"s-{number}", some(1, number)) for number in range(4)]
        assert connect(fake.url, timeout=PATIENT_S).append_many(commits).commits == 4
        assert len(fake.asked) == 5
