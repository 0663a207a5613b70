"""SQL over the history: each statement runs in a separate process, which sees only what its principal may read.

The process ends with the time, or when the browser has left. A link to a statement only fills in the form: no other
site can make a browser run one.
"""

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any, Final

from starlette.requests import ClientDisconnect
from starlette.responses import Response

from penstock.console.visit import Refused, Visit, url
from penstock.model import ReadAll, Scope

STATEMENT_S_MAX: Final = 20.0
LOOK_S: Final = 0.2
"""How often the server looks whether the browser is still there."""
STATEMENT_BYTES_MAX: Final = 64 << 10
ANSWER_BYTES_MAX: Final = 64 << 20
LINK_CHARACTERS_MAX: Final = 2000
"""Longer statements have no link."""
MODULES: Final = ("duckdb", "pyarrow")
EXAMPLES: Final = (
    (
        "The newest events",
        "SELECT position, context, stream, type, timestamp, text\nFROM events\nORDER BY position DESC\nLIMIT 20",
    ),
    (
        "Events by context and type",
        "SELECT context, type, count(*) AS events\nFROM events\nGROUP BY ALL\nORDER BY events DESC",
    ),
    (
        "Events by hour",
        "SELECT date_trunc('hour', timestamp) AS hour, count(*) AS events\nFROM events\nGROUP BY ALL\nORDER BY ALL",
    ),
    (
        "A field of JSON",
        "SELECT stream, TRY_CAST(text AS JSON)->>'$.total' AS total\nFROM events\nWHERE total IS NOT NULL",
    ),
)


async def sql(visit: Visit) -> Mapping[str, Any] | Response:
    missing = next((name for name in MODULES if find_spec(name) is None), None)
    statement = visit.field("statement") or visit.one("statement")
    found: dict[str, Any] = {
        "statement": statement,
        "missing": missing,
        "examples": EXAMPLES,
        "answer": None,
        "rows": (),
        "error": "",
        "sees_all": _scopes(visit) is None,
        "seconds_max": STATEMENT_S_MAX,
        "link": url("/sql", statement=statement) if 0 < len(statement) <= LINK_CHARACTERS_MAX else "",
    }
    if visit.http.method != "POST" or missing is not None:
        return found
    is_csv = visit.field("as") == "csv"
    try:
        with visit.console.statements.one():
            facts, content = await _run(visit, statement, "csv" if is_csv else "table")
    except Refused as refused:
        return {**found, "error": visit.refused(refused)}
    if is_csv:
        headers = {"content-disposition": 'attachment; filename="penstock.csv"'}
        if facts["more"]:
            headers["content-disposition"] = f'attachment; filename="penstock-first-{facts["count"]}-rows.csv"'
        return Response(content, 200, headers, "text/csv; charset=utf-8")
    return {**found, "answer": facts, "rows": json.loads(content)}


def _scopes(visit: Visit) -> list[Scope] | None:
    """The principal's scopes for reading; None: everything."""
    view = visit.engine.permitted(visit.login.principal, ReadAll())
    return None if view is None else list(view.scopes)


async def _run(visit: Visit, statement: str, form: str) -> tuple[dict[str, Any], bytes]:
    if len(statement.encode(errors="replace")) > STATEMENT_BYTES_MAX:
        raise Refused(413, f"the statement is longer than {STATEMENT_BYTES_MAX >> 10} KiB", "Make it shorter.")
    # A process that is killed cannot remove what it has spilled.
    folder = await asyncio.to_thread(tempfile.mkdtemp, prefix="penstock-console-")
    asked = {"url": visit.engine.url, "statement": statement, "scopes": _scopes(visit), "as": form, "folder": folder}
    try:
        answer = await _worker(visit, json.dumps(asked).encode())
    finally:
        await asyncio.shield(asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True))
    head, _, content = answer.partition(b"\n")
    if not head:
        raise Refused(
            422, "the statement took more memory or time than there is for it, so it was ended", "Ask for less."
        )
    facts = json.loads(head)
    if facts["error"] is not None:
        raise Refused(422, facts["error"])
    return facts, content


async def _worker(visit: Visit, asked: bytes) -> bytes:
    """The answer of a worker. Raises Refused when time is up, and ClientDisconnect when the browser has left."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "penstock.sql.worker", stdin=pipe, stdout=pipe)
    reading = asyncio.ensure_future(_read(process, asked))
    try:
        async with asyncio.timeout(STATEMENT_S_MAX):
            while not (await asyncio.wait({reading}, timeout=LOOK_S))[0]:
                if await visit.http.is_disconnected():
                    raise ClientDisconnect
        return reading.result()
    except TimeoutError:
        raise Refused(
            422,
            f"the statement took longer than {STATEMENT_S_MAX:g} s, so it was ended",
            "Ask for less, such as a range of positions or one context; or use penstock sql, which has no such limit.",
        ) from None
    finally:
        reading.cancel()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def _read(process: asyncio.subprocess.Process, asked: bytes) -> bytes:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(asked)
    process.stdin.close()
    parts, size = [], 0
    while part := await process.stdout.read(1 << 18):
        parts.append(part)
        size += len(part)
        if size > ANSWER_BYTES_MAX:
            raise Refused(413, f"the answer has more than {ANSWER_BYTES_MAX >> 20} MiB", "Ask for less.")
    return b"".join(parts)
