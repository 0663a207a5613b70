"""Generates the tables of routes in docs/http.md from the table that the server routes by.

`make docs` runs it, and a test compares.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from penstock.gates.api.routes import Route
from penstock.gates.api.table import ROUTES

TABLES: Final = re.compile(r"(?<=<!-- routes: made by `make docs` -->\n).*?(?=<!-- end of routes -->)", re.DOTALL)


def route_tables() -> str:
    """Each route: what it does, the right that it needs, and its parameters."""
    return "\n".join(line for route in ROUTES for line in _lines(route)) + "\n"


def _lines(route: Route) -> Iterator[str]:
    yield f"### {route.method} {route.path}"
    yield ""
    needs = "" if route.right is None else f" Needs the right `{route.right.words}`."
    yield f"{route.summary[0].upper()}{route.summary[1:]}.{needs}{f' {route.help}' if route.help else ''}"
    yield ""
    if route.parameters:
        yield "| parameter | where | |"
        yield "|---|---|---|"
        yield from (f"| `{one.name}` | {one.where} | {one.help} |" for one in route.parameters)
        yield ""


def page_with_tables(page: str) -> str:
    """The page with its tables as they are now."""
    return TABLES.sub(lambda _old: route_tables(), page)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(page_with_tables(path.read_text(encoding="utf-8")), encoding="utf-8")
