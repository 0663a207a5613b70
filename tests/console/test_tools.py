"""Trials, SQL and a token in a real browser; and all pages of these groups on a phone, in the dark, without scripts."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Page, expect

import penstock
from penstock import testing
from tests.browser import DESKTOP, PHONE, barriers, browser, needs_chromium, visitor
from tests.principals import issue, put

pytestmark = needs_chromium

HOSTILE: Final = "<img src=x onerror=alert(1)>\u202e\x1b[31m"
PATHS: Final = {
    "/logs": "Logs",
    "/logs/log?log=visits": "visits",
    "/iterators": "Iterators",
    "/iterators/iterator?iterator=big": "big",
    "/iterators/try?log=visits": "Try a function",
    "/sql": "SQL",
    "/storage": "Storage",
    "/sessions": "Sessions",
    "/settings": "Settings",
    "/access": "Access",
    "/access/principal?principal=program": "program",
    "/access/token?principal=program": "Issue a token of program",
    "/access/check?where=shop": "Who may do what",
    "/audit": "Audit",
    "/erasures": "Erasures",
    "/erasures/preview": "Erase events",
}


class Stored(NamedTuple):
    server: testing.Server
    browser: Browser
    token: str

    def open(self, page: Page, path: str) -> None:
        page.goto(f"{self.server.http}/console{path}")
        if page.url.startswith(f"{self.server.http}/console/login"):
            page.fill("[name=token]", self.token)
            page.click("main button")
            expect(page).to_have_url(f"{self.server.http}/console{path}")


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root:
            put(root, "program", "read:shop")
            issue(root, "program", label="<b>bold</b>")
            root.log("visits").create()
            root.log("visits").append([{"n": number, "big": 2**70, HOSTILE: HOSTILE} for number in range(30)])
            root.iterator("big").create("visits", "filter", "msg.n > 20", indexed=True)
            root.append("shop", HOSTILE, [penstock.event("Placed", {"total": 1})])
            root.erase_stream("shop", HOSTILE)
            root.append("shop", "order-1", [penstock.event("Placed", {"total": 7})])
        with browser() as started:
            yield Stored(server, started, token)


def test_a_function_is_tried_and_becomes_an_iterator(stored: Stored) -> None:
    with visitor(stored.browser) as one:
        page = one.tab()
        stored.open(page, "/iterators/try?log=visits")
        expect(page.get_by_label("From message")).to_have_value("0")
        expect(page.get_by_label("How many")).to_have_value("20")
        page.get_by_label("Function").fill(
            "if msg.n == 1 then error('no') end\nreturn {twice = msg.n * 2, big = msg.big}"
        )
        page.get_by_role("button", name="Run").click()
        results = page.locator(".trials tbody tr")
        expect(results).to_have_count(20)
        expect(results.nth(2).locator("td").last).to_have_text(f'{{"big":{2**70},"twice":4}}')
        expect(results.nth(1)).to_contain_text("function:1: no")
        expect(page.get_by_label("Function")).to_have_value(re.compile("twice = msg.n"))
        page.get_by_label("Name").fill("doubled")
        page.get_by_role("button", name="Create the iterator").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("doubled")
        expect(page.get_by_text("The function failed at message 1")).to_have_count(0)
        page.get_by_label("to confirm").fill("doubled")
        page.get_by_role("button", name="Delete the iterator").click()
        expect(page.get_by_role("status").first).to_contain_text("is deleted")


def test_a_statement_is_typed_run_and_downloaded(stored: Stored) -> None:
    with visitor(stored.browser) as one:
        page = one.tab()
        stored.open(page, "/sql")
        page.get_by_role("link", name="Events by context and type").click()
        expect(page.locator("table.answer")).to_have_count(0)
        statement = page.get_by_label("One statement")
        statement.fill("SELECT context, count(*) AS events FROM events WHERE context = 'shop' GROUP BY ALL")
        page.get_by_role("button", name="Run").click()
        expect(page.locator("table.answer tbody tr")).to_have_text("shop1")
        with page.expect_download() as download:
            page.get_by_role("button", name="Download CSV").click()
        assert download.value.suggested_filename == "penstock.csv"
        assert download.value.path().read_text() == '"context","events"\n"shop",1\n'
        statement.fill("SELECT nothing FROM events")
        page.get_by_role("button", name="Run").click()
        expect(page.get_by_role("alert")).to_contain_text("nothing")
        assert one.complaints == [
            "Failed to load resource: the server responded with a status of 422 (Unprocessable Entity)"
        ]
        one.complaints.clear()


def test_a_token_is_issued_and_logs_in(stored: Stored) -> None:
    with visitor(stored.browser) as one, visitor(stored.browser) as other:
        page = one.tab()
        stored.open(page, "/access/principal?principal=program")
        page.get_by_role("link", name="Issue a token").click()
        page.get_by_label("What it is for").fill("a test")
        page.get_by_role("button", name="Issue the token").click()
        token = page.locator("#token").inner_text()
        one.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.get_by_role("button", name="Copy").click()
        expect(page.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == token
        page.get_by_role("link", name="Back to program").click()
        expect(page.get_by_role("cell", name="a test")).to_be_visible()
        assert token not in page.content()
        theirs = other.tab()
        Stored(stored.server, stored.browser, token).open(theirs, "/browse")
        expect(theirs.locator(".who")).to_contain_text("program")
        expect(theirs.get_by_role("link", name="Access")).to_have_count(0)


# test_browser.py looks at every page once; here is each combination.
@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "dark", "scripts"), [(DESKTOP, False, True), (PHONE, True, True), (PHONE, False, False)], ids=str
)
def test_all_pages_are_readable_and_have_no_barriers(
    stored: Stored, size: tuple[int, int], dark: bool, scripts: bool
) -> None:
    with visitor(stored.browser, size, dark=dark, scripts=scripts) as one:
        page = one.tab()
        for path, heading in PATHS.items():
            stored.open(page, path)
            expect(page.get_by_role("heading", level=1)).to_have_text(heading)
            assert page.locator("main").inner_text().count("\u202e") == 0
            if scripts:
                assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, path
                assert barriers(page) == [], path
