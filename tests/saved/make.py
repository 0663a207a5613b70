"""Writes a new folder of this package with today's code: `python -m tests.saved.make`.

It takes a minute or two, because a pipeline runs on Spark. Run it when a format has changed, and commit the folder.
"""

import json
import lzma
import re
import shutil
import subprocess
import tarfile
from contextlib import closing
from dataclasses import astuple
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from penstock.lake import compaction
from penstock.lake.archiver import Archived, Archiver
from penstock.model import LOG_CONTEXT, Credential, CredentialKind, Limits, ProducerMark, Winner
from penstock.pipelines.projects import read_project
from penstock.pipelines.scaffold import make_project
from penstock.pipelines.status import status
from penstock.store import Store, store_url
from penstock.store.contract import (
    MESSAGE_TYPE,
    Acknowledge,
    AddIterator,
    AddLog,
    DeleteLog,
    Erase,
    ExpireCredentials,
    HideEvents,
    HideStream,
    IteratorState,
    Progress,
    ReadLimits,
    Register,
    RemovePrincipal,
    SetDeadRule,
    StoreCredential,
    StorePrincipal,
    WriteOutput,
)
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.schema import SCHEMA_VERSION
from tests.backup.support import backed_up, reading, work_by_key, writing
from tests.lake.support import manifest_of, quiet
from tests.pipelines.support import rounds
from tests.postgres import postgres, programs
from tests.saved.kit import FILE, FILLER, HERE, MADE_IN, SCHEMA, contents, next_name
from tests.store.contract.builds import staged
from tests.store.contract.dead_letters import lose
from tests.store.contract.logs import erase_all
from tests.store.contract.queues import declare, given
from tests.store.contract.seals import append_singly, close_block, seal_all
from tests.store.contract.staging import numbered, stage, unit
from tests.store.kit import TICKS_PER_MS, Clock, append, do_one, event, findings, some

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
LEFT_OUT: Final = re.compile(r"(^|/)(lock|derby\.log|\w+\.lck)$")
"""Files that say who was at work and where."""
_NEWER_SQL: Final = re.compile(rb"^(\\(un)?restrict .*|SET transaction_timeout .*)\n", re.MULTILINE)
"""Lines of a dump that only the newest PostgreSQL, or only psql, understands."""


# -- a store with everything in it, day by day


def first_morning(store: Store, clock: Clock) -> None:
    """A sealed block, logs, and iterators with outputs."""
    sell(store, clock, 0, 8)
    append_singly(store, ["order-0", "order-3"], 20, type="Noted", body=b"small")
    append(store, "order-9", [event(clock.ticks, "OrderPlaced", None, b"no JSON")])
    close_block(store, FILLER, FILLER)
    assert seal_all(store) > 0
    for name in ("kept", "erased", "half erased"):
        do_one(store, AddLog(name))
        for number in range(12):
            message = f"secret of {name} {number}" * 20
            append(store, name, some(1, type=MESSAGE_TYPE, body=message.encode()), context=LOG_CONTEXT)
        iterator = _iterator(store, f"over {name}", name, "reduce", "return acc + msg")
        for number in range(12):
            item, state = f"output of {name} {number}".encode(), f"state of {name} {number}".encode()
            do_one(store, WriteOutput(iterator.id, number, number + 1, (item,), state))
    orders = _iterator(store, "over orders", "shop/order-1", "map", "return msg")
    do_one(store, WriteOutput(orders.id, 0, 3, (b"a", b"", b"c")))
    do_one(store, AddIterator("below", "over orders", "filter", "return true", False))
    for name in ("gone", "guests"):
        append(store, name, some(6, ticks=clock.ticks, body=f"secret of {name}".encode()), context="other")


def evening(store: Store, clock: Clock, first: int) -> None:
    """More of the same."""
    clock.advance(HOUR_MS)
    sell(store, clock, first, 4)


def second_morning(store: Store, clock: Clock) -> None:
    """Erasures: of a log, a stream and events, and then some that are not finished."""
    clock.advance(DAY_MS)
    sell(store, clock, 12, 8)
    first = store.read_stream("other", "guests", 1, 1, ReadLimits()).events[0].position
    do_one(store, DeleteLog("erased"))
    do_one(store, HideStream("other", "gone"))
    do_one(store, HideEvents(((first, first + 1), (first + 3, first + 3)), (("other", "guests"),)))
    erase_all(store)
    do_one(store, DeleteLog("half erased"))
    assert do_one(store, Erase(3)) != 0
    do_one(store, HideEvents(((first + 4, first + 4),), (("other", "guests"),)))


