"""Access, the audit, erasures, sessions, settings and storage in the console."""

import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final

import httpx
import pytest

import penstock
from penstock import model, testing
from penstock.console import audit
from penstock.console.table import ACTIONS
from penstock.console.visit import Action
from penstock.errors import NotAuthenticated
from penstock.model import ListPage, now_ticks
from penstock.model.times import text_of_ticks
from penstock.store import open_store, store_url
from penstock.store.watermarks import BACKUP
from tests.console.visitor import Guarded, Visitor
from tests.principals import ask, issue, put
from tests.test_server import until

HOSTILE: Final = "<script>alert(1)</script>\u202e"


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with testing.server(page_events_max=500) as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            tokens = {"root": issue(client, "root").token}
        with penstock.connect(server.url, token=tokens["root"]) as root:
            for name, grant in {"reader": "read", "auditor": "audit", "elsewhere": "read,admin:elsewhere"}.items():
                put(root, name, grant)
                tokens[name] = issue(root, name, label=f"of {name}").token
            root.append("shop", "order-1", [penstock.event("Placed", {"n": n}, {"subject": "ann"}) for n in range(5)])
            root.append("shop", "order-2", [penstock.event("Placed", {}, {"subject": "bob"})])
        yield Guarded(server, tokens)


def names(guarded: Guarded) -> list[str]:
    with guarded.client() as root:
        return [one.name for one in ask(root, model.ListPrincipals(), ListPage).items]


def text(answer: httpx.Response | str) -> str:
    """What people read of a page."""
    page = answer if isinstance(answer, str) else answer.text
    return unescape(re.sub(r"\s+", " ", re.sub("<[^>]+>", " ", page)))


# --- access ---------------------------------------------------------------------------------------------------


def test_a_principal_is_made_changed_and_revoked(guarded: Guarded) -> None:
    with guarded.visitor() as visitor:
        page = visitor.page("/access")
        added = visitor.submit(page, "/access/add", principal="maker", grants="read:shop  append:shop/order-*")
        assert added.headers["location"] == "/console/access/principal?principal=maker"
        shown = visitor.page("/access/principal", principal="maker")
        assert "append on streams of the context shop that begin with order-" in text(shown)
        again = visitor.submit(page, "/access/add", principal="maker", grants="read")
        assert (again.status_code, "exists already" in text(again)) == (409, True)
        change = {"grants": "read\r\nappend:shop", "requests_per_s_max": "5"}
        assert visitor.submit(shown, "/access/change", **change, typed="make").status_code == 422
        wrong = visitor.submit(shown, "/access/change", **change | {"grants": "fly:shop"}, typed="maker")
        assert "'fly'" in text(wrong)
        assert visitor.submit(shown, "/access/change", **change, typed="maker").status_code == 303
        with guarded.client() as root:
            found = next(one for one in ask(root, model.ListPrincipals(), ListPage).items if one.name == "maker")
        assert (found.grants, found.limits.requests_per_s_max) == (("read:*", "append:shop"), 5)
        assert visitor.submit(shown, "/access/drop", typed="").status_code == 422
        assert "maker" in names(guarded)
        assert visitor.submit(shown, "/access/drop", typed="maker").status_code == 303
        assert "maker" not in names(guarded)


@pytest.mark.parametrize("name", [HOSTILE, "", "anonymous", "a" * 200, "a/b"])
def test_a_bad_name_makes_no_principal(guarded: Guarded, name: str) -> None:
    with guarded.visitor() as visitor:
        answer = visitor.submit(visitor.page("/access"), "/access/add", principal=name, grants="read")
        assert answer.status_code == 422
        assert "<script>alert" not in answer.text
        assert visitor.get("/access/principal", principal=name).status_code == 404
    assert name not in names(guarded)


