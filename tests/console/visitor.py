"""A browser without scripts, for tests of the console."""

import re
from html import unescape
from typing import Any, NamedTuple, Self

import httpx

import penstock
from penstock import testing

HIDDEN = re.compile(r'<input type="hidden" name="([^"]*)" value="([^"]*)">')
FORM = re.compile(r'<form[^>]*method="post"[^>]*action="([^"]*)"[^>]*>(.*?)</form>', re.DOTALL)


class Visitor:
    """It keeps cookies, sends the `Origin` of its server with forms, and fills in their hidden fields."""

    def __init__(self, server: str, **options: Any) -> None:
        self.http = httpx.Client(base_url=server, timeout=30, **options)
        self.origin = server

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    def get(self, path: str = "", **query: Any) -> httpx.Response:
        return self.http.get(f"/console{path}", params=query or None)

    def page(self, path: str = "", **query: Any) -> str:
        """The text of a page that is there."""
        answer = self.get(path, **query)
        assert answer.status_code == 200, answer.text
        return answer.text

    def hidden(self, text: str, action: str) -> dict[str, str]:
        """The hidden fields of the form of a page that goes to this action."""
        found = next(body for place, body in FORM.findall(text) if place == f"/console{action}")
        return {unescape(name): unescape(value) for name, value in HIDDEN.findall(found)}

    def post(self, action: str, fields: dict[str, str], **headers: str) -> httpx.Response:
        sent = {"origin": self.origin, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.http.post(f"/console{action}", data=fields, headers=sent)

    def submit(self, text: str, action: str, **typed: str) -> httpx.Response:
        """Send the form of a page, with what somebody types."""
        return self.post(action, {**self.hidden(text, action), **typed})

    def log_in(self, token: str, next: str = "") -> httpx.Response:
        page = self.get("/login", next=next) if next else self.get("/login")
        return self.submit(page.text, "/login", token=token)

    @property
    def cookie(self) -> str | None:
        return self.http.cookies.get("penstock_console")


class Guarded(NamedTuple):
    """A server with principals, and a token of each."""

    server: testing.Server
    tokens: dict[str, str]

    def visitor(self, who: str | None = "root") -> Visitor:
        """A browser in which somebody has logged in."""
        made = Visitor(self.server.http)
        if who is not None:
            assert made.log_in(self.tokens[who]).status_code == 303
        return made

    def client(self, who: str = "root") -> penstock.Client:
        return penstock.connect(self.server.url, token=self.tokens[who])
