"""What a route of the API is: the table in `penstock.gates.api.table` drives routing, checks of parameters and docs.

Names of contexts and streams can have any character. In a path they are percent-encoded, segment by segment. Clients
and proxies change some paths on their way (`..`, `//`), so each path with names has a twin that takes them as
parameters of the query instead.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from penstock.gates.api.problems import Problem
from penstock.model import Right

PARAMETERS_MAX: Final = 100
"""In one query."""
SHOWN_CHARACTERS_MAX: Final = 200
"""How much of an unknown path or name the answer repeats."""

Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query or a header, as OpenAPI describes it."""

    name: str
    help: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    where: str = "query"
    required: bool = False

    @property
    def is_several(self) -> bool:
        return self.schema.get("type") == "array"


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path. `handler` is called with the checked call."""

    method: str
    path: str
    name: str
    summary: str
    handler: Callable[..., Awaitable[Any]]
    right: Right | None
    """The right that the principal needs at the place of the request; None if the route decides itself."""
    help: str = ""
    parameters: tuple[Parameter, ...] = ()
    takes: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas of bodies, by media type; empty if the route has no body."""
    gives: Mapping[str, Schema] = field(default_factory=dict)
    """Schemas of the answer, by media type."""
    status: int = 200
    fails: tuple[int, ...] = ()
    """Statuses of this route, in addition to those that every route can answer."""
    is_public: bool = False
    """Whether the route needs no credential, or checks another kind itself."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names in its path."""
        return tuple(re.findall(r"\{(\w+)\}", self.path))

    @property
    def twin(self) -> str | None:
        """The path that takes the names in the query; None for routes without one."""
        # Proxies do not change a number.
        if not self.names or "id" in self.names:
            return None
        return re.sub(r"/\{\w+\}", "", self.path)


class Router:
    """Finds the route of a method and a path."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = tuple(routes)
        self._fixed: dict[str, dict[str, tuple[Route, bool]]] = {}
        self._patterns: list[tuple[list[str], dict[str, Route]]] = []
        for route in self.routes:
            if route.names:
                parts = route.path.split("/")
                found = next((methods for known, methods in self._patterns if known == parts), None)
                if found is None:
                    found = {}
                    self._patterns.append((parts, found))
                found[route.method] = route
            else:
                self._fixed.setdefault(route.path, {})[route.method] = (route, False)
            if route.twin is not None:
                self._fixed.setdefault(route.twin, {})[route.method] = (route, True)

    def find(self, method: str, raw_path: str) -> tuple[Route, dict[str, str] | None]:
        """A route and the names in the path, which are None if they are in the query. Raises Problem."""
        method = "GET" if method == "HEAD" else method
        fixed = self._fixed.get(raw_path)
        if fixed is not None:
            if method in fixed:
                route, is_twin = fixed[method]
                return route, None if is_twin else {}
            raise _refusal(raw_path, fixed)
        parts = raw_path.split("/")
        for known, methods in self._patterns:
            if len(known) == len(parts) and all(k == p or k[:1] == "{" for k, p in zip(known, parts, strict=True)):
                if method not in methods:
                    raise _refusal(raw_path, methods)
                given = (part for name, part in zip(known, parts, strict=True) if name[:1] == "{")
                return methods[method], dict(zip(methods[method].names, map(_unquoted, given), strict=True))
        raise Problem(404, f"there is no {raw_path[:SHOWN_CHARACTERS_MAX]} here; /openapi.json describes what there is")


def _refusal(path: str, methods: Mapping[str, object]) -> Problem:
    allowed = [*methods, *(["HEAD"] if "GET" in methods else [])]
    shown = " and ".join(sorted(allowed))
    return Problem(405, f"{path[:SHOWN_CHARACTERS_MAX]} answers {shown} only", allow=", ".join(sorted(allowed)))


def _unquoted(part: str) -> str:
    if re.search(r"%(?![0-9A-Fa-f]{2})", part):
        raise Problem(400, f"{part[:SHOWN_CHARACTERS_MAX]} has a percent sign that is no escape; write %25 for it")
    try:
        return unquote(part, errors="strict")
    except UnicodeDecodeError:
        raise Problem(400, f"{part[:SHOWN_CHARACTERS_MAX]} is not UTF-8 behind its percent signs") from None


def parsed_query(query: str, known: Mapping[str, bool]) -> dict[str, list[str]]:
    """The parameters of a query. `known` says which there are, and whether each may be there several times."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, errors="strict", max_num_fields=PARAMETERS_MAX)
    except ValueError:
        reason = f"the query is not UTF-8 behind its percent signs, or has more than {PARAMETERS_MAX} parameters"
        raise Problem(400, reason) from None
    found: dict[str, list[str]] = {}
    for name, value in pairs:
        if name not in known:
            there_are = ", ".join(known) or "none"
            raise Problem(400, f"{name[:SHOWN_CHARACTERS_MAX]} is no parameter here; there are: {there_are}")
        if name in found and not known[name]:
            raise Problem(400, f"the parameter {name} is there twice")
        found.setdefault(name, []).append(value)
    return found
