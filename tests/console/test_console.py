"""The console over HTTP: who may come in, what forms need, what each principal sees, what pages allow browsers."""

import json
import re
import ssl
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

import httpx
import pytest

import penstock
from penstock import model, testing
from penstock.console import app
from penstock.console.app import FORM_BYTES_MAX
from penstock.console.sessions import FAILURES_MAX
from penstock.console.static_files import FOLDER
from penstock.console.table import ACTIONS, PAGES
from penstock.console.visit import Action, Page, Refused, Visit
from penstock.model import Limits, Right, now_ticks
from penstock.model.times import TICKS_PER_MS
from tests.certificates import Authority
from tests.console.visitor import Visitor
from tests.principals import ask, closed, issue, put
from tests.test_server import until

QUERIES: Final = {
    "/browse/streams": {"context": "shop"},
    "/browse/stream": {"context": "shop", "stream": "order-1"},
    "/browse/event": {"context": "shop", "stream": "order-1", "version": "1"},
    "/browse/body": {"context": "shop", "stream": "order-1", "version": "1"},
    "/queues/queue": {"context": "shop", "queue": "mails"},
    "/queues/change": {"context": "shop", "queue": "mails", "do": "delete"},
    "/subscriptions/subscription": {"id": "1"},
    "/logs/log": {"log": "visits"},
    "/iterators/iterator": {"iterator": "pages"},
    "/access/principal": {"principal": "root"},
    "/access/token": {"principal": "root"},
}
"""What pages have to be asked for."""
HIDDEN: Final = (
    "/queues/queue",
    "/queues/change",
    "/subscriptions/subscription",
    "/logs/log",
    "/iterators/iterator",
)
"""Pages of what does not exist for those who may not see all of it."""
ENDING: Final = [page for page in PAGES if page.path != "/tail/events"]
"""The pages whose answers come to an end."""
RIGHTS: Final = {
    "root": (Right.ALL, True),
    "reader": (Right.READ, True),
    "narrow": (Right.READ, False),
    "elsewhere": (Right.READ | Right.APPEND | Right.CONSUME | Right.ADMIN, False),
    "writer": (Right.APPEND, True),
}
"""What principals may do, and whether everywhere."""
POLICY: Final = {
    "default-src": "'none'",
    "script-src": "'self'",
    "style-src": "'self'",
    "img-src": "'self' data:",
    "connect-src": "'self'",
    "worker-src": "'self'",
    "form-action": "'self'",
    "frame-ancestors": "'none'",
    "base-uri": "'none'",
}


class Guarded(NamedTuple):
    server: testing.Server
    tokens: dict[str, str]

    def visitor(self, who: str | None = None) -> Visitor:
        """A browser in which somebody has logged in."""
        made = Visitor(self.server.http)
        if who is not None:
            assert made.log_in(self.tokens[who]).status_code == 303
        return made

    def client(self, who: str = "root") -> penstock.Client:
        return penstock.connect(self.server.url, token=self.tokens[who])


@pytest.fixture(scope="module")
def guarded() -> Iterator[Guarded]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            tokens = {"root": issue(client, "root").token}
        with penstock.connect(server.url, token=tokens["root"]) as root:
            for name, *grants in (
                ("reader", "read"),
                ("narrow", "read:shop/order-1"),
                ("elsewhere", "read,append,consume,admin:elsewhere"),
                ("writer", "append"),
            ):
                put(root, name, *grants)
                tokens[name] = issue(root, name).token
            root.append("shop", "order-1", [penstock.event("Placed", {"total": 1}), penstock.event("Paid", {})])
            root.append("shop", "secret-2", [penstock.event("Hidden", {"pin": 4711})])
            root.queue("shop", "mails").declare()
            assert root.subscription("report", context="shop").id() == 1
            root.log("visits").create()
            root.iterator("pages").create("visits", "map", "msg.page")
        yield Guarded(server, tokens)


@pytest.fixture(scope="module")
def opened() -> Iterator[Visitor]:
    """A visitor of a server without principals."""
    with testing.server() as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            client.append("shop", "order-1", [penstock.event("Placed", {"total": 1})])
        yield visitor


# --- who may come in ------------------------------------------------------------------------------------------


def test_browsers_are_sent_to_the_console_and_others_get_the_index(opened: Visitor) -> None:
    browser = opened.http.get("/", headers={"accept": "text/html,application/xhtml+xml"})
    assert (browser.status_code, browser.headers["location"]) == (303, "/console")
    index = opened.http.get("/")
    assert index.headers["content-type"].startswith("text/plain")
    assert "/console" in index.text