def let_in(store: Store, clock: Clock) -> None:
    """Principals with credentials of every kind; one of them, and a token, are revoked."""
    do_one(store, StorePrincipal("root", ("all:*",), Limits()))
    do_one(store, StorePrincipal("shop", ("read,append:shop/order-*", "read:log:kept"), Limits(polls_max=3)))
    do_one(store, StorePrincipal("gone", ("read:*",), Limits()))
    later = clock.ticks + DAY_MS * TICKS_PER_MS
    for credential in (
        Credential("0a", "root", CredentialKind.TOKEN, "0" * 64, "", clock.ticks),
        Credential("0b", "shop", CredentialKind.TOKEN, "1" * 64, "cï", clock.ticks, 2 * later),
        Credential("0c", "shop", CredentialKind.TOKEN, "2" * 64, "", clock.ticks),
        Credential("certificate:shop.example.com", "shop", CredentialKind.CERTIFICATE, "", "", clock.ticks, later),
        Credential("curve:key", "gone", CredentialKind.CURVE, "", "", clock.ticks),
    ):
        do_one(store, StoreCredential(credential))
    do_one(store, ExpireCredentials("shop", CredentialKind.TOKEN, later, "0c"))
    do_one(store, RemovePrincipal("gone"))


def third_day(store: Store, clock: Clock) -> dict[str, Any]:
    """Principals, consumers, producers, and what jobs have staged: how to publish it, and what comes of that."""
    clock.advance(DAY_MS)
    let_in(store, clock)
    sell(store, clock, 24, 10)
    append(store, "order-9", [event(clock.ticks, "OrderPlaced", None, b"no JSON either")])
    subscription: Any = do_one(store, Register("reader", "shop", "order-1", 1))
    do_one(store, Progress(subscription.id, 1, 20, 15))
    do_one(store, Register("reader", "other", "", 3))
    queue = declare(store, filter="order")
    do_one(store, SetDeadRule(queue.id, 2))
    done = given(store, queue, "worker")
    do_one(store, Acknowledge(queue.id, "worker", done.first, done.last))
    lose(store, queue, clock, 2)
    given(store, queue, "worker", ttl_ms=HOUR_MS)
    given(store, queue, "other worker")
    work_by_key(store, clock)
    append(store, "order-0", some(1), mark=ProducerMark("other producer", 1))
    marked = append(store, "order-0", some(2), mark=ProducerMark("producer", 7))
    people = _iterator(store, "over people", "other/people", "map", "return msg.n")
    built = [staged(store, people.id, 0, [b"0", b"1"], [b"2"]), staged(store, people.id, 1, [b"3", b"4"])]
    return {
        "producer": [7, marked.position],
        "staged": {"winners": _winners(_stage_job(store)), "bodies": ["1", "2", "3", "4", "5"]},
        "built": {"winners": _winners(built), "items": ["0", "1", "2", "3", "4"]},
    }


def _stage_job(store: Store) -> list[Winner]:
    """A job of two parts, ordered by keys; an attempt that has lost is there too."""
    stage(store, 0, unit("staged", numbered(8)), attempt="lost")
    one = stage(store, 0, unit("staged", numbered(1, 3), keys=[b"1", b"3"]), unit("staged", numbered(5), keys=[b"5"]))
    two = stage(store, 1, unit("staged", numbered(2, 4), keys=[b"2", b"4"]))
    return [one, two]


def sell(store: Store, clock: Clock, first: int, number: int) -> None:
    """Orders with these numbers, and people that came."""
    for order in range(first, first + number):
        said = json.dumps({"customer": f"c{order % 3}", "amount": order})
        placed = event(clock.ticks, "OrderPlaced", f'{{"subject": "c{order % 3}"}}', said.encode())
        append(store, f"order-{order % 4}", [placed, event(clock.ticks, "OrderPaid", None, b"")])
        append(store, "people", some(1, ticks=clock.ticks, type="Met", body=b'{"n": %d}' % order), context="other")
        clock.advance(10)


def _iterator(store: Store, name: str, log: str, kind: str, function: str) -> IteratorState:
    made = do_one(store, AddIterator(name, log, kind, function, True))
    assert isinstance(made, IteratorState)
    return made


def _winners(winners: list[Winner]) -> list[list[Any]]:
    return [list(astuple(winner)) for winner in winners]


# -- what is made of it


