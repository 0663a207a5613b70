"""Where saved stores are, how they are unpacked, and what of a store is compared."""

import json
import lzma
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import asdict, astuple
from hashlib import sha256
from importlib.util import find_spec
from io import BytesIO
from itertools import count
from pathlib import Path
from typing import Any, Final

from msgspec import structs

from penstock.model import Allocation, Event, ProducerMark, Winner
from penstock.store import Store
from penstock.store.contract import Install, ReadLimits
from penstock.store.sqlite import SqliteStore
from tests.store.contract.builds import output
from tests.store.contract.staging import bodies, publish
from tests.store.kit import append, do_one, everything, findings, some

HERE: Final = Path(__file__).parent
SAVED: Final = sorted(path.name for path in HERE.iterdir() if path.name.isdigit())
MADE_IN: Final = Path("/tmp/penstock-saved")
"""Where they were made. It is the same for everybody, because some formats have absolute paths in them."""
FILE: Final = "penstock.db"
SCHEMA: Final = "penstock_saved"
"""The schema that a dump makes."""
FILLER: Final = "filler"
"""The context of events that only fill blocks."""
CONSUMERS: Final = ("subscriptions", "queues", "allocations", "dead_letters")
"""Tables that are compared row by row."""
BEGUN: Final = ("producer", "staged", "built", "schema")
"""Keys that are not contents: work that was begun and can be finished, and the schema on PostgreSQL."""
_VERSION_AT: Final = 60
"""Where a SQLite file has its `user_version`."""


def having(file: str) -> list[str]:
    """The versions that have a file of this name."""
    return [name for name in SAVED if (HERE / name / file).exists()]


def expected_of(name: str, file: str = "expected.json") -> dict[str, Any]:
    """The contents as the version itself read them."""
    found: dict[str, Any] = json.loads((HERE / name / file).read_text(encoding="utf-8"))
    return found


def unpacked(name: str, file: str) -> bytes:
    """A file, whole."""
    return lzma.decompress((HERE / name / file).read_bytes())


def schema_of(name: str) -> int:
    """The schema of a SQLite store."""
    return int.from_bytes(unpacked(name, f"{FILE}.xz")[_VERSION_AT : _VERSION_AT + 4])


# -- unpacking


def unpack_store(name: str, directory: Path) -> Path:
    """The SQLite store as it was left."""
    directory.mkdir()
    (directory / FILE).write_bytes(unpacked(name, f"{FILE}.xz"))
    return directory


def unpack_migrated(name: str, directory: Path) -> Path:
    """The SQLite store, opened once by today's code."""
    SqliteStore(unpack_store(name, directory)).close()
    return directory


def members_of(name: str, file: str) -> Iterator[tuple[str, bytes]]:
    """The files in an archive: path and content."""
    with tarfile.open(fileobj=BytesIO(unpacked(name, file))) as archive:
        for member in archive:
            content = archive.extractfile(member)
            assert content is not None
            yield member.name, content.read()


def unpack(name: str, file: str, directory: Path) -> Path:
    """All files of an archive, below a directory."""
    for path, content in members_of(name, file):
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(content)
    return directory


def unpack_project(name: str, directory: Path) -> Path:
    """A project and the store that it reads, with all paths in its texts as they are now; its folder.

    Those in the metastore need a Java: see `move_metastore`.
    """
    unpack_migrated(name, directory / "data")
    project = unpack(name, "project.tar.xz", directory) / "project"
    for path in [path for path in project.rglob("*") if path.is_file() and "metastore" not in path.parts]:
        content = path.read_bytes()
        moved = content.replace(str(MADE_IN).encode(), str(directory).encode())
        if moved != content:
            path.write_bytes(moved)
            # Hadoop's checksum is that of the old content.
            (path.parent / f".{path.name}.crc").unlink(missing_ok=True)
    return project


def move_metastore(project: Path) -> None:
    """Have the metastore of a project know its tables where they are now."""
    old, new = f"file:{MADE_IN}", f"file:{project.parent}"
    columns = (("SDS", "LOCATION"), ("DBS", "DB_LOCATION_URI"), ("SERDE_PARAMS", "PARAM_VALUE"))
    statements = [
        f"UPDATE APP.{table} SET {column} = '{new}' || SUBSTR({column}, {len(old) + 1}) WHERE {column} LIKE '{old}/%';"
        for table, column in columns
    ]
    script = project.parent / "metastore.sql"
    script.write_text("\n".join([f"CONNECT 'jdbc:derby:{project / 'metastore'}';", *statements, "EXIT;", ""]))
    java, spark = shutil.which("java"), find_spec("pyspark")
    assert java is not None
    assert spark is not None
    assert spark.origin is not None
    jars = Path(spark.origin).parent / "jars" / "*"
    command = [java, "-cp", str(jars), "org.apache.derby.tools.ij", str(script)]
    done = subprocess.run(command, cwd=project.parent, check=True, capture_output=True, text=True)
    assert "ERROR" not in done.stdout, done.stdout