@pytest.mark.parametrize("page", ENDING, ids=lambda page: page.path)
def test_whoever_is_not_logged_in_is_sent_to_log_in_and_comes_back(guarded: Guarded, page: Page) -> None:
    path = page.path.rstrip("/")
    with guarded.visitor() as visitor:
        cookies = ("", "x" * 43, "<script>")
        sent = [{"cookie": f"penstock_console={cookie}"} for cookie in cookies]
        answers = [visitor.http.get(f"/console{path}", params=QUERIES.get(page.path), headers=one) for one in sent]
        for answer in answers:
            assert answer.status_code == 303
            assert answer.headers["location"].startswith("/console/login?next=%2Fconsole")
            assert "order" not in answer.text
        part = visitor.http.get(f"/console{path}", headers={"hx-request": "true"})
        assert part.status_code == 401
        assert part.headers["hx-redirect"].startswith("/console/login?next=%2Fconsole")
        back = httpx.QueryParams(answers[0].headers["location"].partition("?")[2])["next"]
        logged_in = visitor.log_in(guarded.tokens["root"], back)
        assert (logged_in.status_code, logged_in.headers["location"]) == (303, back)
        assert visitor.http.get(back).status_code == 200


def test_a_wrong_token_and_a_revoked_one_get_the_same_answer(guarded: Guarded) -> None:
    with guarded.client() as root:
        put(root, "gone", "read")
        gone = issue(root, "gone").token
        ask(root, model.DropPrincipal("gone"), model.Done)
    with guarded.visitor() as visitor:
        before = visitor.page("/login") and visitor.cookie
        answers = [visitor.log_in(token) for token in (gone, guarded.tokens["root"][:-2] + "xx")]
        assert {answer.status_code for answer in answers} == {401}
        assert len({answer.text for answer in answers}) == 1
        assert "is not valid here" in answers[0].text
        assert gone not in answers[0].text
        assert visitor.cookie == before
        assert visitor.get().status_code == 303


def test_logging_in_makes_a_new_id_and_logging_out_ends_it(guarded: Guarded) -> None:
    with guarded.visitor() as visitor:
        visitor.get("/login")
        before = visitor.cookie
        answer = visitor.log_in(guarded.tokens["root"])
        assert visitor.cookie != before
        flags = answer.headers["set-cookie"].lower()
        assert all(flag in flags for flag in ("httponly", "samesite=strict", "path=/console"))
        assert "secure" not in flags
        assert "set-cookie" not in visitor.get().headers
        old = visitor.cookie
        assert old is not None
        assert visitor.submit(visitor.page(), "/logout").headers["location"] == "/console/login"
        assert visitor.cookie != old
        assert visitor.get().status_code == 303
        visitor.http.cookies.clear()
        assert visitor.http.get("/console", headers={"cookie": f"penstock_console={old}"}).status_code == 303


def test_a_session_ends_at_once_when_its_token_is_revoked(guarded: Guarded) -> None:
    with guarded.client() as root, guarded.visitor() as visitor:
        put(root, "short", "read")
        first, second = issue(root, "short"), issue(root, "short")
        with Visitor(guarded.server.http) as other:
            assert visitor.log_in(first.token).status_code == other.log_in(second.token).status_code == 303
            ask(root, model.DropCredential(first.id), model.Done)
            answer = visitor.get("/browse")
            assert answer.headers["location"] == "/console/login?next=%2Fconsole%2Fbrowse&ended=1"
            assert "Your session has ended" in visitor.http.get(answer.headers["location"]).text
            assert other.get("/browse").status_code == 200
            put(root, "short", "read:elsewhere")
            assert "shop" not in other.page("/browse")
            ask(root, model.DropPrincipal("short"), model.Done)
            assert other.get("/browse").status_code == 303


def test_a_session_ends_when_its_token_expires(guarded: Guarded) -> None:
    with guarded.client() as root, guarded.visitor() as visitor:
        put(root, "late", "read")
        soon = now_ticks() + 300 * TICKS_PER_MS
        assert visitor.log_in(issue(root, "late", expires=soon).token).status_code == 303
        until(lambda: visitor.get().status_code == 303)
        assert now_ticks() >= soon


