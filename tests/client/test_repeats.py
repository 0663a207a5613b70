"""The client resends only requests that declare a repeat harmless. The default is not to."""

import asyncio
from typing import Final

import pytest

from penstock import model
from penstock.client.calls import Calls
from penstock.client.transport import PendingReply, Transport
from penstock.errors import Busy, ConnectionLost, OverLimit, PenstockError, StorageFull
from penstock.model import ANY, NEW, Append, ProducerMark, Repeat, Reply, Request
from tests.wire.samples import SAMPLES

MARK: Final = ProducerMark("p", 1)


PUBLIC: Final = [value for name, value in vars(model).items() if not name.startswith("_")]
KINDS: Final = [each for each in PUBLIC if isinstance(each, type) and issubclass(each, Request) and each is not Request]
ASKED: Final = [request for sample in SAMPLES for request in sample.requests]


class Losing(Transport):
    """Loses the answer to what it is sent first, and has no room for what comes after it."""

    url = "penstock://nowhere:1"

    def __init__(self) -> None:
        self.sent = 0

    async def ready(self, seconds: float) -> None:
        """It is, at once."""

    def start(self, request: Request) -> PendingReply:
        self.sent += 1
        answer: PendingReply = asyncio.get_running_loop().create_future()
        answer.set_exception(ConnectionLost(self.url, "cut") if self.sent == 1 else StorageFull("no room"))
        return answer

    def give_up(self, answer: PendingReply) -> None:
        """Nobody does."""

    async def close(self) -> None:
        """There is nothing to close."""


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_every_request_says_whether_a_repeat_is_harmless(kind: type[Request]) -> None:
    assert isinstance(vars(kind).get("repeat"), Repeat)
    assert (bool(kind.marked_by) or "is_marked" in vars(kind)) == (kind.repeat is Repeat.MARKED)


def test_what_says_nothing_is_not_repeated() -> None:
    class Silent(Request):
        pass

    assert not Silent().may_repeat()


def test_every_request_is_tried_here() -> None:
    assert set(map(type, ASKED)) == set(KINDS)


@pytest.mark.parametrize("request_", ASKED, ids=lambda request: type(request).__name__)
async def test_only_what_is_harmless_is_sent_again_and_only_a_read_is_told_why_it_was_refused(
    request_: Request,
) -> None:
    transport = Losing()
    with pytest.raises((ConnectionLost, StorageFull)) as caught:
        await Calls(transport, 60.0, retries=True).ask(request_, Reply)
    assert transport.sent == (2 if request_.may_repeat() else 1)
    assert isinstance(caught.value, StorageFull if request_.repeat is Repeat.READS else ConnectionLost)


@pytest.mark.parametrize(("expected", "mark", "may"), [(ANY, None, False), (ANY, MARK, True), (NEW, None, True)])
def test_an_append_is_repeated_where_the_store_knows_it_again(
    expected: int, mark: ProducerMark | None, may: bool
) -> None:
    assert Append("c", "s", (), expected, mark).may_repeat() is may


class Refusing(Losing):
    """Refuses the first requests, and notes how long the client pauses."""

    def __init__(self, *refusals: PenstockError) -> None:
        super().__init__()
        self.refusals = list(refusals)
        self.pauses: list[float] = []

    def start(self, request: Request) -> PendingReply:
        self.sent += 1
        answer: PendingReply = asyncio.get_running_loop().create_future()
        if self.refusals:
            answer.set_exception(self.refusals.pop(0))
        else:
            answer.set_result(model.Done())
        return answer

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)


def over_limit(retry_after_ms: int) -> OverLimit:
    return OverLimit(0, "eve", "requests_per_s_max", 1, retry_after_ms)


@pytest.mark.parametrize("retries", [True, False])
async def test_over_its_limit_a_client_pauses_for_as_long_as_the_server_says(retries: bool) -> None:
    transport = Refusing(over_limit(5000), over_limit(0), Busy(1))
    calls = Calls(transport, 60.0, retries=retries)
    if not retries:
        with pytest.raises(OverLimit):
            await calls.ask(model.GetStats(), Reply)
        assert transport.pauses == []
        return
    assert await calls.ask(model.GetStats(), Reply) == model.Done()
    told, *own = transport.pauses
    # What is longer: its own pauses, of milliseconds at first, or the one it is told.
    assert told == 5.0
    assert len(own) == 2
    assert all(0 < pause < 1 for pause in own)


async def test_a_client_does_not_pause_beyond_the_deadline_of_its_call() -> None:
    transport = Refusing(over_limit(5000))
    with pytest.raises(OverLimit) as caught:
        await Calls(transport, 4.0, retries=True).ask(model.GetStats(), Reply)
    assert caught.value.retry_after_ms == 5000
    assert (transport.sent, transport.pauses) == (1, [])
