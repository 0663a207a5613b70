"""The client resends only requests that declare a repeat harmless. The default is not to."""

import asyncio
from typing import Final

import pytest

from penstock import model
from penstock.client.calls import Calls
from penstock.client.transport import PendingReply, Transport
from penstock.errors import ConnectionLost, StorageFull
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
