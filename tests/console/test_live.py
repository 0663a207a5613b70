"""The live tail, search and queues in a real browser: one connection for all tabs, pause, the keyboard, phones."""

import re
from collections.abc import Collection, Iterator
from contextlib import ExitStack
from typing import Final, NamedTuple

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

import penstock
from penstock import testing
from penstock.console.tail import TAILS_PER_PRINCIPAL_MAX
from tests import browser as browsers
from tests.browser import DESKTOP, PHONE, Visitor, barriers, needs_chromium, visitor
from tests.test_server import until as wait

pytestmark = needs_chromium

ROWS_MAX: Final = 200
HOSTILE: Final = "<img src=x onerror=alert(1)>\u202e"
PAGES: Final = {
    "search": "/search",
    "found": "/search?context=shop&field=number&value=3",
    "nothing found": "/search?context=nix",
    "tail": "/tail?context=shop",
    "empty tail": "/tail?context=nix",
    "queues": "/queues",
    "queue": "/queues/queue?context=shop&queue=mails",
    "hostile queue": "/queues/queue?context=shop&queue=%3Cimg+src%3Dx+onerror%3Dalert%281%29%3E%E2%80%AE",
    "move": "/queues/change?context=shop&queue=mails&do=move&by=position&at=1",
    "replay": "/queues/change?context=shop&queue=mails&do=replay&first=1&last=2",
    "filter": "/queues/change?context=shop&queue=mails&do=filter",
    "delete": "/queues/change?context=shop&queue=mails&do=delete",
    "subscriptions": "/subscriptions",
    "subscription": "/subscriptions/subscription?id=1&by=end",
}


class Served(NamedTuple):
    server: testing.Server
    client: penstock.Client
    browser: Browser

    def url(self, path: str) -> str:
        return f"{self.server.http}/console{path}"

    def append(self, type: str, count: int = 1, stream: str = "order-1") -> None:
        self.client.append("shop", stream, [penstock.event(type, {"number": number}) for number in range(count)])


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with testing.server() as server, penstock.connect(server.url) as client, browsers.browser() as browser:
        made = Served(server, client, browser)
        made.append("Placed", 20)
        for name in ("mails", HOSTILE):
            queue = client.queue("shop", name, subscriber=HOSTILE, count=3, ttl=600)
            batch = queue.take()
            for event in batch:
                batch.bury(event, f"no such customer {HOSTILE} " * 5)
            queue.acknowledge(batch)
            queue.take()
        assert client.subscription(HOSTILE, context="shop").id() == 1
        yield made


CONNECTIONS: Final = re.compile(r'^penstock_principal_connections{principal="anonymous"} (\d+)', re.MULTILINE)


def connections(served: Served) -> int:
    """Live tails that the server has open; the client of these tests is connected, too."""
    found = CONNECTIONS.search(httpx.get(f"{served.server.http}/metrics").text)
    assert found is not None
    return int(found[1]) - 1


def follow(served: Served, one: Visitor, query: str = "") -> Page:
    """A tab that is live."""
    tab = one.tab()
    tab.goto(served.url(f"/tail{query}"))
    expect(tab.locator("[data-tail-state]")).to_have_text("Live")
    return tab


def types(tab: Page) -> list[str]:
    return tab.locator("#tail tbody tr td:nth-child(3)").all_inner_texts()


def until(tab: Page, type: str) -> None:
    """Wait until a tab shows an event of a type."""
    expect(tab.locator("#tail tbody td:nth-child(3)", has_text=type).first).to_be_visible()


# --- the live tail --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [2, 8])
def test_all_tabs_share_one_connection_each_with_its_filter(served: Served, count: int) -> None:
    with visitor(served.browser) as one:
        wait(lambda: connections(served) == 0)
        tabs = [follow(served, one, f"?types=T{number}-{count},All{count}") for number in range(count)]
        served.append(f"All{count}")
        for number in range(count):
            served.append(f"T{number}-{count}")
        for number, tab in enumerate(tabs):
            until(tab, f"T{number}-{count}")
            assert types(tab) == [f"T{number}-{count}", f"All{count}"]
        assert connections(served) == 1


