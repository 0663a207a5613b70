"""How the store, its backups and its lake stand: what the server knows anyway, and the commands for the rest."""

import shlex
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from penstock.console.overview import BACKUP_MS
from penstock.console.visit import Visit
from penstock.model import GetStats, StoreStats
from penstock.settings.sources import without_password
from penstock.store.urls import SQLITE
from penstock.store.watermarks import BACKUP, LAKE, Watermark


class Copy(NamedTuple):
    """A backup or a lake. `level` is good, warning or note."""

    mark: Watermark | None
    behind: int
    level: str
    state: str


async def storage(visit: Visit) -> Mapping[str, Any]:
    engine = visit.engine
    stats = await visit.ask(GetStats(), StoreStats)
    await engine.refresh_metrics()
    marks = {mark.kind: mark for mark in engine.metrics.watermarks}
    place = str(without_password(engine.url))
    is_local = place.startswith(SQLITE)
    data = shlex.quote(place.removeprefix(SQLITE)) if is_local else ""
    return {
        "stats": stats,
        "place": place.removeprefix(SQLITE) if is_local else place,
        "metrics": engine.metrics,
        "settings": engine.settings,
        "seal_lag": engine.metrics.seal_lag(),
        "backup": _copy(marks.get(BACKUP), stats.head, "There is no backup of this store"),
        "lake": _copy(marks.get(LAKE), stats.head, "This store has no lake, or none that the server knows of"),
        "option": f"--data {data}" if is_local else "--store URL",
        "is_local": is_local,
    }


def _copy(mark: Watermark | None, head: int, nothing: str) -> Copy:
    if mark is None:
        return Copy(None, head, "warning" if head and "backup" in nothing else "note", nothing)
    behind = max(0, head - mark.position)
    if not behind:
        return Copy(mark, 0, "good", "It has all events")
    is_old = 1000 * time.time() - mark.unix_ms > BACKUP_MS
    return Copy(
        mark, behind, "warning" if is_old else "good", f"{behind:,} event{'' if behind == 1 else 's'} came since"
    )
