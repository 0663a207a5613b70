"""The console in a real browser: every page with data, without, and with data that would harm it."""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

import penstock
from penstock import Client, testing
from penstock.console.table import ACTIONS, PAGES
from tests.browser import DESKTOP, PHONE, Visitor, barriers, browser, needs_chromium, visitor
from tests.console.scenes import fill_hostile, fill_shop, issue_root
from tests.console.tour import Stop, path_of, stops, ways
from tests.principals import issue, put

pytestmark = needs_chromium

SHOWN: Final = [page.path for page in PAGES if page.template]
IN_NAVIGATION: Final = [page.path for page in PAGES if page.nav]
SCENES: Final[Mapping[str, Callable[[Client], None]]] = {
    "shop": fill_shop,
    "hostile": fill_hostile,
    "empty": lambda _: None,
}
PAGE_BYTES_MAX: Final = 1 << 20
STREAMS: Final = 100_000
TABS_MAX: Final = 12
"""Steps with the tab key on each page."""


class Scene(NamedTuple):
    """A server with data, and an administrator who has logged in, with and without scripts."""

    server: testing.Server
    token: str
    visitor: Visitor
    page: Page
    without_scripts: Visitor
    plain: Page
    stops: Mapping[str, list[Stop]]

    def text(self, address: str) -> str:
        return self.visitor.context.request.get(self.url(address)).text()

    def url(self, address: str) -> str:
        return f"{self.server.http}{address}"


def log_in(page: Page, server: testing.Server, token: str) -> None:
    page.goto(f"{server.http}/console/login")
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()
    page.wait_for_url("**/console")


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def scenes(chromium: Browser) -> Iterator[Callable[[str], Scene]]:
    """Scenes by their names, made when they are first asked for."""
    made: dict[str, Scene] = {}
    with ExitStack() as stack:

        def scene(name: str) -> Scene:
            if name not in made:
                made[name] = _made(stack, chromium, SCENES[name])
            return made[name]

        yield scene


def _made(stack: ExitStack, chromium: Browser, fill: Callable[[Client], None]) -> Scene:
    server = stack.enter_context(testing.server())
    with penstock.connect(server.url) as client:
        token = issue_root(client)
    with penstock.connect(server.url, token=token) as root:
        fill(root)
    one, without_scripts = (stack.enter_context(visitor(chromium, scripts=scripts)) for scripts in (True, False))
    page, plain = one.tab(), without_scripts.tab()
    for each in (page, plain):
        log_in(each, server, token)
    scene = Scene(server, token, one, page, without_scripts, plain, {})
    return scene._replace(stops=stops(scene.text))


# --- every page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHOWN)
@pytest.mark.parametrize("name", ["shop", pytest.param("hostile", marks=pytest.mark.long)])
def test_a_page_is_there_for_everybody(scenes: Callable[[str], Scene], name: str, path: str) -> None:
    scene = scenes(name)
    assert scene.stops[path], "no link and no form leads to this page"
    for stop in scene.stops[path]:
        assert problems(scene, stop.address, is_dark=name == "shop") == []
    assert scene.visitor.complaints == []


@pytest.mark.parametrize("path", IN_NAVIGATION)
def test_a_page_without_data_explains_itself(scenes: Callable[[str], Scene], path: str) -> None:
    scene = scenes("empty")
    assert problems(scene, scene.stops[path][0].address, is_dark=False) == []
    assert scene.visitor.complaints == []


def problems(scene: Scene, address: str, *, is_dark: bool) -> list[str]:
    """What is wrong with a page: one load serves all checks, another one has no scripts."""
    page = scene.page
    answer = page.goto(scene.url(address))
    assert answer is not None
    found = [] if answer.status == 200 else [f"status {answer.status}"]
    if page.locator("h1").count() != 1:
        found.append("not one h1")
    if not page.title().endswith(" · Penstock"):
        found.append(f"title {page.title()!r}")
    if page.locator(".injected").count():
        found.append("data became elements")
    found += barriers(page)
    if is_dark:
        page.emulate_media(color_scheme="dark")
        found += [f"dark: {one}" for one in barriers(page, "color-contrast")]
        page.emulate_media(color_scheme="light")
    found += keyboard_problems(page)
    page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    if (width := page.evaluate("document.documentElement.scrollWidth")) > PHONE[0]:
        found.append(f"{width} px wide on a phone")
    page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    scene.plain.goto(scene.url(address))
    if (without := outline(scene.plain)) != (has := outline(page)):
        found.append(f"without scripts {without}, with {has}")
    return found


