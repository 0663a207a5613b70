"""Staging through the client, over every URL: what is published, what is refused, what is seen meanwhile."""

import pytest

from penstock import Client
from penstock.errors import InvalidRequest, StageLost, VersionConflict
from penstock.model import ANY, StagedUnit, Winner, new_event
from penstock.store.stages import make_unit
from tests.client.support import numbers, some


def unit(context: str, stream: str, count: int = 3, start: int = 1, expected: int = ANY) -> StagedUnit:
    return make_unit(context, stream, some(count, start), expected)


def test_what_is_staged_is_seen_when_it_is_published_and_once(client: Client, context: str) -> None:
    staging = client.staging(f"job of {context}")
    staging.stage(0, "a", 0, [unit(context, "s"), unit(context, "t")])
    staging.stage(0, "a", 0, [unit(context, "s"), unit(context, "t")])
    staging.stage(1, "lost", 0, [unit(context, "s", 3, 90)])
    staging.stage(1, "won", 0, [unit(context, "s", 3, 4)])
    assert list(client.read_all(context=context)) == []
    winners = [Winner(0, "a", 2), Winner(1, "won", 1)]
    published = staging.publish(winners, context, 1)
    assert (published.commits, published.events, published.repeated) == (3, 9, False)
    assert numbers(client.read_stream(context, "s")) == [1, 2, 3, 4, 5, 6]
    again = staging.publish(winners, context, 1)
    assert (again.position, again.events, again.repeated) == (published.position, 9, True)
    assert len(list(client.read_all(context=context))) == 9


def test_a_job_that_was_dropped_cannot_be_published(client: Client, context: str) -> None:
    staging = client.staging(f"job of {context}")
    staging.stage(0, "a", 0, [unit(context, "s")])
    staging.drop()
    with pytest.raises(StageLost) as caught:
        staging.publish([Winner(0, "a", 1)], context, 1)
    assert (caught.value.part, caught.value.units, caught.value.found) == (0, 1, 0)
    assert list(client.read_all(context=context)) == []


def test_a_conflict_publishes_nothing(client: Client, context: str) -> None:
    client.append(context, "s", some(1))
    staging = client.staging(f"job of {context}")
    staging.stage(0, "a", 0, [unit(context, "a"), unit(context, "s", expected=1)])
    with pytest.raises(VersionConflict):
        staging.publish([Winner(0, "a", 2)], context, 1)
    assert len(list(client.read_all(context=context))) == 1


@pytest.mark.parametrize("wrong", ["damaged", "renamed", "log", "stream", "expected", "keys", "unordered"])
def test_units_that_are_not_made_as_units_are_refused(client: Client, context: str, wrong: str) -> None:
    good = unit(context, "s")
    bad = {
        "damaged": StagedUnit(context, "s", ANY, good.data[:-1] + b"?"),
        "renamed": StagedUnit(context, "t", ANY, good.data),
        "log": make_unit("remits", "s", [new_event("cbor", b"\x01")]),
        "stream": make_unit(context, "", some(1)),
        "expected": unit(context, "s", expected=0),
        "keys": StagedUnit(context, "s", ANY, good.data, b"\x01"),
        "unordered": make_unit(context, "s", some(2), keys=[b"b", b"a"]),
    }[wrong]
    staging = client.staging(f"job of {context}")
    with pytest.raises(InvalidRequest):
        staging.stage(0, "a", 0, [bad])
    assert staging.publish([], context, 1).events == 0


def test_who_follows_sees_what_is_published(client: Client, context: str) -> None:
    staging = client.staging(f"job of {context}")
    staging.stage(0, "a", 0, [unit(context, "s")])
    subscription = client.subscription("me", context=context, follow=False)
    assert list(subscription) == []
    staging.publish([Winner(0, "a", 1)], context, 1)
    assert numbers(client.subscription("me", context=context, follow=False)) == [1, 2, 3]


def test_the_same_number_of_another_origin_is_refused(client: Client, context: str) -> None:
    staging = client.staging(f"job of {context}")
    assert staging.stage(0, "a", 0, []).event_bytes_max > 0
    for origin, events in (("query 1", 3), ("query 1", 5)):
        staging.stage(0, "a", 0, [unit(context, "s", events)])
        staging.publish([Winner(0, "a", 1)], context, 1, origin=origin)
    with pytest.raises(InvalidRequest, match=f"producer {context} has published number 1"):
        staging.publish([], context, 1, origin="query 2")
    assert numbers(client.read_stream(context, "s")) == [1, 2, 3]