def test_a_token_is_shown_once_works_and_is_revoked(guarded: Guarded) -> None:
    with guarded.visitor() as visitor, guarded.client() as root:
        put(root, "program", "read")
        page = visitor.page("/access/token", principal="program")
        made = visitor.submit(page, "/access/token", label=f"for {HOSTILE[:8]}", days="30")
        token = re.findall(r'id="token">([^<]+)<', made.text)[0]
        assert made.headers["cache-control"] == "no-store"
        with penstock.connect(guarded.server.url, token=token) as client:
            assert client.whoami().principal == "program"
        listed = visitor.page("/access/principal", principal="program")
        assert token not in listed
        assert token.partition(".")[2] not in listed
        assert "for <script>" in text(listed)
        (credential,) = ask(root, model.ListCredentials("program"), ListPage).items
        assert credential.expires is not None
        assert 29 < (credential.expires - now_ticks()) / (24 * 3600 * 10_000_000) <= 30
        assert "not yet" not in text(listed)
        assert visitor.submit(listed, "/access/revoke", typed="other").status_code == 422
        assert visitor.submit(listed, "/access/revoke", typed="program").status_code == 303
        with pytest.raises(NotAuthenticated):
            penstock.connect(guarded.server.url, token=token).close()
        for days in ("0", "-1", "x", "99999999"):
            refused = visitor.submit(page, "/access/token", days=days)
            assert refused.status_code == 400
            assert 'id="token"' not in refused.text
        unsafe = visitor.submit(page, "/access/token", label="\x1b[31m")
        assert unsafe.status_code == 422
        assert ask(root, model.ListCredentials("program"), ListPage).items == []


def test_a_certificate_stands_for_a_principal(guarded: Guarded) -> None:
    with guarded.visitor() as visitor, guarded.client() as root:
        put(root, "machine", "read")
        page = visitor.page("/access/principal", principal="machine")
        assert visitor.submit(page, "/access/credential", kind="certificate", value="m.example").status_code == 303
        wrong = visitor.submit(page, "/access/credential", kind="curve", value="short")
        assert "a public key of CURVE has 40 characters" in text(wrong)
        found = ask(root, model.ListCredentials("machine"), ListPage).items
        assert [one.id for one in found] == ["certificate:m.example"]


def test_the_last_administrator_stays(guarded: Guarded) -> None:
    with guarded.visitor() as visitor:
        page = visitor.page("/access/principal", principal="root")
        answer = visitor.submit(page, "/access/drop", typed="root")
        assert answer.status_code >= 400
        assert "It did not work." in answer.text
    assert "root" in names(guarded)


def test_who_may_do_what_is_explained(guarded: Guarded) -> None:
    def states(where: str, who: str) -> list[str]:
        page = visitor.page("/access/check", where=where)
        row = re.findall(rf'principal={who}">{who}</a></th>(.*?)</tr>', page, re.DOTALL)[0]
        return re.findall(r'class="badge [a-z]+">([^<]+)<', row)

    with guarded.visitor() as visitor:
        assert states("shop/order-1", "reader") == ["Yes", "No", "No", "No", "No"]
        assert states("elsewhere", "elsewhere") == ["Yes", "No", "No", "Yes", "No"]
        assert states("*", "elsewhere")[0] == "In part"
        assert states("*", "root") == ["Yes"] * 5
        assert states("*", "auditor")[4] == "Yes"
        assert "read:*" in visitor.page("/access/check", where="shop")
        assert visitor.get("/access/check", where="a/*/b").status_code == 422


def test_an_open_server_says_that_it_is_open() -> None:
    with testing.server() as server, Visitor(server.http) as visitor:
        assert "every client may do everything" in text(visitor.page("/access"))
        assert 'action="/console/access/add"' not in visitor.page("/access")
        csrf = visitor.hidden(visitor.page("/logs"), "/logs/create")["csrf"]
        answer = visitor.post("/access/add", {"csrf": csrf, "principal": "root", "grants": "all"})
        assert (answer.status_code, "penstock access init" in answer.text) == (409, True)
        assert "keeps no audit" in text(visitor.page("/audit"))


def test_principals_of_a_file_are_only_shown(tmp_path: Path) -> None:
    token = "0123456789abcdef.secret"
    proof = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"
    file = tmp_path / "access.toml"
    file.write_text(
        f'[principals.root]\ngrants = ["all"]\ntokens = [{{id = "0123456789abcdef", sha256 = "{proof}"}}]\n'
    )
    file.chmod(0o600)
    with testing.server(access_file=str(file)) as server, Visitor(server.http) as visitor:
        assert visitor.log_in(token).status_code == 303
        for path, query in (("/access", {}), ("/access/principal", {"principal": "root"})):
            page = visitor.page(path, **query)
            assert "A file decides who may come in" in text(page)
            assert 'action="/console/access/' not in page
        csrf = visitor.hidden(visitor.page(), "/logout")["csrf"]
        for action, fields in {
            "/access/add": {"principal": "x", "grants": "read"},
            "/access/token": {"principal": "root"},
            "/access/drop": {"principal": "root", "typed": "root", "back": "/console/access/principal?principal=root"},
        }.items():
            answer = visitor.post(action, {"csrf": csrf, **fields})
            assert answer.status_code == 422
            assert "access_file" in answer.text