def make_sqlite(folder: Path) -> None:
    """The store, and its copies as they were at earlier moments."""
    data, clock, heads = MADE_IN / "data", Clock(), []
    with writing(data, clock) as store:
        first_morning(store, clock)
        _archive(data)
        heads.append(_back_up(store))
    with writing(data, clock) as store:
        evening(store, clock, 8)
    _archive(data)
    assert compaction.compact(None, str(MADE_IN / "lake"), quiet).made == 1
    with writing(data, clock) as store:
        second_morning(store, clock)
    assert _archive(data).rewritten > 0
    with writing(data, clock) as store:
        evening(store, clock, 20)
    _archive(data)
    manifest = manifest_of(MADE_IN / "lake")
    flows = _run_pipeline(data)
    with writing(data, clock) as store:
        known = third_day(store, clock)
        heads.append(_back_up(store))
        # What is only in the WAL would be missing.
        assert store.db.restart_wal()
    with reading(data) as store:
        assert findings(store) == []
        _write_json(folder / "expected.json", {**contents(store), **known})
    assert all(path.stat().st_size == 0 for path in data.glob("*-wal"))
    (folder / f"{FILE}.xz").write_bytes(_compressed((data / FILE).read_bytes()))
    _pack(folder / "backup.tar.xz", MADE_IN / "backup", MADE_IN / "backup.tar")
    _pack(folder / "lake.tar.xz", MADE_IN / "lake")
    _pack(folder / "project.tar.xz", MADE_IN / "project")
    copies = {
        "backup": {"heads": heads},
        "lake": {"head": manifest.head, "files": [[file.path, file.rows] for file in manifest.files]},
        "project": {"flows": flows},
    }
    _write_json(folder / "copies.json", copies)


def make_postgres(folder: Path) -> None:
    """The same on PostgreSQL."""
    clock = Clock()
    with postgres() as server:
        with closing(PostgresStore(server.url(SCHEMA), clock=clock)) as store:
            first_morning(store, clock)
            evening(store, clock, 8)
            second_morning(store, clock)
            evening(store, clock, 20)
            known = third_day(store, clock)
            assert findings(store) == []
            _write_json(folder / "postgres.json", {**contents(store), **known, "schema": SCHEMA_VERSION})
        command = [str(programs() / "pg_dump"), "--no-owner", "--no-privileges", "--rows-per-insert=1000"]
        dumped = subprocess.run([*command, f"--schema={SCHEMA}", server.url()], check=True, capture_output=True)
    (folder / "postgres.sql.xz").write_bytes(_compressed(_NEWER_SQL.sub(b"", dumped.stdout)))


def _archive(data: Path) -> Archived:
    archiver = Archiver(None, store_url(data), str(MADE_IN / "lake"))
    return archiver.catch_up(quiet)


def _back_up(store: Store) -> int:
    backed_up(store, MADE_IN / "backup.tar")
    return backed_up(store, MADE_IN / "backup").manifest.head


def _run_pipeline(data: Path) -> list[list[Any]]:
    """A project after a run; how far its flows are."""
    project = make_project(MADE_IN / "project", store_url(data), "shop").folder
    with rounds(project) as spark:
        outcome = spark.do()
    assert outcome["failures"] == [], outcome
    return [
        [flow.flow, flow.target, flow.source, flow.rows, flow.position] for flow in status(read_project(project)).flows
    ]


# -- files


def _write_json(path: Path, content: dict[str, Any]) -> None:
    """A line for each row."""
    lines = [f"  {json.dumps(name)}: {_value(value)}" for name, value in content.items()]
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _value(value: Any) -> str:
    if isinstance(value, list) and value and isinstance(value[0], list):
        return "[\n" + ",\n".join(f"    {json.dumps(row)}" for row in value) + "\n  ]"
    return json.dumps(value)


def _pack(target: Path, *places: Path) -> None:
    """Files, without the times and owners of this machine."""
    packed = BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for place in places:
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                if path.is_file() and not LEFT_OUT.search(str(path)):
                    member = tarfile.TarInfo(str(path.relative_to(MADE_IN)))
                    member.size = path.stat().st_size
                    archive.addfile(member, BytesIO(path.read_bytes()))
    target.write_bytes(_compressed(packed.getvalue()))


def _compressed(content: bytes) -> bytes:
    return lzma.compress(content, preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Write the next folder."""
    MADE_IN.mkdir(mode=0o700)
    try:
        made = MADE_IN / next_name()
        made.mkdir()
        make_postgres(made)
        make_sqlite(made)
        shutil.copytree(made, HERE / made.name)
        print(f"{HERE / made.name}: {sum(path.stat().st_size for path in made.iterdir()):,} bytes")
    finally:
        shutil.rmtree(MADE_IN)


if __name__ == "__main__":
    main()
