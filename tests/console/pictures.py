"""Pictures of the console for the docs: `python -m tests.console.pictures docs/console` makes them anew."""

import argparse
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from playwright.sync_api import Browser, Page, expect

import penstock
from penstock import testing
from penstock.errors import PenstockError
from tests.browser import DESKTOP, PHONE, browser, visitor
from tests.console.scenes import fill_shop, issue_root

SECONDS: Final = 40
"""How long the shop is open before its charts are drawn."""
TICK_S: Final = 0.1
STATEMENT: Final = """SELECT type, count(*) AS events, min(timestamp) AS first, max(timestamp) AS last
FROM events
WHERE context = 'shop'
GROUP BY ALL
ORDER BY events DESC"""
FUNCTION: Final = """if msg.page == "/cake" then
  return {customer = msg.customer, price = 18}
end"""


class Picture(NamedTuple):
    address: str
    prepare: Callable[[Page], object] = lambda _: None
    size: tuple[int, int] = DESKTOP
    dark: bool = False


def _run_statement(page: Page) -> None:
    page.locator("textarea").fill(STATEMENT)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("table.answer")).to_be_visible()


def _try_function(page: Page) -> None:
    page.locator("textarea").fill(FUNCTION)
    page.get_by_role("button", name="Run").click()
    expect(page.locator("main table").first).to_be_visible()


def _see_charts(page: Page) -> None:
    expect(page.locator(".chart canvas")).to_have_count(4)


PICTURES: Final[Mapping[str, Picture]] = {
    "overview": Picture("", _see_charts),
    "event": Picture("/browse/event?context=shop&stream=order-8&version=1"),
    "search": Picture("/search?context=shop&types=OrderPlaced&field=customer.name&value=Ada"),
    "queue": Picture("/queues/queue?context=shop&queue=shipping"),
    "try": Picture("/iterators/try?log=visits", _try_function),
    "sql": Picture("/sql", _run_statement, dark=True),
    "audit": Picture("/audit", size=(1280, 720)),
    "phone": Picture("", _see_charts, PHONE, dark=True),
}


def take(folder: Path, chromium: Browser, seconds: float = 0) -> None:
    """Write all pictures into a folder; charts show so many seconds, and two samples at least."""
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            token = issue_root(client)
        with penstock.connect(server.url, token=token) as root:
            fill_shop(root)
        with visitor(chromium, DESKTOP) as one, selling(server.url, token):
            page = one.tab()
            page.goto(f"{server.http}/console/login")
            page.get_by_label("Token").fill(token)
            page.get_by_role("button", name="Log in").click()
            _see_charts(page)
            page.wait_for_timeout(1000 * seconds)
            for name, picture in PICTURES.items():
                page.set_viewport_size({"width": picture.size[0], "height": picture.size[1]})
                page.emulate_media(color_scheme="dark" if picture.dark else "light")
                page.goto(f"{server.http}/console{picture.address}")
                picture.prepare(page)
                page.evaluate("window.scrollTo(0, 0)")
                page.screenshot(path=folder / f"{name}.png")


@contextmanager
def selling(url: str, token: str) -> Iterator[None]:
    """Customers who look around, more and less of them, and consumers of what they do."""
    closed, failures = threading.Event(), list[PenstockError]()

    def sell() -> None:
        tick = 0
        with penstock.connect(url, token=token) as client:
            follower = client.queue("visits", "recommendations", count=200)
            while not closed.wait(TICK_S):
                tick += 1
                count = round(8 + 4 * math.sin(tick / 60) + 2 * math.sin(tick / 7))
                client.append("visits", f"visitor-{tick % 40}", [penstock.event("PageViewed", {"n": tick})] * count)
                with follower.next():
                    pass

    def sell_or_fail() -> None:
        try:
            sell()
        except PenstockError as error:
            failures.append(error)

    thread = threading.Thread(target=sell_or_fail)
    thread.start()
    try:
        yield
    finally:
        closed.set()
        thread.join()
    assert [str(one) for one in failures] == []


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.console.pictures", description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(exist_ok=True)
    with browser() as chromium:
        take(folder, chromium, SECONDS)


if __name__ == "__main__":
    main()
