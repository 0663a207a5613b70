"""No erasure takes anything from the audit, and the audit names nothing that was erased."""

import json
from pathlib import Path

import pytest

from penstock.engine import Engine
from penstock.engine.audit import digest
from penstock.engine.erasures import find_subject
from penstock.errors import InvalidRequest
from penstock.model import (
    ANONYMOUS,
    ANY,
    AUDIT_CONTEXT,
    Append,
    Erased,
    EraseStream,
    EraseSubject,
    EventFilter,
    EventPage,
    Grant,
    NewEvent,
    Principal,
    PutPrincipal,
    ReadAll,
    Request,
    Right,
    new_event,
)
from penstock.model.columns import columns_of
from penstock.settings import Settings
from penstock.store import store_url
from penstock.store.contract import Commit, Transaction
from penstock.store.sqlite import SqliteStore
from penstock.testing.harness import ThreadedEngine

ROOT = Principal("root", (Grant.of("all"),))
SUBJECT = "Ann Somebody"


def about(subject: str) -> NewEvent:
    return new_event("Tested", b"", json.dumps({"subject": subject}))


async def test_erasures_leave_entries_with_digests(tmp_path: Path) -> None:
    async with ThreadedEngine(store_url(tmp_path), Settings()) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal(ROOT.name, ("all",)))
        for stream in (SUBJECT, "other"):
            await engine.execute(ROOT, Append("shop", stream, [about(SUBJECT), about("Bob")], ANY))
        assert await engine.execute(ROOT, EraseStream("shop", SUBJECT)) == Erased(2, 0, True)
        assert (await engine.execute(ROOT, EraseSubject(SUBJECT))).events == 1  # type: ignore[attr-defined]
        assert (await engine.execute(ROOT, EraseSubject("root"))).events == 0  # type: ignore[attr-defined]
        entries = await _audit(engine)
        assert [(what, facts["by"]) for what, facts in entries] == [
            ("principal-changed", "anonymous"),
            ("erased", "root"),
            ("erased", "root"),
        ]
        assert (entries[1][1]["stream"], entries[2][1]["subject"]) == (digest(SUBJECT), digest(SUBJECT))
        assert SUBJECT not in json.dumps(entries)


async def _audit(engine: Engine) -> list[tuple[str, dict[str, str]]]:
    page = await engine.execute(ROOT, ReadAll(context=AUDIT_CONTEXT))
    assert isinstance(page, EventPage)
    return [(one.type, json.loads(one.body)) for one in page.events]


@pytest.mark.parametrize("request_", [EraseStream(AUDIT_CONTEXT, "access"), EraseSubject("root", AUDIT_CONTEXT)])
@pytest.mark.parametrize("who", [ANONYMOUS, ROOT])
async def test_nobody_erases_the_audit(tmp_path: Path, request_: Request, who: Principal) -> None:
    async with ThreadedEngine(store_url(tmp_path), Settings()) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal(ROOT.name, ("all",)))
        with pytest.raises(InvalidRequest, match="which nobody erases"):
            await engine.execute(who, request_)
        assert len(await _audit(engine)) == 1


def test_a_search_for_a_subject_finds_nothing_of_the_audit_and_nothing_that_one_may_not_see(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    for context, stream in ((AUDIT_CONTEXT, "access"), ("shop", "a"), ("shop", "b")):
        store.write([Transaction((Commit(context, stream, ANY, columns_of([about("x")])),))])
    assert find_subject(store, "x", EventFilter(), 1).streams == (("shop", "a"), ("shop", "b"))
    assert find_subject(store, "x", EventFilter(AUDIT_CONTEXT), 1).ranges == ()
    view = Principal("ann", (Grant.of("admin:shop/b"),)).views[Right.ADMIN]
    assert find_subject(store, "x", EventFilter().seen_by(view), 1).ranges == ((3, 3),)
    store.close()