def test_a_ninth_filter_is_refused_and_the_tab_says_so(served: Served) -> None:
    with visitor(served.browser) as one:
        tabs = [follow(served, one, f"?types=N{number}") for number in range(8)]
        ninth = one.tab()
        ninth.goto(served.url("/tail?types=N9"))
        expect(ninth.locator("[data-tail-state]")).to_have_text("Only 8 filters at a time: close a tab")
        tabs[0].close()
        expect(ninth.locator("[data-tail-state]")).to_have_text("Live")
        served.append("N9")
        until(ninth, "N9")


def test_another_tab_takes_over_when_the_one_with_the_connection_closes(served: Served) -> None:
    with visitor(served.browser) as one:
        first, second = follow(served, one, "?types=Over"), follow(served, one, "?types=Over,Late")
        served.append("Over")
        until(second, "Over")
        first.close()
        served.append("Over", 3)
        expect(second.locator("#tail tbody tr")).to_have_count(4)
        served.append("Late")
        until(second, "Late")
        assert types(second) == ["Late"] + ["Over"] * 4
        wait(lambda: connections(served) == 1)


def test_a_paused_tail_counts_what_comes_and_shows_it_later(served: Served) -> None:
    with visitor(served.browser) as one:
        tab = follow(served, one, "?types=Waits")
        tab.get_by_role("button", name="Pause").click()
        expect(tab.locator("[data-tail-state]")).to_have_text("Paused")
        served.append("Waits", 5)
        expect(tab.get_by_role("button", name="Resume (5 new)")).to_be_visible()
        assert types(tab) == []
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator("#tail tbody tr")).to_have_count(5)
        expect(tab.locator("[data-tail-state]")).to_have_text("Live")
        tab.get_by_role("button", name="Clear").click()
        expect(tab.locator("#tail tbody tr")).to_have_count(0)
        served.append("Waits")
        until(tab, "Waits")


def test_the_page_keeps_so_many_rows_and_counts_the_rest(served: Served) -> None:
    with visitor(served.browser) as one:
        tab = follow(served, one, "?types=Many")
        tab.get_by_role("button", name="Pause").click()
        served.append("Many", ROWS_MAX + 50)
        expect(tab.locator("[data-tail-skipped]")).to_have_text(
            "50 events came and went while this page was paused or hidden."
        )
        tab.get_by_role("button", name="Resume").click()
        expect(tab.locator("#tail tbody tr")).to_have_count(ROWS_MAX)
        served.append("Many", 3)
        until(tab, "Many")
        expect(tab.locator("#tail tbody tr")).to_have_count(ROWS_MAX)


def test_large_and_hostile_events_are_texts_in_the_tail(served: Served) -> None:
    with visitor(served.browser) as one:
        tab = follow(served, one, "?types=Large," + "Hostile")
        served.client.append("shop", HOSTILE, [penstock.event("Large", HOSTILE * 40_000)])
        served.client.append("shop", HOSTILE, [penstock.event("Hostile", HOSTILE)])
        until(tab, "Large")
        until(tab, "Hostile")
        assert tab.locator("#tail img").count() == 0
        assert "\\u202e" in tab.locator("#tail tbody tr").first.inner_text()
        assert len(tab.locator("#tail").inner_html()) < 50_000
        tab.locator("#tail tbody tr").first.get_by_role("link").first.click()
        expect(tab.get_by_role("heading", level=1)).to_have_text("Hostile")


def test_without_locks_each_visible_tab_has_its_own_connection(served: Served) -> None:
    with visitor(served.browser) as one:
        # As on a page that came over a network without TLS.
        one.context.add_init_script("Object.defineProperty(navigator, 'locks', { value: undefined })")
        first, second = follow(served, one, "?types=Alone"), follow(served, one, "?types=Alone,Other")
        served.append("Other")
        served.append("Alone")
        until(first, "Alone")
        until(second, "Alone")
        assert types(second) == ["Alone", "Other"]


def test_a_tail_goes_on_after_the_server_was_away(served: Served) -> None:
    with testing.server() as server, penstock.connect(server.url) as client:
        context = served.browser.new_context()
        try:
            tab = context.new_page()
            tab.goto(f"{server.http}/console/tail")
            expect(tab.locator("[data-tail-state]")).to_have_text("Live")
            server.restart()
            client.append("shop", "s", [penstock.event("Again")])
            expect(tab.locator("#tail tbody td:nth-child(3)", has_text="Again")).to_be_visible(timeout=20_000)
        finally:
            context.close()


