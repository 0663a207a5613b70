"""The process in which the server's console runs one statement. The server kills it when time is up.

Standard input has one JSON object: the store's `url`, the `statement`, the `scopes` that the principal may read (null:
all), the `folder` to spill to, and how the answer is wanted, `as` table or csv. Standard output gets a line of JSON,
with an `error` or what the answer is, and after it the rows: of a table another line of JSON, or CSV.
"""

import io
import json
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from penstock.engine.confinement import enclose, harden, python_places
from penstock.errors import PenstockError
from penstock.model import Scope, View
from penstock.store.urls import SQLITE

MEMORY_BYTES: Final = 256 << 20
"""DuckDB's memory; then it spills."""
SPILL_BYTES: Final = 1 << 30
PROCESS_BYTES: Final = 4 << 30
"""Address space of the process. DuckDB and Arrow map more than they use."""
CPU_S_MAX: Final = 60
THREADS: Final = 1
MACHINE: Final = (Path("/proc"), Path("/sys/fs/cgroup"))
"""Where DuckDB looks for the memory that there is; without it, it aborts."""
NICENESS: Final = 15

ROWS_MAX: Final = 1000
CELLS_MAX: Final = 20_000
"""Values of a table; one with very many columns has fewer rows."""
CELL_CHARACTERS_MAX: Final = 1000
TEXT_CHARACTERS_MAX: Final = 512 << 10
"""Characters of a table. The server escapes them."""
CSV_ROWS_MAX: Final = 100_000
CSV_BYTES_MAX: Final = 32 << 20

INSTEAD: Final = {
    "READABLE": "the console reads no files",
    "MORE_MEMORY": f"; it may use {MEMORY_BYTES >> 20} MiB here: ask for less, or use penstock sql",
    "TO_FILE": "the console downloads an answer as CSV",
}
"""Errors say this instead of hints about options of the command line."""


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (SPILL_BYTES, SPILL_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S_MAX, CPU_S_MAX))
    resource.setrlimit(resource.RLIMIT_AS, (PROCESS_BYTES, PROCESS_BYTES))
    os.nice(NICENESS)
    asked = json.loads(sys.stdin.buffer.read())
    url: str = asked["url"]
    if url.startswith(SQLITE):
        # What gets out of DuckDB reads only what it could read anyway. A database may be anywhere.
        enclose([Path(url.removeprefix(SQLITE)), *python_places(), *MACHINE], [Path(asked["folder"])])
    else:
        with suppress(OSError):
            harden()
    out = sys.stdout.buffer
    try:
        facts, content = _answer(asked)
    except PenstockError as error:
        facts, content = {"error": _explained(str(error))}, b""
    except MemoryError:
        facts, content = {"error": f"the statement needs more memory than {PROCESS_BYTES >> 30} GiB; ask for less"}, b""
    out.write(json.dumps(facts).encode() + b"\n" + content)
    out.flush()
    # DuckDB may hold threads that do not end soon.
    os._exit(0)


def _answer(asked: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
    from penstock.sql.session import Limits, open_session  # noqa: PLC0415 - its limits come first

    scopes = asked["scopes"]
    view = None if scopes is None else View(tuple(Scope(*scope) for scope in scopes))
    limits = Limits(MEMORY_BYTES, THREADS, asked["folder"], SPILL_BYTES)
    with open_session(asked["url"], limits, view) as session:
        answer = session.query(asked["statement"])
        return _csv(answer) if asked["as"] == "csv" else _table(answer)


def _table(answer: Any) -> tuple[dict[str, Any], bytes]:
    import pyarrow as pa  # noqa: PLC0415

    from penstock.sql.results import names_of, plain  # noqa: PLC0415

    numbers = (pa.types.is_integer, pa.types.is_floating, pa.types.is_decimal)
    columns = [
        {"name": name, "kind": str(field.type), "number": any(test(field.type) for test in numbers)}
        for name, field in zip(names_of(answer.schema), answer.schema, strict=True)
    ]
    rows_max = min(ROWS_MAX, max(1, CELLS_MAX // max(1, len(columns))))
    rows: list[list[str | None]] = []
    size, has_more = 0, False
    for batch in answer.batches():
        for row in zip(*map(plain, batch.slice(0, rows_max + 1 - len(rows)).columns), strict=True):
            if len(rows) >= rows_max or size > TEXT_CHARACTERS_MAX:
                has_more = True
                break
            rows.append([_cell(value) for value in row])
            size += sum(len(cell or "") for cell in rows[-1])
        if has_more:
            break
    return {"error": None, "columns": columns, "count": len(rows), "more": has_more}, json.dumps(rows).encode()


def _cell(value: Any) -> str | None:
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    left_out = len(text) - CELL_CHARACTERS_MAX
    return text if left_out <= 0 else f"{text[:CELL_CHARACTERS_MAX]}… ({left_out:,} more characters)"


class _Short:
    """The first rows of an answer."""

    def __init__(self, answer: Any) -> None:
        self._answer = answer
        self.schema = answer.schema
        self.size = self.count = 0
        self.has_more = False

    def batches(self) -> Iterator[Any]:
        for batch in self._answer.batches():
            room = CSV_ROWS_MAX - self.count
            if not room or self.size > CSV_BYTES_MAX:
                self.has_more = True
                return
            self.has_more = batch.num_rows > room
            self.count += min(batch.num_rows, room)
            self.size += batch.nbytes
            yield batch.slice(0, room)


def _csv(answer: Any) -> tuple[dict[str, Any], bytes]:
    from penstock.sql.results import write_csv  # noqa: PLC0415

    file, short = io.BytesIO(), _Short(answer)
    write_csv(short, file)  # type: ignore[arg-type]
    return {"error": None, "count": short.count, "more": short.has_more}, file.getvalue()


def _explained(message: str) -> str:
    from penstock.sql import session  # noqa: PLC0415

    for name, words in INSTEAD.items():
        message = message.replace(getattr(session, name), words)
    return message


if __name__ == "__main__":
    main()
