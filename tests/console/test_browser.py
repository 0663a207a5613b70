"""The console in a real browser: every page with data, without, and with data that would harm it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any, Final, NamedTuple

import pytest
from playwright.sync_api import Browser, Page

import penstock
from penstock import Client, testing
from penstock.console.table import PAGES
from tests.browser import DESKTOP, PHONE, Visitor, barriers, browser, needs_chromium, visitor
from tests.console.scenes import fill_hostile, fill_shop, issue_root
from tests.console.tour import addresses

pytestmark = needs_chromium

SHOWN: Final = [page.path for page in PAGES if page.template]
IN_NAVIGATION: Final = [page.path for page in PAGES if page.nav]
SCENES: Final[Mapping[str, Callable[[Client], None]]] = {"shop": fill_shop, "hostile": fill_hostile, "empty": lambda _: None}
TABS_MAX: Final = 12
"""Steps with the tab key on each page."""


class Scene(NamedTuple):
    """A server with data, and an administrator who has logged in, with and without scripts."""

    server: testing.Server
    token: str
    visitor: Visitor
    page: Page
    plain: Page
    addresses: Mapping[str, list[str]]

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
    visitors = [stack.enter_context(visitor(chromium, scripts=scripts)) for scripts in (True, False)]
    pages = [one.tab() for one in visitors]
    for page in pages:
        log_in(page, server, token)
    request = visitors[0].context.request
    found = addresses(lambda address: request.get(f"{server.http}{address}").text())
    return Scene(server, token, visitors[0], *pages, found)


# --- every page -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", SHOWN)
@pytest.mark.parametrize("name", ["shop", "hostile"])
def test_a_page_is_there_for_everybody(scenes: Callable[[str], Scene], name: str, path: str) -> None:
    scene = scenes(name)
    assert scene.addresses[path], "no link and no form leads to this page"
    for address in scene.addresses[path]:
        assert problems(scene, address, is_dark=name == "shop") == []
    assert scene.visitor.complaints == []


@pytest.mark.parametrize("path", IN_NAVIGATION)
def test_a_page_without_data_explains_itself(scenes: Callable[[str], Scene], path: str) -> None:
    scene = scenes("empty")
    assert problems(scene, scene.addresses[path][0], is_dark=False) == []
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
    found = [] if not page.locator("[tabindex]:not([tabindex='0'], [tabindex='-1'])").count() else ["an order by number"]
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