@pytest.mark.parametrize("action", [one for one in ACTIONS if one.page.startswith(("/access", "/erasures", "/sess"))])
@pytest.mark.parametrize("who", ["reader", "elsewhere"])
def test_changes_need_the_right_to_administer(guarded: Guarded, action: Action, who: str) -> None:
    fields = {"principal": "reader", "typed": "reader", "stream": "order-1", "context": "shop", "subject": "ann"}
    fields |= {"last": "100", "grants": "all", "session": "mq-1", "credential": "x", "kind": "curve", "value": "x"}
    if action.confirm:
        fields["typed"] = fields[action.confirm]
    with guarded.visitor(who) as visitor:
        csrf = visitor.hidden(visitor.page(), "/logout")["csrf"]
        answer = visitor.post(action.path, {**fields, "csrf": csrf})
    assert answer.status_code == 403
    with guarded.client() as root:
        assert len(list(root.read_stream("shop", "order-1"))) == 5


# --- the audit ------------------------------------------------------------------------------------------------


def entries(page: str) -> list[str]:
    return [text(one) for one in re.findall(r'<li class="entry">(.*?)</li>', page, re.DOTALL)]


def test_the_audit_tells_who_did_what_and_is_filtered(guarded: Guarded) -> None:
    with guarded.client() as root, guarded.visitor("auditor") as visitor:
        put(root, "watched", "read:shop")
        since = now_ticks()
        issue(root, "watched", label=HOSTILE[:25])
        newest = entries(visitor.page("/audit"))[0]
        assert "root issued a token Details" in newest
        assert "principal watched" in newest
        assert "<script>alert" not in visitor.page("/audit")
        by_what = entries(visitor.page("/audit", what="principal-changed"))
        assert by_what
        assert all("changed a principal" in one for one in by_what)
        assert entries(visitor.page("/audit", by="nobody-here")) == []
        assert len(entries(visitor.page("/audit", since=text_of_ticks(since)))) == 1
        assert not any("watched" in one for one in entries(visitor.page("/audit", until="2020-01-01")))
        assert "changed a principal" in entries(visitor.page("/audit", until=text_of_ticks(since)))[0]
        assert visitor.get("/audit", since="yesterday").status_code == 400
        link = re.findall(r'href="([^"]+)">Details', visitor.page("/audit"))[0]
        assert visitor.http.get(unescape(link)).status_code == 200


def test_the_audit_of_several_streams_is_paged_by_time(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "ENTRIES", 7)
    monkeypatch.setattr(audit, "READ", 3)
    with guarded.client() as root, guarded.visitor() as visitor:
        for number in range(12):
            put(root, "often", f"read:shop/{number}")
            root.append("shop", f"gone-{number}", [penstock.event("X", {})])
            root.erase_stream("shop", f"gone-{number}")
        wanted = [event.position for event in root.read_all(context="$audit")][::-1]
        for query in ({}, {"by": "root"}, {"what": "erased"}):
            found: list[tuple[str, int]] = []
            page = visitor.page("/audit", **query)
            while True:
                links = re.findall(r'stream=([a-z]+)&amp;version=(\d+)">Details', page)
                found += [(area, int(version)) for area, version in links]
                older = re.search(r'href="([^"]+)">Older<', page)
                if older is None:
                    break
                page = visitor.http.get(unescape(older[1])).text
            events = {
                (event.stream, event.sequence): event
                for event in root.read_all(context="$audit")
                if query.get("what", event.type) == event.type and query.get("by") in (None, event.json()["by"])
            }
            assert len(found) == len(set(found))
            assert set(found) == set(events)
            positions = [events[one].position for one in found]
            assert positions == sorted(positions, reverse=True)
            assert query or positions == wanted


# --- erasures -------------------------------------------------------------------------------------------------


