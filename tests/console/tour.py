"""A way through the console: every page that links and forms lead to, so that new pages are found by themselves."""

import re
from collections.abc import Callable, Iterator
from html import unescape
from typing import Final, NamedTuple
from urllib.parse import parse_qsl, urlencode, urlsplit

from penstock.console.table import PAGES
from penstock.console.visit import ROOT

LINK: Final = re.compile(r'<a [^>]*href="(/console[^"]*)"')
FORM: Final = re.compile(r'<form[^>]*method="get"[^>]*action="([^"]*)"[^>]*>(.*?)</form>', re.DOTALL)
CONTROL: Final = re.compile(r"<(?:input|select|textarea)\b[^>]*>(?:\s*<option value=\"([^\"]*)\")?")
ATTRIBUTE: Final = re.compile(r'\b(name|value)="([^"]*)"')
TYPED: Final = "1"
"""What is typed into a form's fields that are required and empty, and into those where something is moved to."""
CHOICES: Final = ("do", "as")
"""Parameters whose values make other pages of one path."""
PATHS: Final = {page.path: page for page in PAGES if page.template}


def path_of(address: str) -> str:
    """The path of the table that an address belongs to."""
    return urlsplit(address).path.removeprefix(ROOT).rstrip("/") or "/"


class Stop(NamedTuple):
    address: str
    text: str


def stops(text_of: Callable[[str], str]) -> dict[str, list[Stop]]:
    """The pages of each path that can be reached from the overview: one for each choice that it offers."""
    found: dict[str, dict[tuple[tuple[str, str], ...], Stop]] = {path: {} for path in PATHS}
    waiting = [ROOT]
    while waiting:
        address = waiting.pop(0)
        query = dict(parse_qsl(urlsplit(address).query))
        choice = tuple((name, query[name]) for name in CHOICES if name in query)
        there = found.get(path_of(address))
        if there is None or choice in there:
            continue
        there[choice] = Stop(address, text_of(address))
        waiting += ways(there[choice].text)
    return {path: list(there.values()) for path, there in found.items()}


def ways(text: str) -> Iterator[str]:
    """Where the links and the forms of a page lead."""
    for link in LINK.findall(text):
        yield unescape(link).partition("#")[0]
    for action, body in FORM.findall(text):
        fields = []
        for control in CONTROL.finditer(body):
            named = {name: unescape(value) for name, value in ATTRIBUTE.findall(control[0])}
            default = TYPED if "required" in control[0] or named.get("name") == "at" else ""
            fields.append((named.get("name", ""), named.get("value") or unescape(control[1] or default)))
        yield f"{unescape(action)}?{urlencode(fields)}"