def outline(page: Page) -> list[str]:
    """What a page has, without figures that change."""
    texts: list[str] = page.locator("main :is(h1, h2, h3, th, dt, label, summary)").all_text_contents()
    return texts


FOCUSED: Final = """() => {
  const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
  const place = [...document.querySelectorAll('*')].indexOf(one);
  const isVisible = box.width > 0 && box.height > 0 && box.bottom > 0 && box.top < innerHeight;
  return {place, html: one.outerHTML.slice(0, 120), inMain: !!one.closest('main'), isSkip: one.matches('.skip'),
    isMain: one.matches('main'), isBody: one === document.body,
    isSeen: isVisible && style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2};
}"""


def keyboard_problems(page: Page) -> list[str]:
    """What somebody meets who has only a keyboard: the skip link leads to the content, and the focus is seen there."""
    if page.locator("[autofocus]").count():
        page.evaluate("document.activeElement.blur()")
    found = (
        [] if not page.locator("[tabindex]:not([tabindex='0'], [tabindex='-1'])").count() else ["an order by number"]
    )
    page.keyboard.press("Tab")
    first: dict[str, Any] = page.evaluate(FOCUSED)
    if not (first["isSkip"] and first["isSeen"]):
        return [*found, f"first is {first['html']}"]
    page.keyboard.press("Enter")
    if not page.evaluate(FOCUSED)["isMain"]:
        return [*found, "the skip link leads elsewhere"]
    place = 0
    for _ in range(TABS_MAX):
        page.keyboard.press("Tab")
        now = page.evaluate(FOCUSED)
        if now["isBody"] or now["isSkip"] or not now["inMain"]:
            break
        if now["place"] <= place or not now["isSeen"]:
            found.append(f"the focus is not seen, or goes back: {now['html']}")
        place = now["place"]
    return found


def test_what_hostile_clients_send_stays_text(scenes: Callable[[str], Scene]) -> None:
    scene = scenes("hostile")
    (history,) = scene.stops["/browse/history"]
    places = {one for one in ways(history.text) if path_of(one) in ("/browse/event", "/browse/stream")}
    places |= {stops[0].address for stops in scene.stops.values()}
    places |= {f"{one}&as={form}" for one in places if path_of(one) == "/browse/event" for form in ("text", "hex")}
    scene.page.set_viewport_size({"width": PHONE[0], "height": PHONE[1]})
    for place in places:
        answer = scene.page.goto(scene.url(place))
        assert answer is not None
        assert answer.status == 200, place
        assert len(answer.body()) < PAGE_BYTES_MAX, place
        assert scene.page.locator(".injected, main script, main img, main iframe").count() == 0, place
        assert scene.page.evaluate("document.documentElement.scrollWidth") <= PHONE[0], place
    scene.page.set_viewport_size({"width": DESKTOP[0], "height": DESKTOP[1]})
    assert len(places) > 20
    assert scene.visitor.complaints == []


@pytest.mark.long
def test_a_hundred_thousand_streams_are_paged(tmp_path: Path, chromium: Browser) -> None:
    with penstock.connect(f"sqlite:///{tmp_path}") as client:
        event = penstock.event("Placed", {})
        client.append_many(("shop", f"order-{number:06}", [event]) for number in range(STREAMS))
    with testing.server(tmp_path) as server, visitor(chromium) as one:
        page = one.tab()
        page.goto(f"{server.http}/console/browse")
        expect(page.get_by_role("row").filter(has_text="shop")).to_contain_text(f"{STREAMS:,}")
        page.get_by_role("link", name="shop").click()
        expect(page.locator("tbody tr")).to_have_count(100)
        page.get_by_role("link", name="Next").click()
        expect(page.get_by_role("link", name="order-000100", exact=True)).to_be_visible()
        page.get_by_label("Names that begin with").fill("order-09999")
        page.keyboard.press("Enter")
        expect(page.locator("tbody tr")).to_have_count(10)
        page.goto(f"{server.http}/console")
        expect(page.locator(".figure", has_text="Streams").locator("dd")).to_have_text(f"{STREAMS:,}")
        assert barriers(page) == []