def test_after_too_many_wrong_tokens_an_address_has_to_wait(guarded: Guarded) -> None:
    with testing.server() as server, Visitor(server.http) as visitor:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        for _ in range(FAILURES_MAX):
            assert visitor.log_in("wrong").status_code == 401
        answer = visitor.log_in(token)
        assert answer.status_code == 429
        assert 1 <= int(answer.headers["retry-after"]) <= 60
        assert visitor.get().status_code == 303


@pytest.mark.parametrize(
    "next",
    ["https://evil.example/", "//evil.example", "/v1/events", "/consolevil", "/console\\evil", "/console/\r\nx: y", ""],
)
def test_logging_in_leads_to_the_console_only(guarded: Guarded, next: str) -> None:
    with guarded.visitor() as visitor:
        assert visitor.log_in(guarded.tokens["root"], next).headers["location"] == "/console"


def test_without_principals_nobody_logs_in_until_there_is_one() -> None:
    with testing.server() as server, Visitor(server.http) as visitor:
        assert "no login" in visitor.page()
        assert "nobody has to log in" in visitor.page("/login")
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
        assert visitor.get().status_code == 303


def test_requests_without_a_token_are_those_of_the_fixed_principal(tmp_path: Path) -> None:
    token = closed(tmp_path, guest="read:shop")
    with testing.server(tmp_path, http_as="guest") as server, Visitor(server.http) as visitor:
        assert "guest" in visitor.page()
        assert visitor.log_in(token("root")).status_code == 303
        text = visitor.page()
        assert "root" in text
        visitor.submit(text, "/logout")
        assert "guest" in visitor.page()
        bearer = visitor.http.get("/console", headers={"authorization": f"Bearer {token('root')}"})
        assert "root" in bearer.text
        assert visitor.http.get("/console", headers={"authorization": "Bearer wrong"}).status_code == 401


