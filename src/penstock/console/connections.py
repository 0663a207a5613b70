"""The open sessions of all gates, and the settings of the server."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from penstock.console.overview import GATE_NAMES
from penstock.console.visit import Refused, Visit
from penstock.settings import DEFAULT, ResolvedSettings, explain, format_value
from penstock.tcp import SessionInfo

SESSIONS: Final = 100
"""Sessions in a page."""
SET: Final = "set by the program that started the server"


class Connection(NamedTuple):
    gate: str
    info: SessionInfo
    names: Sequence[str]


async def connections(visit: Visit) -> Mapping[str, Any]:
    """The sessions of all gates that keep some, the oldest first; HTTP has connections, which are only counted."""
    servers, gate, after = visit.console.servers, visit.one("gate"), visit.number("after", 0)
    every = [(server, info) for server in servers if gate in ("", server.name) for info in server.sessions()]
    shown = []
    for server, info in every[after : after + SESSIONS]:
        session = server.session(info.id)
        names = () if session is None else session.names()
        shown.append(Connection(GATE_NAMES.get(server.name, server.name), info, names))
    metrics = visit.engine.metrics
    return {
        "connections": shown,
        "count": len(every),
        "after": after,
        "next": after + SESSIONS if after + SESSIONS < len(every) else None,
        "back": max(0, after - SESSIONS),
        "gate": gate,
        "gates": [(server.name, GATE_NAMES.get(server.name, server.name)) for server in servers],
        "http": metrics.http_sessions() if metrics.http_sessions is not None else 0,
        "logged_in": len(visit.console.sessions),
    }


async def close(visit: Visit) -> str:
    number = visit.field("session")
    servers = visit.console.servers
    if not any(server.session(number) for server in servers):
        raise Refused(404, f"there is no session {number[:100]} any more", "Its client may have closed it.")
    await visit.record("sessions", "session-kicked", session=number)
    if not any(server.kick(number) for server in servers):
        return f"The session {number} had ended already."
    return f"The session {number} is closed. Its client may connect again."


async def settings(visit: Visit) -> Mapping[str, Any]:
    now, wanted = visit.engine.settings, visit.one("find").strip().lower()
    default = type(now)()
    sources = {
        name: visit.console.sources.get(name, DEFAULT if getattr(now, name) == getattr(default, name) else SET)
        for name in type(now).__dataclass_fields__
    }
    found = [
        (one, format_value(one.name, one.value) if one.value is not None else None)
        for one in explain(ResolvedSettings(now, sources))
        if wanted in one.name or wanted in one.help.lower()
    ]
    is_changed = visit.one("only") == "changed"
    return {
        "found": [(one, text) for one, text in found if not is_changed or one.source != DEFAULT],
        "find": visit.one("find"),
        "only": visit.one("only"),
        "default": DEFAULT,
    }