# -- what is compared


def contents(store: Store) -> dict[str, Any]:
    """All that is compared of a store. Older versions had less of it, and what they saved lacks the rest."""
    names = [one.name for one in store.iterators(None, "", 99)]
    iterators = [one for name in names if (one := store.iterator(name)) is not None]
    events = list(map(_event, everything(store)))
    access, tables = store.access(), store.state().tables
    return {
        "identity": list(store.identity()),
        "head": store.head(),
        "sealed": store.sealed(),
        "events": [one for one in events if one[1] != FILLER],
        "digest": sha256(json.dumps(events).encode()).hexdigest(),
        "contexts": [[c.name, c.events, c.commits, c.streams, c.bytes] for c in store.contexts("", 99)],
        "subscriptions": [
            [s.id, s.subscriber, s.context, s.filter, s.position, s.last_ticks] for s in store.subscriptions(0, 99)
        ],
        "queues": [[q.id, q.context, q.name, q.filter, q.position] for q in store.find_queues("work")],
        "allocations": list(map(_allocation, store.allocations(1, 0, 99))),
        "dead_letters": list(map(_allocation, store.dead_letters(1, 0, 99))),
        "dead_after": [q.dead_after for q in store.queues(0, 99)],
        "consumers": {name: [list(row) for row in tables[name]] for name in CONSUMERS},
        "producers": [[name, number, used] for name, number, _, used in tables["producers"]],
        "logs": [[one.name, one.created, one.base, one.bytes] for one in store.logs("", 99)],
        "iterators": [
            [
                *(i.id, i.name, i.log, i.over, i.kind, i.function, i.indexed, i.created, i.base, i.source, i.outputs),
                i.state.decode() if i.state is not None else None,
            ]
            for i in iterators
        ],
        "outputs": {
            one.name: [item.decode() for item in store.read_output(one.id, 0, ReadLimits())] for one in iterators
        },
        "erasures": [
            [
                *(e.id, e.context, e.stream, e.last, [list(each) for each in e.ranges], e.iterator, e.timeline),
                *(e.events, e.requested, e.finished, e.damaged),
            ]
            for e in store.erasures(0, 99)
        ],
        "open_erasures": store.open_erasures(),
        "access": access.version,
        "principals": [[p.name, list(p.grants), asdict(p.limits), p.created, p.changed] for p in access.principals],
        "credentials": [list(astuple(credential)) for credential in access.credentials],
    }


def _event(one: Event) -> list[Any]:
    shown = {**structs.asdict(one), "id": one.id.hex(), "body": one.body.decode(), "commit": one.commit.hex()}
    return list(shown.values())


def _allocation(one: Allocation) -> list[Any]:
    return [one.first, one.last, one.count, one.subscriber, one.expires, one.deliveries]


def check_contents(store: Store, expected: dict[str, Any]) -> None:
    """Whether a store has all that was read from it when it was saved."""
    known = {key: value for key, value in expected.items() if key not in BEGUN}
    found = contents(store)
    assert {key: found[key] for key in known} == known
    assert findings(store) == []


def check_goes_on(store: Store, expected: dict[str, Any]) -> None:
    """Whether a repeat is known, and the next event comes after the last."""
    number, position = expected["producer"]
    again = append(store, "order-0", some(1), mark=ProducerMark("producer", number))
    assert (again.position, again.repeated) == (position, True)
    assert append(store, "order-0", some(1)).position == expected["head"] + 1
    assert findings(store) == []


def check_staged(store: Store, expected: dict[str, Any]) -> None:
    """Whether what jobs had staged can be published and installed."""
    job, build = expected["staged"], expected["built"]
    publish(store, *(Winner(*each) for each in job["winners"]))
    assert [body.decode() for body in bodies(store, "staged")] == job["bodies"]
    iterator = store.iterator("over people")
    assert iterator is not None
    winners = tuple(Winner(*each) for each in build["winners"])
    do_one(store, Install(iterator.id, 0, 0, len(build["items"]), winners))
    assert [item.decode() for item in output(store, iterator.id)] == build["items"]


def next_name() -> str:
    """The name of the next version's folder."""
    return next(name for number in count(1) if (name := f"{number:04}") not in SAVED)