def test_over_tls_the_cookie_is_secure_and_a_certificate_is_a_principal(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, mine = authority.issue("server", "localhost", "127.0.0.1"), authority.issue("client", "ann.example")
    tokens = closed(tmp_path / "store")
    files = {"tls_cert": str(ours.cert), "tls_key": str(ours.key), "tls_client_ca": str(authority.cert)}
    context = ssl.create_default_context(cafile=str(authority.cert))
    context.load_cert_chain(mine.cert, mine.key)
    with penstock.connect(f"sqlite:///{tmp_path / 'store'}") as client:
        put(client, "ann", "read")
        ask(client, model.AddCredential("ann", "certificate:ann.example"), model.Done)
    with testing.server(tmp_path / "store", **files) as server, Visitor(server.http, verify=context) as visitor:
        answer = visitor.get()
        assert "<b>ann</b>" in answer.text
        assert "secure" in answer.headers["set-cookie"].lower()
        assert "secure" in visitor.log_in(tokens("root")).headers["set-cookie"].lower()
        assert "<b>root</b>" in visitor.page()


def test_a_link_from_another_site_loads_the_page_once_more_to_get_the_cookie(guarded: Guarded) -> None:
    with guarded.visitor("root") as visitor:
        cookie = visitor.cookie
        visitor.http.cookies.clear()
        headers = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
        answer = visitor.http.get("/console/browse", headers=headers)
        assert answer.status_code == 200
        assert "http-equiv=refresh" in answer.text
        assert "set-cookie" not in answer.headers
        assert cookie is not None
        headers["cookie"] = f"penstock_console={cookie}"
        assert "<h1>Contexts</h1>" in visitor.http.get("/console/browse", headers=headers).text


# --- what each principal sees ---------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["root", "reader", "narrow", "elsewhere", "writer"])
@pytest.mark.parametrize("page", ENDING, ids=lambda page: page.path)
def test_a_page_shows_what_its_reader_may_see_and_nothing_else(guarded: Guarded, page: Page, who: str) -> None:
    with guarded.visitor(who) as visitor:
        answer = visitor.get(page.path.rstrip("/"), **QUERIES.get(page.path, {}))
    sees_all = who in ("root", "reader")
    sees_stream = sees_all or who == "narrow"
    rights, is_everywhere = RIGHTS[who]
    may = page.right is None or (page.right in rights and (is_everywhere or not page.everywhere))
    if page.path in ("/browse/event", "/browse/body", "/browse/stream"):
        may = sees_stream
    elif page.path == "/browse/streams" and who == "elsewhere":
        may = False
    is_hidden = may and page.path in HIDDEN and not sees_all
    assert answer.status_code in ((403, 404) if is_hidden else (200 if may else 403,))
    if not sees_all:
        assert "secret-2" not in answer.text
        assert "4711" not in answer.text
    if not sees_stream:
        assert "Placed" not in answer.text
    if answer.status_code == 403:
        assert "may not do this" in answer.text


def test_a_page_of_a_limited_principal_says_when_to_come_back(guarded: Guarded) -> None:
    with guarded.client() as root:
        ask(root, model.PutPrincipal("slow", ("read",), Limits(requests_per_s_max=1)), model.Done)
        guarded.tokens["slow"] = issue(root, "slow").token
    with guarded.visitor("slow") as visitor:
        answers = [visitor.get("/browse") for _ in range(5)]
    late = [answer for answer in answers if answer.status_code == 429]
    assert late
    assert int(late[0].headers["retry-after"]) >= 1
    assert "is over its limit requests_per_s_max" in late[0].text


def test_the_navigation_has_no_pages_that_the_principal_may_not_see(guarded: Guarded) -> None:
    with guarded.visitor("writer") as visitor:
        assert 'href="/console/browse"' not in visitor.page()
    with guarded.visitor("reader") as visitor:
        assert 'href="/console/browse"' in visitor.page()


# --- what pages allow browsers --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/login", "/browse", "/nothing"])
def test_pages_have_a_strict_policy_and_no_inline_scripts_or_styles(opened: Visitor, path: str) -> None:
    answer = opened.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
    assert policy == POLICY
    assert answer.headers["cache-control"] == "no-store"
    assert answer.headers["referrer-policy"] == "same-origin"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:|<script(?![^>]* src=)", answer.text)
    assert not re.search(r'(src|href)="(?!/console|#)', answer.text)


def test_static_files_are_kept_for_long_under_the_digest_of_their_content(opened: Visitor) -> None:
    found = re.findall(r'(?:src|href)="(/console/static/[^"]+)"', opened.page())
    assert {Path(url).name for url in found} >= {"console.css", "console.js", "htmx.min.js", "uPlot.iife.min.js"}
    for url in found:
        answer = opened.http.get(url)
        assert answer.status_code == 200
        assert answer.headers["cache-control"] == "public, max-age=31536000, immutable"
        assert sha256(answer.content).hexdigest().startswith(url.split("/")[3])
    for bad in ("/console/static/000000000000/console.css", "/console/static/x", "/console/static/../app.py"):
        assert opened.http.get(bad).status_code == 404


def test_the_files_of_others_are_those_that_their_page_names() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \|.*`([0-9a-f]{64})` \|$", (FOLDER / "vendor/README.md").read_text(), re.MULTILINE
    )
    assert {name for name, _ in rows} == {path.name for path in (FOLDER / "vendor").glob("*.[cj]s*")}
    for name, digest in rows:
        assert sha256((FOLDER / "vendor" / name).read_bytes()).hexdigest() == digest


# --- forms ----------------------------------------------------------------------------------------------------


def test_a_form_without_the_token_of_its_page_changes_nothing(guarded: Guarded) -> None:
    with guarded.visitor("root") as visitor, guarded.visitor("root") as other:
        text = visitor.page()
        theirs = other.hidden(other.page(), "/logout")["csrf"]
        for csrf in ("", "x", theirs):
            answer = visitor.post("/logout", {"csrf": csrf})
            assert answer.status_code == 403
            assert "nothing was changed" in answer.text
        assert visitor.page()
        csrf = visitor.hidden(text, "/logout")["csrf"]
        assert visitor.post("/logout", {}, X_CSRF_Token=csrf).status_code == 303


def test_a_form_of_another_site_is_refused(guarded: Guarded) -> None:
    with guarded.visitor("root") as visitor:
        fields = visitor.hidden(visitor.page(), "/logout")
        for headers in ({"origin": "https://evil.example"}, {"origin": "null"}, {"sec_fetch_site": "cross-site"}):
            sent = {name.replace("_", "-"): value for name, value in headers.items()}
            assert visitor.http.post("/console/logout", data=fields, headers=sent).status_code == 403
        assert visitor.page()


