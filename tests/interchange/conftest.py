"""A history to replay, and a store to replay it into."""

from collections.abc import Iterator

import pytest

import penstock
from penstock.interchange.replay_targets import QueueTarget, StreamsTarget
from penstock.testing import Server, server
from tests.interchange.replays import EVENTS, PIECE


@pytest.fixture(scope="module")
def source() -> Iterator[Server]:
    with server() as own, penstock.connect(own.url) as client:
        for number in range(EVENTS):
            event = penstock.event("Even" if number % 2 == 0 else "Odd", {"number": number})
            client.append("shop", f"order-{number % 5}", [event])
            client.append("else", "s", [event])
        queue = client.queue("shop", "mail", count=1000)
        queue.acknowledge(queue.take())
        yield own


@pytest.fixture(scope="module")
def store() -> Iterator[Server]:
    with server() as own:
        yield own


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(StreamsTarget, "events_max", PIECE)
    monkeypatch.setattr(QueueTarget, "events_max", PIECE)
