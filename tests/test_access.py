"""Grants: how they are written and what they have, and what a view leaves of a filter."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.access import DECIDED_MAX, NOBODY, authorize
from penstock.errors import InvalidRequest, NotAllowed, NotAuthenticated
from penstock.model import ANY, AUDIT_CONTEXT, LOG_CONTEXT, Append, EventFilter, Grant, Principal, Right, grants_of
from penstock.model.access import AUDIT, EVERYWHERE, GRANTS_MAX, UNSCOPED, Scope, View, check_principal

odd = st.text(st.sampled_from("ab/*%: ,é\u2028🐎"), max_size=4)
names = odd.filter(bool)
contexts = st.sampled_from(["a", "b", "a/b", "remits", "log:", "log:a", "log%3Aa", AUDIT_CONTEXT]) | names
scopes = st.one_of(
    st.just(EVERYWHERE),
    st.builds(Scope, contexts, odd, st.just(False)),
    st.builds(Scope, contexts, names, st.just(True)),
)
views = st.lists(scopes | st.just(AUDIT), max_size=4).map(lambda found: View(tuple(found)))
rights = st.sets(st.sampled_from(list(Right)), min_size=1).map(lambda found: Right(sum(one.value for one in found)))


@given(rights, scopes.filter(lambda scope: scope.context != AUDIT_CONTEXT))
def test_a_grant_is_read_as_it_is_written(granted: Right, scope: Scope) -> None:
    grant = Grant(granted if scope == EVERYWHERE else granted & ~UNSCOPED or Right.READ, scope)
    text = str(grant)
    assert Grant.of(text) == grant
    # The store keeps the grants of a principal in one text.
    assert text.isascii()
    assert not any(character.isspace() for character in text)


@pytest.mark.parametrize(
    ("text", "scope"),
    [
        ("read", EVERYWHERE),
        ("read:*", EVERYWHERE),
        ("read:shop", Scope("shop")),
        ("read:shop/*", Scope("shop")),
        ("read:shop/order-*", Scope("shop", "order-")),
        ("read:shop/order-1", Scope("shop", "order-1", True)),
        ("read:shop/a/b", Scope("shop", "a/b", True)),
        ("read:a%2Fb/c", Scope("a/b", "c", True)),
        ("read:shop/100%25%2A", Scope("shop", "100%*", True)),
        ("read:log:*", Scope(LOG_CONTEXT)),
        ("read:log:v*", Scope(LOG_CONTEXT, "v")),
        ("read:log:visits", Scope(LOG_CONTEXT, "visits", True)),
        ("read:log%3Avisits", Scope("log:visits")),
        ("Read, append :shop", Scope("shop")),
    ],
)
def test_what_a_place_means(text: str, scope: Scope) -> None:
    assert Grant.of(text).scope == scope


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("fly:shop", "has the right 'fly'"),
        ("", "has the right ''"),
        ("read,:shop", "has the right ''"),
        ("read:", "names no place"),
        ("read:/a", "names no place"),
        ("read:shop/", "names no place"),
        ("read:sh*p", "names no place"),
        ("read:shop*", "names no place"),
        ("read:shop/*a", "names no place"),
        ("read:shop/a**", "names no place"),
        ("read:log:", "names no place"),
        ("read:shop/100%", "percent sign"),
        ("read:shop/%2g", "percent sign"),
        ("audit:shop", "write audit alone"),
        ("all:shop", "write audit alone"),
        ("read:$audit", "the right audit shows it"),
        ("read:%24audit/access", "the right audit shows it"),
    ],
)
def test_a_grant_that_means_nothing_is_refused(text: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        Grant.of(text)


def test_a_principal_has_only_so_many_grants() -> None:
    assert len(grants_of(["read:a"] * GRANTS_MAX)) == GRANTS_MAX
    with pytest.raises(InvalidRequest, match="at most"):
        grants_of(["read:a"] * (GRANTS_MAX + 1))


@pytest.mark.parametrize("name", ["", "a b", "a/b", "x" * 101, "anonymous", "nobody", "é"])
def test_names_that_a_principal_may_not_have(name: str) -> None:
    assert check_principal(name)


# --- what they have -----------------------------------------------------------------------------------------------


@given(views, contexts, odd)
def test_a_view_has_what_one_of_its_scopes_has(view: View, context: str, stream: str) -> None:
    assert view.has_stream(context, stream) == any(scope.has_stream(context, stream) for scope in view.scopes)


@given(views, st.none() | contexts, odd, contexts, odd)
def test_a_view_leaves_of_a_filter_exactly_what_it_has(
    view: View, context: str | None, prefix: str, where: str, stream: str
) -> None:
    asked = EventFilter(context, prefix)
    left = asked.seen_by(view)
    is_seen = asked.wants_stream(where, stream) and view.has_stream(where, stream)
    assert left.wants_stream(where, stream) == is_seen
    if is_seen:
        assert view.meets_filter(context, asked.prefix)
    if context is not None and view.has_filter(context, asked.prefix) and asked.wants_stream(where, stream):
        assert is_seen


def test_a_grant_for_streams_that_begin_with_a_star_shows_no_others() -> None:
    view = Principal("p", grants_of(("read:shop/%2A*",))).views[Right.READ]
    for asked in (EventFilter(), EventFilter("shop"), EventFilter("shop", "*")):
        left = asked.seen_by(view)
        assert left.wants_stream("shop", "*sale")
        assert not left.wants_stream("shop", "order-1")


def test_the_audit_is_read_with_its_own_right_only() -> None:
    everything, auditor = (Principal("p", grants_of(texts)) for texts in (("read,append,consume,admin",), ("audit",)))
    assert not everything.may(Right.READ)
    assert not everything.views[Right.READ].has_stream(AUDIT_CONTEXT, "access")
    assert auditor.views[Right.READ].has_stream(AUDIT_CONTEXT, "access")
    assert not auditor.views[Right.READ].has_stream("shop", "order")
    assert Principal("p", grants_of(("all",))).may(Right.ALL)


# --- decisions ----------------------------------------------------------------------------------------------------


def test_a_decision_is_remembered_for_its_principal_right_and_stream_only() -> None:
    may, may_not = Principal("p", grants_of(("append:shop/a",))), Principal("p", grants_of(("read:shop/a",)))
    request = Append("shop", "a", (), ANY)
    for _ in range(2):
        assert authorize(may, request, Right.APPEND) == may.views[Right.APPEND]
        for who, asked, right in (
            (may_not, request, Right.APPEND),
            (may, request, Right.ADMIN),
            (may, Append("shop", "b", (), ANY), Right.APPEND),
            (may, Append("a", "shop", (), ANY), Right.APPEND),
        ):
            with pytest.raises(NotAllowed):
                authorize(who, asked, right)
        with pytest.raises(NotAuthenticated):
            authorize(NOBODY, request, Right.APPEND)
    assert len(may.decided) == 1


def test_only_so_many_decisions_are_remembered() -> None:
    who = Principal("p", grants_of(("append:shop",)))
    for number in range(2 * DECIDED_MAX + 1):
        authorize(who, Append("shop", f"s-{number}", (), ANY), Right.APPEND)
        assert len(who.decided) <= DECIDED_MAX
