"""Replays for tests: of one source, into a store or through its queue."""

from pathlib import Path
from typing import Any

import penstock
from penstock.interchange.exporter import Selection
from penstock.interchange.replay import Replay, ReplayRequest, open_replay
from penstock.interchange.replay_targets import IntoStreams, ThroughQueue
from penstock.model import Event
from penstock.testing import Server

EVENTS = 40
PIECE = 6


class Never:
    """Nobody ends a replay."""

    is_set = False

    def wait(self, _seconds: float) -> bool:
        return True


class Soon:
    """Ends a replay after so many looks."""

    def __init__(self, looks: int) -> None:
        self._looks = looks

    @property
    def is_set(self) -> bool:
        self._looks -= 1
        return self._looks < 0

    def wait(self, _seconds: float) -> bool:
        return True


def ignore(_replay: Replay) -> None:
    """Show no progress."""


def into(source: Server, store: Server, context: str, tmp_path: Path, **more: Any) -> ReplayRequest:
    selection = Selection("shop", **more.pop("selection", {}))
    target = IntoStreams(store.url, context, **more.pop("places", {}))
    return ReplayRequest(source.url, selection, target, folder=tmp_path, **more)


def through(source: Server, tmp_path: Path, **more: Any) -> ReplayRequest:
    return ReplayRequest(
        source.url, Selection(**more.pop("selection", {})), ThroughQueue("mail"), folder=tmp_path, **more
    )


def finish(wanted: ReplayRequest) -> Replay:
    with open_replay(wanted) as replay:
        assert replay.run(Never(), ignore)
        return replay


def same(event: Event) -> tuple[object, ...]:
    return event.stream, event.id, event.stamp, event.type, event.headers, event.body


def history(own: Server, context: str) -> list[tuple[object, ...]]:
    with penstock.connect(own.url) as client:
        return [same(event) for event in client.read_all(context=context)]


def consumed(own: Server) -> list[int]:
    """Take and acknowledge all that the queue hands out; the numbers in it."""
    with penstock.connect(own.url) as client:
        queue = client.queue("shop", "mail", count=1000)
        found: list[int] = []
        while batch := queue.take():
            found += [event.json()["number"] for event in batch]
            queue.acknowledge(batch)
        return found
