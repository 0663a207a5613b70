"""Why a principal may do something, or not: `penstock access check`. It asks the function that the engine asks."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.engine.access import authorize, shown
from penstock.errors import NotAllowed
from penstock.model import Grant, Principal, Right, Scope
from penstock.model.access import EVERYWHERE
from penstock.model.requests import Place, Reach, Request

PLACED: Final = frozenset(
    (Reach.STREAM, Reach.LOG, Reach.EACH, Reach.FILTER, Reach.QUEUE, Reach.SUBSCRIPTION, Reach.ITERATOR)
)
"""Whether a principal may use these depends on a place: the one that they name, or that they read."""


class Explanation(NamedTuple):
    """`grants` are those that allow it, each alone or all together; of a refusal, those that allow a part of it."""

    refusal: NotAllowed | None
    grants: tuple[Grant, ...]
    is_part: bool = False
    """Whether the answer shows less than there is in the place."""


class _Asked(Request):
    """A request, as far as its rights go."""

    def __init__(self, reach: Reach, scope: Scope) -> None:
        # A principal may use a queue, a subscription or an iterator if it may use all that this reads.
        known = reach in (Reach.STREAM, Reach.LOG, Reach.FILTER) or reach not in PLACED
        self.reach = reach if known else Reach.EACH  # type: ignore[misc]
        self.context, self.stream, self.is_exact = scope
        self.log = self.filter = self.stream

    def places(self) -> Iterable[Place]:
        # A filter of no context reaches into all of them.
        return (Place(self.context, self.stream, not self.is_exact),)  # type: ignore[arg-type]


def explain(principal: Principal, right: Right, reach: Reach, scope: Scope) -> Explanation:
    """Whether a principal may make a request of this reach, which needs this right, about a place."""
    asked = _Asked(reach, scope)
    refusal = _refusal(principal, right, asked)
    if refusal is not None:
        if not refusal.place and reach in PLACED and scope != EVERYWHERE:
            # It has the right nowhere, and needs it here.
            place = shown(scope.context, scope.stream if scope.is_exact else f"{scope.stream}*")
            refusal = NotAllowed(principal.name, refusal.right, place)
        view_of = {grant: Principal("", (grant,)).views.get(right) for grant in principal.grants}
        part = (grant for grant, view in view_of.items() if view and view.meets_filter(scope.context, scope.stream))
        return Explanation(refusal, tuple(part) if reach in PLACED else ())
    alone = tuple(
        grant for grant in principal.grants if _refusal(Principal(principal.name, (grant,)), right, asked) is None
    )
    view = principal.views.get(right)
    whole = principal.may(right) or asked.reach not in (Reach.FILTER, Reach.VISIBLE)
    wanted = (scope.context, scope.stream) if reach is Reach.FILTER else (None, "")
    return Explanation(None, alone or principal.grants, not whole and not (view and view.has_filter(*wanted)))


def _refusal(principal: Principal, right: Right, asked: _Asked) -> NotAllowed | None:
    try:
        if not principal.may(right):
            authorize(principal, asked, right)
    except NotAllowed as refusal:
        return refusal
    return None