def test_a_form_has_a_limit_and_one_type(opened: Visitor) -> None:
    large = opened.post("/login", {"token": "x" * FORM_BYTES_MAX})
    assert large.status_code == 413
    assert "256 KiB" in large.text
    assert opened.post("/login", {str(number): "" for number in range(101)}).status_code == 400
    form = opened.http.post("/console/login", files={"token": b"x"}, headers={"origin": opened.origin})
    assert form.status_code == 415
    assert opened.http.post("/console/login", content=b"csrf=%FF").status_code == 400
    assert opened.http.put("/console/login").status_code == 405
    assert opened.http.request("DELETE", "/console", content=b"x").status_code == 413


async def _rename(visit: Visit) -> str:
    if visit.field("name") == "bad":
        raise Refused(409, "bad is taken", "Take another name.")
    await visit.record("queues", "queue-renamed", name=visit.field("name"))
    return f"<b>{visit.field('name')}</b> is renamed"


RENAME: Final = Action("/test/rename", "/browse", _rename, Right.CONSUME, everywhere=True, confirm="name")


def test_an_action_needs_its_right_and_what_has_to_be_typed_and_says_what_it_did(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(app, "ACTIONS", (*ACTIONS, RENAME))
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root, Visitor(server.http) as visitor:
            put(root, "reader", "read")
            visitor.log_in(token)
            csrf = visitor.hidden(visitor.page(), "/logout")["csrf"]
            back = "/console/browse?after=a"
            fields = {"csrf": csrf, "back": back, "name": "q1", "typed": "q1"}
            done = visitor.post("/test/rename", fields)
            assert (done.status_code, done.headers["location"]) == (303, back)
            page = visitor.http.get(back).text
            assert "&lt;b&gt;q1&lt;/b&gt; is renamed." in page
            assert "is renamed" not in visitor.http.get(back).text
            audit = root.read_stream("$audit", "queues")
            assert [(event.type, event.json()) for event in audit] == [("queue-renamed", {"by": "root", "name": "q1"})]
            untyped = visitor.post("/test/rename", fields | {"typed": "q2"})
            assert untyped.status_code == 422
            assert "What you typed is not q1" in untyped.text
            refused = visitor.post("/test/rename", fields | {"name": "bad", "typed": "bad"})
            assert refused.status_code == 409
            assert "Bad is taken." in refused.text
            assert "<h1>Contexts</h1>" in refused.text
            elsewhere = visitor.post("/test/rename", fields | {"back": "https://evil.example"})
            assert elsewhere.headers["location"] == "/console"
            assert visitor.post("/test/nothing", fields).status_code == 404
            with Visitor(server.http) as other:
                other.log_in(issue(root, "reader").token)
                csrf = other.hidden(other.page(), "/logout")["csrf"]
                answer = other.post("/test/rename", fields | {"csrf": csrf})
                assert answer.status_code == 403
                assert "it needs the right consume" in answer.text
            assert len(list(root.read_stream("$audit", "queues"))) == 2


# --- the overview ---------------------------------------------------------------------------------------------


def test_the_overview_says_what_is_wrong_and_what_to_do(guarded: Guarded) -> None:
    with guarded.visitor("root") as visitor, guarded.client() as root:
        assert "There is no backup of this store." in visitor.page()
        queue = root.queue("shop", "billing", subscriber="biller", count=1)
        batch = queue.take()
        batch.bury(batch[0], "no such customer")
        queue.acknowledge(batch)
        text = visitor.page()
        assert "Queue billing of shop has 1 dead letters" in text
        assert "put them back" in text
        with guarded.visitor("narrow") as narrow:
            seen = narrow.page()
        assert "billing" not in seen
        assert "backup" not in seen
        assert "Gates" not in seen


def test_a_part_of_a_page_is_answered_alone(opened: Visitor) -> None:
    part = opened.get("", part="store")
    assert part.status_code == 200
    assert "Head position" in part.text
    assert "<html" not in part.text
    assert opened.get("", part="nothing").status_code == 404


def test_charts_get_the_samples_after_a_time(opened: Visitor) -> None:
    opened.page()
    until(lambda: len(json.loads(opened.get("/samples").text)["time"]) >= 2)
    series = json.loads(opened.get("/samples").text)
    assert set(series) == {"time", "events", "commits", "delivered", "answers", "p50", "p99"}
    assert len({len(values) for values in series.values()}) == 1
    after = json.loads(opened.get("/samples", since=series["time"][0]).text)
    assert after["time"][0] == series["time"][1]
    assert opened.get("/samples", since="x").status_code == 400
    assert "<polyline" in opened.page()