def test_a_stream_is_erased_after_a_preview_and_its_typed_name(guarded: Guarded) -> None:
    with guarded.client() as root, guarded.visitor() as visitor:
        root.append("shop", "old", [penstock.event("X", {"n": n}) for n in range(4)])
        page = visitor.page("/erasures/preview")
        preview = visitor.submit(page, "/erasures/preview", context="shop", stream="old", last="3")
        assert "Up to 3 events" in text(preview)
        assert len(list(root.read_stream("shop", "old"))) == 4
        assert visitor.submit(preview.text, "/erasures/stream", typed="new").status_code == 422
        assert len(list(root.read_stream("shop", "old"))) == 4
        assert visitor.submit(preview.text, "/erasures/stream", typed="old").status_code == 303
        assert [event.sequence for event in root.read_stream("shop", "old")] == [4]
        ledger = visitor.page("/erasures")
        assert "3 events of the stream are hidden" in text(ledger)
        until(lambda: "Under way" not in visitor.page("/erasures"))
        nothing = visitor.submit(page, "/erasures/preview", context="shop", stream="nothing")
        assert (nothing.status_code, "There are no events in this stream" in text(nothing)) == (404, True)


def test_a_subject_is_counted_and_erased_up_to_where_it_was_counted(guarded: Guarded) -> None:
    with guarded.client() as root, guarded.visitor() as visitor:
        for context in ("people", "more"):
            root.append(context, "s", [penstock.event("X", {}, {"subject": HOSTILE}) for _ in range(3)])
        page = visitor.page("/erasures/preview", kind="subject")
        preview = visitor.submit(page, "/erasures/preview", subject=HOSTILE, context="people")
        assert "3 events that name" in text(preview)
        assert "<script>alert" not in preview.text
        preview = visitor.submit(page, "/erasures/preview", subject=HOSTILE)
        assert "6 events that name" in text(preview)
        root.append("people", "s", [penstock.event("X", {}, {"subject": HOSTILE})])
        assert visitor.submit(preview.text, "/erasures/subject", typed="x").status_code == 422
        assert visitor.submit(preview.text, "/erasures/subject", typed=HOSTILE).status_code == 303
        assert [event.sequence for event in root.read_all(context="people")] == [4]
        audit = [event.json() for event in root.read_stream("$audit", "erasures")]
        assert audit[-1]["subject"].startswith("sha256:")
        assert visitor.submit(page, "/erasures/preview", subject=" ").status_code == 400


# --- the server -----------------------------------------------------------------------------------------------


def test_sessions_are_listed_with_their_principals_and_closed(guarded: Guarded) -> None:
    with guarded.client("reader") as reader, guarded.visitor() as visitor:
        reader.contexts()
        page = visitor.page("/sessions", gate="mq")
        rows = re.findall(r'class="when">(mq-\d+)<small>[^<]+</small></th>(.*?)</tr>', page, re.DOTALL)
        session, row = next((name, row) for name, row in rows if ">reader<" in row)
        assert "127.0.0.1:" in row
        assert "mq-" not in visitor.page("/sessions", gate="remits")
        fields = {**visitor.hidden(page, "/sessions/close"), "session": session}
        assert visitor.post("/sessions/close", fields).status_code == 303
        until(lambda: f">{session}<" not in visitor.page("/sessions"))
        assert visitor.post("/sessions/close", fields).status_code == 404
        with guarded.client() as root:
            last = list(root.read_stream("$audit", "sessions"))[-1]
        assert (last.type, last.json()) == ("session-kicked", {"by": "root", "session": session})


def test_settings_have_their_values_and_no_secrets(guarded: Guarded) -> None:
    with guarded.visitor() as visitor:
        page = visitor.page("/settings", find="page_events_max")
        assert re.search(r"<code>page_events_max</code></th><td class=\"value\"><code>500</code></td>", page)
        assert "set by the program" in page
        changed = visitor.page("/settings", only="changed")
        assert "<code>page_events_max</code>" in changed
        assert "<code>reader_queue_max</code>" not in changed
        assert "<code>reader_queue_max</code>" in visitor.page("/settings")
        assert "No setting matches" in visitor.page("/settings", find=HOSTILE)


def test_storage_says_how_old_the_backup_is(tmp_path: Path) -> None:
    with testing.server(tmp_path) as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            client.append("shop", "s", [penstock.event("X", {}) for _ in range(3)])
        assert "There is no backup of this store" in visitor.page("/storage")
        assert f"penstock verify --data {tmp_path}" in visitor.page("/storage")
    store = open_store(store_url(tmp_path), stream_cache_max=10, wal_bytes_max=1 << 20)
    store.leave_watermark(BACKUP, store.identity(), 2)
    store.close()
    with testing.server(tmp_path) as server, Visitor(server.http) as visitor:
        page = text(visitor.page("/storage"))
    assert "1 event came since" in page
    assert "Has all up to position 2" in page