def test_a_tab_says_why_it_is_refused_and_goes_on_when_there_is_room(served: Served) -> None:
    with ExitStack() as stack:
        http = stack.enter_context(httpx.Client(base_url=served.server.http, timeout=30))
        wait(lambda: connections(served) == 0)
        for _ in range(TAILS_PER_PRINCIPAL_MAX):
            stack.enter_context(http.stream("GET", "/console/tail/events"))
        context = served.browser.new_context()
        stack.callback(context.close)
        tab = context.new_page()
        tab.goto(served.url("/tail?types=Room"))
        state = tab.locator("[data-tail-state]")
        expect(state).to_contain_text(f"Anonymous has {TAILS_PER_PRINCIPAL_MAX} live tails open")
        http.close()
        served.append("Room")
        expect(state).to_have_text("Live", timeout=20_000)
        until(tab, "Room")


# --- queues ---------------------------------------------------------------------------------------------------


def test_a_queue_is_deleted_by_keyboard_alone_with_its_name_typed(served: Served) -> None:
    served.client.queue("shop", "doomed").declare()

    with visitor(served.browser) as one:
        tab = one.tab()

        def tab_to(text: str) -> None:
            for _ in range(80):
                tab.keyboard.press("Tab")
                if tab.evaluate("document.activeElement.innerText?.trim() || document.activeElement.name") == text:
                    return
            raise AssertionError(f"the keyboard does not reach {text}")

        tab.goto(served.url("/queues"))
        tab_to("doomed")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("heading", level=1)).to_have_text("doomed")
        tab_to("Delete …")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("heading", level=1)).to_have_text("Delete doomed")
        tab_to("typed")
        tab.keyboard.type("doomed")
        tab.keyboard.press("Enter")
        expect(tab.get_by_role("status").first).to_contain_text("Queue doomed is deleted")
    assert not [queue for queue in served.client.queues() if queue.name == "doomed"]


def test_dead_letters_are_put_back_one_by_one(served: Served) -> None:
    queue = served.client.queue("shop", "clicked", subscriber="ann", count=2)
    batch = queue.take()
    for event in batch:
        batch.bury(event, "no")
    queue.acknowledge(batch)
    with visitor(served.browser) as one:
        tab = one.tab()
        tab.goto(served.url("/queues/queue?context=shop&queue=clicked"))
        tab.get_by_role("button", name="Put back").first.click()
        expect(tab.get_by_role("status").first).to_contain_text("is put back")
        assert [letter.position for letter in queue.dead_letters()] == [batch[1].position]
        tab.get_by_role("button", name="Drop", exact=True).click()
        expect(tab.get_by_role("status").first).to_contain_text("is dropped")
        expect(tab.get_by_text("There are none.")).to_be_visible()


# --- every page -----------------------------------------------------------------------------------------------


# test_browser.py looks at every page once; here is each combination.
@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "dark", "checked"),
    [
        (PHONE, True, ("found", "tail", "hostile queue", "move")),
        (DESKTOP, False, PAGES),
        (DESKTOP, True, PAGES),
    ],
)
def test_pages_fit_and_have_no_barriers(
    served: Served, size: tuple[int, int], dark: bool, checked: Collection[str]
) -> None:
    with visitor(served.browser, size, dark=dark) as one:
        tab = one.tab()
        for name, path in PAGES.items():
            tab.goto(served.url(path))
            assert tab.evaluate("document.documentElement.scrollWidth") <= size[0], name
            assert tab.locator("img").count() == 0, name
            assert name not in checked or barriers(tab) == [], name


def test_pages_work_without_scripts(served: Served) -> None:
    with visitor(served.browser, scripts=False) as one:
        tab = one.tab()
        for name, path in PAGES.items():
            answer = tab.goto(served.url(path))
            assert answer is not None, name
            assert answer.status == 200, name
        tab.goto(served.url("/search"))
        tab.get_by_label("Types, with commas between").fill("Placed")
        tab.get_by_label("Field of the JSON body").fill("number")
        tab.get_by_label("Value of the field").fill("19")
        tab.get_by_role("button", name="Search").click()
        expect(tab.get_by_role("heading", name="1 match")).to_be_visible()
        tab.goto(served.url("/tail"))
        expect(tab.get_by_role("link", name="Reload")).to_be_visible()
        expect(tab.get_by_role("button", name="Pause")).to_be_hidden()