# --- who is there ---------------------------------------------------------------------------------------------


def test_a_wrong_token_is_told_and_a_right_one_leads_back(scenes: Callable[[str], Scene], chromium: Browser) -> None:
    scene = scenes("shop")
    with visitor(chromium) as one:
        page = one.tab()
        page.goto(scene.url("/console/browse/streams?context=shop"))
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert")).to_contain_text("It did not work")
        assert barriers(page) == []
        page.get_by_label("Token").fill(scene.token)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", level=1)).to_have_text("Streams of shop")
        page.get_by_role("button", name="Log out").click()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        page.go_back()
        page.reload()
        expect(page.get_by_role("heading", level=1)).to_have_text("Log in")
        one.forgive("401")


def test_an_open_page_ends_with_its_token(scenes: Callable[[str], Scene], chromium: Browser) -> None:
    scene = scenes("shop")
    with penstock.connect(scene.server.url, token=scene.token) as root:
        put(root, "leaving", "read")
        token = issue(root, "leaving").token
        with visitor(chromium) as one:
            page = one.tab()
            log_in(page, scene.server, token)
            root.access.revoke("leaving")
            expect(page.get_by_role("status").filter(has_text="Your session has ended")).to_be_visible()
            assert page.url.startswith(scene.url("/console/login?next=%2Fconsole"))
            one.forgive("401")


def test_what_is_not_there_or_not_allowed_is_explained(scenes: Callable[[str], Scene], chromium: Browser) -> None:
    scene = scenes("shop")
    with penstock.connect(scene.server.url, token=scene.token) as root:
        put(root, "clerk", "read:shop/order-1")
        token = issue(root, "clerk").token
    with visitor(chromium) as one:
        page = one.tab()
        log_in(page, scene.server, token)
        for address, title in (
            ("/console", "Overview"),
            ("/console/browse/stream?context=shop&stream=order-2", "This is not allowed"),
            ("/console/settings", "This is not allowed"),
            ("/console/nowhere", "There is nothing here"),
            ("/console/browse/history?from=x", "This cannot be asked"),
        ):
            page.goto(scene.url(address))
            expect(page.get_by_role("heading", level=1)).to_have_text(title)
            assert barriers(page) == [], address
        assert page.get_by_role("link", name="Settings").count() == 0
        one.forgive("403", "404", "400")


# --- what scripts add -----------------------------------------------------------------------------------------


def head_of(page: Page) -> Locator:
    return page.locator(".figure", has_text="Head position").locator("dd")


@pytest.mark.parametrize("tabs", [2, pytest.param(8, marks=pytest.mark.long)])
def test_open_tabs_show_what_comes_without_being_loaded_again(scenes: Callable[[str], Scene], tabs: int) -> None:
    scene = scenes("shop")
    pages = [scene.visitor.tab() for _ in range(tabs)]
    for page in pages:
        page.goto(scene.url("/console"))
        page.evaluate("window.isTheSame = true")
    with penstock.connect(scene.server.url, token=scene.token) as client:
        last = client.append("shop", "order-1", [penstock.event("OrderViewed", {})]).position
    for page in pages:
        page.bring_to_front()
        expect(head_of(page)).to_have_text(f"{last:,}")
        assert page.evaluate("window.isTheSame")
        page.close()
    assert scene.visitor.complaints == []


