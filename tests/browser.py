"""A real browser for tests: Debian's Chromium, driven by playwright. It reaches nothing but this machine."""

from collections.abc import Iterator
from contextlib import contextmanager
from shutil import which
from typing import Final

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, sync_playwright

CHROMIUM: Final = which("chromium")
FLAGS: Final = (
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
DESKTOP: Final = (1280, 860)
PHONE: Final = (360, 740)
ALIKE: Final = {"exclude": [["tbody tr:nth-child(n+9)"], [".tree li:nth-child(n+9)"]]}
"""Rows of long tables are like those before them."""
STANDARDS: Final = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is missing (Debian: apt-get install chromium)")


@contextmanager
def browser() -> Iterator[Browser]:
    """A browser for the tests of a file. While it runs, this thread can have no other event loop."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=list(FLAGS),
            # As root, Chromium refuses to start with a sandbox.
            chromium_sandbox=False,
        )
        yield started
        started.close()


class Visitor:
    """Somebody who looks at pages, and notices what a page complains about: errors of scripts, refused contents."""

    def __init__(self, context: BrowserContext) -> None:
        self.context = context
        self.complaints: list[str] = []
        context.on("console", self._heard)
        context.on("weberror", lambda error: self.complaints.append(str(error.error)))
        context.on("requestfailed", self._failed)

    def _heard(self, message: ConsoleMessage) -> None:
        if message.type in {"error", "warning"}:
            self.complaints.append(message.text)

    def _failed(self, request: Request) -> None:
        # A page that is left gives up its stream of events.
        if request.failure != "net::ERR_ABORTED":
            self.complaints.append(f"{request.url}: {request.failure}")

    def forgive(self, *wanted: str) -> None:
        """Forget complaints about failures that a test wants, such as a status that is no success."""
        self.complaints = [one for one in self.complaints if not any(text in one for text in wanted)]

    def tab(self) -> Page:
        return self.context.new_page()


@contextmanager
def visitor(
    browser: Browser, size: tuple[int, int] = DESKTOP, *, dark: bool = False, scripts: bool = True
) -> Iterator[Visitor]:
    """A visitor with cookies of its own. At the end no page may have complained."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        java_script_enabled=scripts,
        has_touch=size == PHONE,
        timezone_id="Europe/Vienna",
        # What is measured in the middle of a transition of colours is none of them.
        reduced_motion="reduce",
        locale="en-GB",
    )
    context.set_default_timeout(20_000)
    one = Visitor(context)
    try:
        yield one
        assert one.complaints == []
    finally:
        context.close()


def barriers(page: Page, *rules: str) -> list[str]:
    """What keeps people from using a page, as axe finds it: the rule, and the elements that break it."""
    found = Axe().run(page, ALIKE, options={"runOnly": list(rules) or STANDARDS, "resultTypes": ["violations"]})
    return [
        f"{one['id']} ({one['impact']}): {one['help']}: {', '.join(node['html'][:200] for node in one['nodes'][:5])}"
        for one in found.response["violations"]
    ]
