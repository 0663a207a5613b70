"""Explanations of rights: which grant allows something, or that none does."""

import pytest

from penstock.engine.access_check import explain
from penstock.errors import NotAllowed
from penstock.model import Grant, Principal, Right, grants_of
from penstock.model.requests import Reach

SHOP = Principal(
    "shop", grants_of(["read,append:shop", "read:shop/order-*", "consume:shop/order-*", "append:log:visits"])
)


def asked(right: Right, reach: Reach, where: str) -> tuple[bool, list[str], bool]:
    """Whether it is allowed, the grants that say so, and whether there is more than is shown."""
    found = explain(SHOP, right, reach, Grant.of(f"read:{where}").scope)
    return found.refusal is None, [str(grant) for grant in found.grants], found.is_part


@pytest.mark.parametrize(
    ("right", "reach", "where", "expected"),
    [
        (Right.READ, Reach.STREAM, "shop/order-1", (True, ["read,append:shop", "read:shop/order-*"], False)),
        (Right.READ, Reach.STREAM, "other/s", (False, [], False)),
        (Right.READ, Reach.EACH, "shop/order-*", (True, ["read,append:shop", "read:shop/order-*"], False)),
        (Right.CONSUME, Reach.EACH, "shop", (False, ["consume:shop/order-*"], False)),
        (Right.CONSUME, Reach.QUEUE, "shop/order-*", (True, ["consume:shop/order-*"], False)),
        (Right.CONSUME, Reach.QUEUE, "shop", (False, ["consume:shop/order-*"], False)),
        (Right.APPEND, Reach.LOG, "log:visits", (True, ["append:log:visits"], False)),
        (Right.READ, Reach.LOG, "log:visits", (False, [], False)),
        (Right.READ, Reach.FILTER, "*", (True, ["read,append:shop", "read:shop/order-*"], True)),
        (Right.READ, Reach.FILTER, "shop", (True, ["read,append:shop", "read:shop/order-*"], False)),
        (Right.READ, Reach.FILTER, "other", (False, [], False)),
        (Right.READ, Reach.VISIBLE, "*", (True, ["read,append:shop", "read:shop/order-*"], True)),
        (Right.ADMIN, Reach.STORE, "*", (False, [], False)),
        (Right.READ, Reach.EACH, "*", (False, ["read,append:shop", "read:shop/order-*"], False)),
        (Right.AUDIT, Reach.EACH, "*", (False, [], False)),
    ],
)
def test_the_grants_that_decide_are_named(
    right: Right, reach: Reach, where: str, expected: tuple[bool, list[str], bool]
) -> None:
    assert asked(right, reach, where) == expected


def test_a_refusal_is_that_of_the_engine() -> None:
    found = explain(SHOP, Right.APPEND, Reach.STREAM, Grant.of("read:other/s").scope)
    assert isinstance(found.refusal, NotAllowed)
    assert (found.refusal.principal, found.refusal.right, found.refusal.place) == ("shop", "append", "other/s")


def test_who_may_everything_may_everything() -> None:
    root = Principal("root", grants_of(["all"]))
    for right in Right:
        for reach in Reach:
            found = explain(root, right, reach, Grant.of("read:*").scope)
            assert (found.refusal, list(map(str, found.grants)), found.is_part) == (None, ["all:*"], False)