def test_charts_are_drawn_and_updates_can_be_paused(scenes: Callable[[str], Scene]) -> None:
    scene = scenes("shop")
    paused, other = scene.visitor.tab(), scene.visitor.tab()
    for page in (paused, other):
        page.goto(scene.url("/console"))
    expect(other.locator(".chart canvas")).to_have_count(4)
    assert barriers(other) == []
    paused.bring_to_front()
    paused.get_by_role("button", name="Pause updates").click()
    before = head_of(paused).inner_text()
    with penstock.connect(scene.server.url, token=scene.token) as client:
        last = client.append("shop", "order-1", [penstock.event("OrderViewed", {})]).position
    other.bring_to_front()
    expect(head_of(other)).to_have_text(f"{last:,}")
    paused.bring_to_front()
    assert head_of(paused).inner_text() == before
    paused.get_by_role("button", name="Resume updates").click()
    expect(head_of(paused)).to_have_text(f"{last:,}")
    paused.close()
    other.close()


def test_a_page_says_that_it_gets_no_news_until_the_server_is_back(chromium: Browser) -> None:
    with testing.server() as server, visitor(chromium) as one:
        page = one.tab()
        page.goto(f"{server.http}/console")
        expect(page.locator(".who")).to_contain_text("no login")
        server.kill()
        expect(page.locator("#stale")).to_be_visible()
        server.restart()
        expect(page.locator("#stale")).to_be_hidden()
        one.forgive("net::ERR_CONNECTION_REFUSED", "net::ERR_EMPTY_RESPONSE", "net::ERR_CONNECTION_RESET")


def test_the_theme_is_switched_and_stays(scenes: Callable[[str], Scene], chromium: Browser) -> None:
    scene = scenes("shop")
    with visitor(chromium, dark=True) as one:
        page = one.tab()
        page.goto(scene.url("/console/login"))
        ground = "getComputedStyle(document.documentElement).backgroundColor"
        dark = page.evaluate(ground)
        page.get_by_role("button", name="Light theme").click()
        light = page.evaluate(ground)
        assert light != dark
        page.reload()
        assert page.evaluate(ground) == light
        page.get_by_role("button", name="Dark theme").click()
        assert page.evaluate(ground) == dark


# --- what destroys --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def doomed(chromium: Browser) -> Iterator[Scene]:
    """A shop in which everything may be destroyed."""
    with ExitStack() as stack:
        yield _made(stack, chromium, fill_shop)


PREVIEWED: Final = {
    "/erasures/stream": ("/console/erasures/preview", {"Context": "shop", "Stream": "order-1"}),
    "/erasures/subject": ("/console/erasures/preview?kind=subject", {"Subject": "ada"}),
}
"""Forms that are behind one that is sent by POST: where that is, and what is typed into it."""


@pytest.mark.parametrize("action", [one.path for one in ACTIONS if one.confirm])
def test_what_destroys_is_typed_first(doomed: Scene, action: str) -> None:
    """A wrong name changes nothing, here without scripts; then the right one does what the button says."""
    address = PREVIEWED[action][0] if action in PREVIEWED else address_of_form(doomed, action)
    for page in (doomed.plain, doomed.page):
        page.goto(doomed.url(address))
        if action in PREVIEWED:
            for label, text in PREVIEWED[action][1].items():
                page.get_by_label(label).first.fill(text)
            page.get_by_role("button", name="Preview").click()
        form = page.locator(f'form[action="/console{action}"]').first
        for closed in form.locator("xpath=ancestor::details[not(@open)]/summary").all():
            closed.click()
        wanted = form.locator("label b").inner_text()
        is_wrong = page is doomed.plain
        form.locator("[name=typed]").fill(f"not {wanted}" if is_wrong else wanted)
        page.keyboard.press("Enter")
        expected = f"is not {wanted}" if is_wrong else re.compile(".")
        expect(page.get_by_role("alert" if is_wrong else "status").filter(visible=True).first).to_contain_text(expected)
    doomed.without_scripts.forgive("422")
    assert doomed.visitor.complaints == doomed.without_scripts.complaints == []


def address_of_form(scene: Scene, action: str) -> str:
    wanted = f'action="/console{action}"'
    return next(stop.address for all in stops(scene.text).values() for stop in all if wanted in stop.text)
