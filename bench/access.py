"""What principals cost: the same work at an open store, and at one where clients show a token of a narrow principal.

Each request is checked against the grants, and reads leave out what the principal may not see. The history is one that
it sees all of, so that both sides do the same.
"""

import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import penstock
from bench import load, mqgate, pairs, remits, res01
from bench.report import Report
from penstock.engine.access import authorize
from penstock.model import ANY, Append, Grant, Limits, Principal, Right
from penstock.model.access import GRANTS_MAX
from penstock.store import store_url

ROUNDS: Final = 15
HISTORY_EVENTS: Final = 400_000
STREAMS: Final = 8
"""Of each of 64 connections: 512 together."""
NARROW: Final = "narrow"
CONTEXT: Final = "context"
SCOPES: Final = "scopes"
GRANTS: Final = {
    NARROW: ("read,append:billing", "append:bench/stream-*", "append:log:log-*"),
    CONTEXT: ("read,append:bench",),
    SCOPES: ("read:billing", "read:bench/stream-*", "read:shop/order-*"),
}
GOAL: Final = 95
CHECKS: Final = 20_000


class Side(NamedTuple):
    gates: dict[str, str]
    tokens: dict[str, str]
    """By principal; none if the store is open."""

    def port(self, gate: str) -> int:
        return load.port_of(self.gates[gate])

    def over_mq(self, principal: str) -> load.Connect:
        return mqgate.over_mq(self.tokens.get(principal))


def run(report: Report, data: Path, scale: float) -> None:
    """The checks alone; then appends, adds, HTTP requests and reads."""
    _checks(report)
    closed = load.fresh(data)
    tokens = _closed(closed)
    seconds, events = max(0.4, scale), int(HISTORY_EVENTS * scale)
    with load.server(load.fresh(data)) as open_gates, load.server(closed) as closed_gates:
        sides = {
            "open": (int(open_gates["pid"]), Side(open_gates, {})),
            "token": (int(closed_gates["pid"]), Side(closed_gates, tokens)),
        }
        for _, side in sides.values():
            mqgate.fill(side.port("mq"), events, side.over_mq(CONTEXT))
        works: dict[str, Callable[[Side], float]] = {
            "zeromq, 64 clients x 1 event": lambda side: res01.appending(
                side.gates["res"], 64, 1, seconds, token=side.tokens.get(NARROW), streams=STREAMS
            ),
            "mq, 64 connections x 1 event": lambda side: _appending(side, 64, 1, 1, seconds),
            "mq, 64 connections x 16 in flight x 1 event": lambda side: _appending(side, 64, 16, 1, seconds),
            "mq, 1 connection x 1,000 events": lambda side: _appending(side, 1, 1, 1000, seconds),
            "remits, 64 connections x 1 message": lambda side: remits.adding(
                side.port("remits"), 64, 1, seconds, remits.over_remits(side.tokens.get(NARROW))
            ),
            "http, 16 connections": lambda side: load.asking(side.port("http"), seconds, token=side.tokens.get(NARROW)),
            "mq, stored records of a context": lambda side: mqgate.reading(
                side.port("mq"), side.over_mq(CONTEXT), until=events
            ),
            "mq, stored records of three scopes": lambda side: mqgate.reading(
                side.port("mq"), side.over_mq(SCOPES), until=events
            ),
        }
        pairs.compare(report, sides, works, ROUNDS, goal=GOAL)


def _appending(side: Side, connections: int, flight: int, events: int, seconds: float) -> float:
    return mqgate.appending(
        side.port("mq"), connections, flight, events, seconds, side.over_mq(NARROW), streams=STREAMS
    )


def _closed(directory: Path) -> dict[str, str]:
    """A new store with an administrator and the principals; their tokens."""
    with penstock.connect(store_url(directory)) as client:
        client.access.put("admin", ["all"])
        for name, grants in GRANTS.items():
            client.access.put(name, grants)
        return {name: client.access.issue_token(name).token for name in GRANTS}


def _checks(report: Report) -> None:
    """The engine's check of an append, which remembers streams: of one that it knows, and of new ones."""
    for grants in (3, GRANTS_MAX):
        elsewhere = [Grant.of(f"append:context-{number}/stream-*") for number in range(grants - 1)]
        principal = Principal(NARROW, (*elsewhere, Grant.of("append:bench/stream-*")), Limits())
        known = Append("bench", "stream-0", load.some_events(1), ANY)
        numbers = count()
        new = [Append("bench", f"stream-{next(numbers)}", known.events, ANY) for _ in range(CHECKS)]
        for what, requests in (("a stream of before", [known] * CHECKS), ("a new stream", new)):
            began = time.process_time()
            for request in requests:
                authorize(principal, request, Right.APPEND)
            taken = 1e6 * (time.process_time() - began) / CHECKS
            report.figure(f"a check with {grants} grants, {what}", taken, "us")
