"""Principals, their grants and credentials, and who may do what. If a file decides that, the pages only show it."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, NamedTuple

from penstock.console.visit import Refused, Visit, number, url
from penstock.engine.access import Usage
from penstock.engine.access_check import Explanation, explain
from penstock.errors import InvalidRequest, PrincipalNotFound
from penstock.model import (
    AddCredential,
    Credential,
    Done,
    DropCredential,
    DropPrincipal,
    Grant,
    IssuedToken,
    IssueToken,
    Limits,
    ListCredentials,
    ListPage,
    ListPrincipals,
    Principal,
    PrincipalInfo,
    PutPrincipal,
    Right,
    grants_of,
    now_ticks,
)
from penstock.model.access import VERBS, check_principal, is_administrator
from penstock.model.requests import Reach
from penstock.model.times import TICKS_PER_SECOND

NAMES: Final = 100
DAY_TICKS: Final = 24 * 3600 * TICKS_PER_SECOND
DAYS_MAX: Final = 36_500
ROTATE_S: Final = (
    ("", "go on"),
    ("0", "end at once"),
    ("3600", "end in an hour"),
    ("86400", "end in a day"),
)
"""Choices for the other tokens of a principal that gets a new one, in seconds."""
RIGHTS: Final = tuple((right, VERBS[right]) for right in Right)


async def principals(visit: Visit) -> Mapping[str, Any]:
    after = visit.one("after")
    page = await visit.ask(ListPrincipals(after, NAMES), ListPage)
    usage = visit.engine.access.usage
    return {
        "rows": [(one, list(map(_words, one.grants)), usage.get(one.name, Usage())) for one in page.items],
        "after": after,
        "next": None if page.end else page.items[-1].name,
        **_mode(visit),
    }


def _mode(visit: Visit) -> dict[str, bool]:
    access = visit.engine.access
    return {
        "is_closed": access.is_closed,
        "is_from_file": access.is_from_file,
        "may_change": access.is_closed and not access.is_from_file,
    }


def _words(text: str) -> str:
    """The meaning of a grant. One of a later version, or a damaged one, means nothing."""
    try:
        return Grant.of(text).words
    except InvalidRequest:
        return "nothing that this server understands"


class Shown(NamedTuple):
    credential: Credential
    is_over: bool
    used: int | None
    """When it was last shown to this server, since that started (ticks)."""


async def principal(visit: Visit) -> Mapping[str, Any]:
    one = await _known(visit, visit.one("principal"))
    after = visit.one("after")
    page = await visit.ask(ListCredentials(one.name, after, NAMES), ListPage)
    found: Sequence[Credential] = page.items
    now, access = now_ticks(), visit.engine.access
    return {
        "title": one.name,
        "one": one,
        "grants": [(text, _words(text)) for text in one.grants],
        "limits": [(limit.name, getattr(one.limits, limit.name)) for limit in fields(Limits)],
        "credentials": [
            Shown(each, each.expires is not None and each.expires <= now, access.used.get(each.id)) for each in found
        ],
        "after": after,
        "next": None if page.end else found[-1].id,
        "usage": access.usage.get(one.name, Usage()),
        "is_administrator": is_administrator(one.grants),
        **_mode(visit),
    }


async def _known(visit: Visit, name: str) -> PrincipalInfo:
    """A principal by its name. Raises PrincipalNotFound."""
    page = await visit.ask(ListPrincipals(name[:-1], NAMES), ListPage)
    # Those that begin so and come before it may be many.
    while found := [one for one in page.items if one.name <= name]:
        if found[-1].name == name:
            info: PrincipalInfo = found[-1]
            return info
        if page.end or len(found) < len(page.items):
            break
        page = await visit.ask(ListPrincipals(found[-1].name, NAMES), ListPage)
    raise PrincipalNotFound(name[:100])


# --- changes --------------------------------------------------------------------------------------------------


async def add(visit: Visit) -> str:
    name = visit.field("principal").strip()
    if not visit.engine.access.is_closed:
        # The first principal closes the server, also for the browser that would make it here.
        raise Refused(409, "the first principal is made with penstock access init, which prints its token")
    if reason := check_principal(name):
        raise InvalidRequest("principal", reason)
    if visit.engine.access.principal(name) is not None:
        raise Refused(409, f"{name} exists already", "Change it on its own page.")
    await visit.ask(PutPrincipal(name, _grants(visit)), Done)
    visit.left = url("/access/principal", principal=name)
    return f"{name} is a principal. It needs a token to come in."


async def change(visit: Visit) -> str:
    """Replace the grants and the limits of a principal."""
    one = await _known(visit, visit.field("principal"))
    values = {}
    for limit in fields(Limits):
        text = visit.field(limit.name).strip()
        values[limit.name] = number(limit.name, text) if text else None
    await visit.ask(PutPrincipal(one.name, _grants(visit), Limits(**values)), Done)
    return f"{one.name} is changed. Its connections end, and connect again with the new rights."


def _grants(visit: Visit) -> tuple[str, ...]:
    texts = tuple(visit.field("grants").split())
    return tuple(map(str, grants_of(texts)))


async def drop(visit: Visit) -> str:
    name = visit.field("principal")
    await visit.ask(DropPrincipal(name), Done)
    visit.left = url("/access")
    return f"{name} is revoked, with all its credentials."


async def add_credential(visit: Visit) -> str:
    name, kind, value = visit.field("principal"), visit.field("kind"), visit.field("value").strip()
    await visit.ask(AddCredential(name, f"{kind}:{value}", visit.field("label").strip(), _expiry(visit)), Done)
    return f"The {'key' if kind == 'curve' else kind} stands for {name} from now on."


async def revoke(visit: Visit) -> str:
    await visit.ask(DropCredential(visit.field("credential")), Done)
    return "The credential is revoked. Connections that showed it end."


def _expiry(visit: Visit) -> int | None:
    text = visit.field("days").strip()
    if not text:
        return None
    days = number("the number of days", text)
    if not 0 < days <= DAYS_MAX:
        raise Refused(400, f"a credential lasts from 1 to {DAYS_MAX:,} days, or without an end")
    return now_ticks() + days * DAY_TICKS


async def token(visit: Visit) -> Mapping[str, Any]:
    """The form for a new token; with POST the token, which no page shows again."""
    name = visit.field("principal") or visit.one("principal")
    one = await _known(visit, name)
    made: IssuedToken | None = None
    error = ""
    if visit.http.method == "POST":
        try:
            rotate = visit.field("rotate")
            others = number("the seconds", rotate) if rotate else None
            request = IssueToken(one.name, visit.field("label").strip(), _expiry(visit), others)
            made = await visit.ask(request, IssuedToken)
        except (InvalidRequest, Refused) as failed:
            error = visit.refused(failed)
    return {
        "title": f"A token of {one.name}",
        "one": one,
        "made": made,
        "error": error,
        "label": visit.field("label"),
        "days": visit.field("days", "90"),
        "rotate": visit.field("rotate"),
        "choices": ROTATE_S,
        **_mode(visit),
    }


# --- who may do what ------------------------------------------------------------------------------------------


class Answer(NamedTuple):
    """Whether a principal may use a right in a place: yes, part or no; and the grants that decide."""

    state: str
    grants: tuple[str, ...]


async def check(visit: Visit) -> Mapping[str, Any]:
    """The rights of each principal in a place."""
    where, after = visit.one("where", "*").strip() or "*", visit.one("after")
    page = await visit.ask(ListPrincipals(after, NAMES), ListPage)
    found: list[tuple[str, list[Answer]]] = []
    words = error = ""
    try:
        scope = Grant.of(f"read:{where}").scope
    except InvalidRequest as failed:
        error = visit.refused(failed)
    else:
        words = scope.words
        for info in page.items:
            known = visit.engine.access.principal(info.name) or Principal(info.name, ())
            found.append((info.name, [_answer(explain(known, right, Reach.EACH, scope)) for right in Right]))
    return {
        "where": where,
        "words": words,
        "found": found,
        "rights": [words for _, words in RIGHTS],
        "error": error,
        "after": after,
        "next": None if page.end else page.items[-1].name,
        **_mode(visit),
    }


def _answer(found: Explanation) -> Answer:
    grants = tuple(map(str, found.grants))
    if found.refusal is None:
        return Answer("part" if found.is_part else "yes", grants)
    return Answer("part" if grants else "no", grants)
