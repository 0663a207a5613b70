"""The overview: figures and charts of the server, what is wrong right now, and what to do about it."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from starlette.responses import JSONResponse, Response

from penstock.console.consumers import QUEUE
from penstock.console.rendering import bytes_text, duration
from penstock.console.visit import Refused, Visit, url
from penstock.model import GetStats, ListPage, ListQueues, QueueInfo, Right, StoreStats
from penstock.settings import Settings

QUEUES_MAX: Final = 200
"""Queues that the overview looks at."""
LAG_MS: Final = 5 * 60_000
"""The overview warns if an event waits longer for a consumer."""
BACKUP_MS: Final = 26 * 3_600_000
"""The overview warns if the last backup is older: more than a day."""
SEAL_LAG: Final = 1_000_000
"""The overview mentions it if more events are not sealed yet."""
AHEAD_S: Final = 1.0


class Trouble(NamedTuple):
    """A problem, the advice, and a link to the page about it. `level` is error, warning or note."""

    level: str
    what: str
    advice: str
    link: str = ""
    label: str = ""


@dataclass(slots=True)
class State:
    """The input of the checks. Without `sees_server` a principal sees only what is in its part of the store."""

    visit: Visit
    sees_server: bool
    stats: StoreStats
    queues: Sequence[QueueInfo] = ()
    busy: Mapping[str, int] = field(default_factory=dict)
    """Answers busy of the last minute, by reason."""

    @property
    def settings(self) -> Settings:
        return self.visit.engine.settings


async def overview(visit: Visit) -> Mapping[str, Any]:
    engine, console = visit.engine, visit.console
    sees_server, can_read = visit.may(Right.READ, everywhere=True), visit.may(Right.READ)
    if not can_read:
        return {"stats": None, "sees_server": False, "troubles": [], "gates": [], "series": {}, "metrics": None}
    stats = await visit.ask(GetStats(), StoreStats)
    state = State(visit, sees_server, stats)
    if visit.part in ("", "troubles"):
        page = await visit.ask(ListQueues(0, QUEUES_MAX), ListPage)
        state.queues = page.items
    if sees_server:
        console.sampler.watch()
        await engine.refresh_metrics()
        state.busy = console.sampler.busy()
    return {
        "stats": stats,
        "sees_server": sees_server,
        "troubles": sorted(_troubles(state), key=lambda one: LEVELS.index(one.level)),
        "gates": list(_gates(visit)) if sees_server else [],
        "series": console.sampler.series() if sees_server else {},
        "metrics": engine.metrics,
        "head": engine.head,
    }


async def samples(visit: Visit) -> Response:
    """The series of all charts, after a time (Unix, in seconds)."""
    visit.console.sampler.watch()
    try:
        since = float(visit.one("since", "0"))
    except ValueError:
        raise Refused(400, "since must be a number of seconds") from None
    return JSONResponse(visit.console.sampler.series(since))


class GateRow(NamedTuple):
    name: str
    address: str
    sessions: int
    received: int
    sent: int


GATE_NAMES: Final = {
    "res": "Res01 over ZeroMQ",
    "res-legacy": "Res01 over ZeroMQ, older results",
    "mq": "Res01 over TCP",
    "remits": "Logs and iterators",
    "http": "HTTP: API, metrics, console",
}


def _gates(visit: Visit) -> Iterator[GateRow]:
    metrics = visit.engine.metrics
    if metrics.http_sessions is not None:
        metrics.gate_sessions["http"] = metrics.http_sessions()
    for gate in visit.console.gates:
        counts = (metrics.gate_sessions, metrics.gate_received, metrics.gate_sent)
        yield GateRow(GATE_NAMES.get(gate.name, gate.name), gate.address, *(one[gate.name] for one in counts))


# --- what is wrong --------------------------------------------------------------------------------------------


def _troubles(state: State) -> Iterator[Trouble]:
    for check in CHECKS_OF_SERVER if state.sees_server else ():
        yield from check(state)
    for check in CHECKS:
        yield from check(state)


def _unready(state: State) -> Iterator[Trouble]:
    for reason in state.visit.engine.unready:
        yield Trouble(
            "error", reason, "Appends fail until this is repaired; reads go on. The server's log has the details."
        )


def _disk(state: State) -> Iterator[Trouble]:
    free, metrics = state.visit.engine.metrics.disk_free_bytes, state.visit.engine.metrics
    if free is not None and not metrics.disk_refusing and free < state.settings.disk_warn_bytes:
        refuse = bytes_text(state.settings.disk_refuse_bytes)
        yield Trouble(
            "warning",
            f"{bytes_text(free)} are free on the disk of the store",
            f"Make room, or move the store to a larger disk: below {refuse} appends are refused (disk_refuse_bytes).",
        )


def _busy(state: State) -> Iterator[Trouble]:
    for reason, count in sorted(state.busy.items()):
        yield Trouble(
            "warning",
            f"{count:,} requests were answered busy in the last minute: {reason}",
            "Clients repeat them. If this goes on, spread the load, or raise the limit in the settings.",
        )


def _seals(state: State) -> Iterator[Trouble]:
    lag = state.visit.engine.metrics.seal_lag()
    if lag > SEAL_LAG:
        yield Trouble(
            "note",
            f"{lag:,} events are not sealed yet",
            "Reads of them are slower. Sealing catches up when there are fewer appends; the setting seal turns it off.",
        )


def _backups(state: State) -> Iterator[Trouble]:
    marks = {mark.kind: mark for mark in state.visit.engine.metrics.watermarks}
    mark, head = marks.get("backup"), state.stats.head
    if mark is None:
        if head:
            yield Trouble(
                "warning", "there is no backup of this store", "Make one with penstock backup, and then every day."
            )
        return
    age_ms = 1000 * time.time() - mark.unix_ms
    if age_ms > BACKUP_MS and head > mark.position:
        yield Trouble(
            "warning",
            f"the last backup is {duration(age_ms)} old; {head - mark.position:,} events came since",
            "Look why the scheduled backup has not run, and run penstock backup.",
        )


def _clock(state: State) -> Iterator[Trouble]:
    ahead_s = state.visit.engine.metrics.recorded_ahead_s()
    if ahead_s > AHEAD_S:
        yield Trouble(
            "warning",
            f"recorded times are {duration(1000 * ahead_s)} ahead of this machine's clock, which was set back",
            "Check its time synchronisation. Recorded times stand still until the clock has caught up.",
        )


def _others(state: State) -> Iterator[Trouble]:
    if not state.visit.engine.access.is_closed:
        yield Trouble(
            "note",
            "there are no principals, so every client may do everything",
            "That is fine on your own machine. penstock access init makes the first principal.",
        )


def _queues(state: State) -> Iterator[Trouble]:
    for queue in state.queues:
        name = f"queue {queue.name} of {queue.context}"
        link = url(QUEUE, context=queue.context, queue=queue.name)
        if queue.dead:
            yield Trouble(
                "warning",
                f"{name} has {queue.dead:,} dead letters",
                "Read their reasons, repair the consumer, then put them back.",
                link,
                "Look at the queue",
            )
        if queue.paused:
            yield Trouble(
                "note", f"{name} is paused", "It hands out nothing until it is resumed.", link, "Look at the queue"
            )
        elif queue.behind_ms > LAG_MS:
            more = "" if queue.behind_is_exact else " or more"
            yield Trouble(
                "warning",
                f"{name} is {duration(queue.behind_ms)} behind: {queue.behind:,}{more} events wait",
                "Check that its consumers run and are fast enough; more consumers share the work.",
                link,
                "Look at the queue",
            )


Check = Callable[[State], Iterator[Trouble]]
LEVELS: Final = ("error", "warning", "note")
CHECKS_OF_SERVER: Final[tuple[Check, ...]] = (_unready, _disk, _busy, _seals, _backups, _clock, _others)
CHECKS: Final[tuple[Check, ...]] = (_queues,)
