"""Durable subscriptions: RS, FE, PS and SS of the text dialect."""

import pytest

from tests.gates.res_extensions import Extended
from tests.gates.res_frames import (
    LOCAL,
    LONG_AGO,
    UNSPECIFIED,
    Refused,
    StoredEvent,
    an_event,
    now,
    ticks_of,
    to_binary,
)

pytestmark = pytest.mark.gates("res", "mq", "mq-large")
NOBODY = 999_999_999
"""A subscription that does not exist."""


def at(second: int) -> int:
    """A time of this many seconds after some midnight."""
    return to_binary(638_505_792_000_000_000 + second * 10_000_000)


def fill(client: Extended, context: str, *seconds: int, stream: str = "s") -> None:
    """Append events of these times; each has its number as its body."""
    for number, second in enumerate(seconds):
        client.append(context, stream, -1, an_event(str(number).encode(), at=at(second)))


def numbers(events: list[StoredEvent]) -> list[int]:
    """The numbers that `fill` gave."""
    return [int(event.body) for event in events]


# ---------------------------------------------------------------- registering


def test_registering_again_gives_the_same_id_and_ignores_the_start(client: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3)
    ids = client.register("ann", (context, "s", LONG_AGO), (context, "t", LONG_AGO))
    assert len(set(ids)) == 2
    assert all(number > 0 for number in ids)
    assert client.register("ann", (context, "t", now()), (context, "s", now())) == ids[::-1]
    assert numbers(client.fetch(ids[0])) == [0, 1, 2]


def test_subscriber_context_and_filter_make_a_subscription(client: Extended, context: str) -> None:
    starts = [(context, "s", LONG_AGO), (context, "s2", LONG_AGO), (context + "x", "s", LONG_AGO)]
    assert len({*client.register("ann", *starts), *client.register("bob", *starts)}) == 6


def test_a_star_and_nothing_are_the_same_filter(client: Extended, context: str) -> None:
    first, second = client.register("ann", (context, "*", LONG_AGO), (context, "", LONG_AGO))
    assert first == second


def test_a_filter_is_a_prefix_and_a_star_in_it_is_a_star(client: Extended, context: str) -> None:
    for stream in ("order-1", "order-2", "order*", "ord", "other"):
        client.append(context, stream, 1, an_event(stream.encode()))
    found = []
    for prefix in ("order", "order*", "ord", "nothing", "*"):
        (number,) = client.register("ann", (context, prefix, LONG_AGO))
        found.append([event.stream for event in client.fetch(number)])
    assert found == [
        ["order-1", "order-2", "order*"],
        ["order*"],
        ["order-1", "order-2", "order*", "ord"],
        [],
        ["order-1", "order-2", "order*", "ord", "other"],
    ]


@pytest.mark.parametrize(
    ("start", "expected"), [(0, [0, 1, 2, 3]), (5, [1, 2, 3]), (6, [1, 2, 3]), (7, [3]), (9, [3]), (10, [])]
)
def test_a_start_is_the_first_event_in_position_order_at_or_after_it(
    client: Extended, context: str, start: int, expected: list[int]
) -> None:
    fill(client, context, 4, 6, 5, 9)
    (number,) = client.register("ann", (context, "*", at(start)))
    assert numbers(client.fetch(number)) == expected


def test_a_start_after_everything_begins_at_the_end(client: Extended, context: str) -> None:
    fill(client, context, 1, 2)
    (number,) = client.register("ann", (context, "*", at(1000)))
    assert client.fetch(number) == []
    client.append(context, "s", -1, an_event(b"7", at=at(3)))
    assert numbers(client.fetch(number)) == [7]


def test_nothing_can_be_registered_fetched_progressed_and_set(client: Extended) -> None:
    assert client.register("ann") == []
    assert client.progress() == []
    assert client.set() == []


# ---------------------------------------------------------------- fetching


def test_events_come_in_position_order_whatever_their_times(client: Extended, context: str) -> None:
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    fill(client, context, 50, 10, 40, 20, 30)
    assert numbers(client.fetch(number)) == [0, 1, 2, 3, 4]
    client.progress((number, at(30)))
    client.append(context, "late", 1, an_event(b"99", at=at(1)))
    assert numbers(client.fetch(number)) == [99]


def test_each_subscription_of_a_fetch_has_an_answer_in_its_place(client: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3)
    first, second = client.register("ann", (context, "s", LONG_AGO), (context, "none", LONG_AGO))
    request = client.send_fetch((first, 2), (NOBODY, 5), (second, 5), (first, 2))
    assert numbers(client.batch(client.answer_to(request), first)) == [0, 1]
    error = client.answer_to(request).error()
    assert error.code == 7
    assert str(NOBODY) in error.message
    assert client.batch(client.answer_to(request), second) == []
    assert numbers(client.batch(client.answer_to(request), first)) == [0, 1]


@pytest.mark.parametrize(("count", "expected"), [(1, 1), (2, 4), (3, 4), (4, 4), (5, 5), (100, 6)])
def test_events_with_the_last_ones_time_are_added(client: Extended, context: str, count: int, expected: int) -> None:
    fill(client, context, 1, 2, 2, 2, 3, 4)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    assert len(client.fetch(number, count)) == expected


def test_the_same_batch_comes_until_it_is_progressed(client: Extended, other: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3, 4, 5)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    batch = client.fetch(number, 2)
    assert numbers(batch) == [0, 1]
    assert client.fetch(number, 1) == batch
    assert other.fetch(number, 100) == batch
    client.progress((number, batch[-1].time))
    assert numbers(client.fetch(number, 2)) == [2, 3]


# ---------------------------------------------------------------- progressing


def test_a_wrong_time_progresses_nothing(client: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    assert client.progress((number, at(2))) == [number]
    assert numbers(client.fetch(number, 2)) == [0, 1]
    for wrong in (at(1), at(3), LONG_AGO, to_binary(ticks_of(at(2)) + 1)):
        assert client.progress((number, wrong)) == [number]
    assert numbers(client.fetch(number, 2)) == [0, 1]


def test_a_repeated_progress_does_nothing(client: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    client.fetch(number, 1)
    for _ in range(3):
        assert client.progress((number, at(1))) == [number]
    assert numbers(client.fetch(number, 1)) == [1]
    client.progress((number, at(1)))
    assert numbers(client.fetch(number, 1)) == [1]


@pytest.mark.parametrize("seconds", [(1, 2, 1, 3, 4), (1, 2, 1), (1, 2, 1, 1, 1)])
def test_a_repeated_progress_cannot_skip_a_batch_that_might_have_ended_on_the_same_time(
    client: Extended, context: str, seconds: tuple[int, ...]
) -> None:
    fill(client, context, *seconds)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    assert numbers(client.fetch(number, 1)) == [0]
    client.progress((number, at(1)))
    batch = client.fetch(number, 2)
    client.progress((number, at(1)))
    assert client.fetch(number, 2) == batch


def test_all_events_come_exactly_once_when_each_batch_is_progressed(client: Extended, context: str) -> None:
    seconds = (1, 1, 2, 1, 1, 3, 3, 3, 2, 2, 1, 5, 4, 4, 4, 4, 4, 1)
    fill(client, context, *seconds)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    found: list[int] = []
    while batch := client.fetch(number, 2):
        found += numbers(batch)
        client.progress((number, batch[-1].time))
    assert found == list(range(len(seconds)))


@pytest.mark.parametrize("kind", [UNSPECIFIED, LOCAL])
def test_a_time_of_another_kind_progresses_too(client: Extended, context: str, kind: int) -> None:
    fill(client, context, 1, 2)
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    client.fetch(number, 1)
    client.progress((number, to_binary(ticks_of(at(1)), kind)))
    assert numbers(client.fetch(number, 1)) == [1]


def test_progress_lists_what_was_asked_whether_it_exists_or_not(client: Extended, context: str) -> None:
    fill(client, context, 1)
    first, second = client.register("ann", (context, "s", LONG_AGO), (context, "t", LONG_AGO))
    client.fetch(first)
    assert client.progress((second, at(1)), (NOBODY, at(1)), (first, at(1))) == [second, NOBODY, first]
    assert client.fetch(first) == []


# ---------------------------------------------------------------- setting


def test_a_subscription_can_be_set_back_and_forth(client: Extended, context: str) -> None:
    fill(client, context, 1, 2, 3)
    (number,) = client.register("ann", (context, "s", LONG_AGO))
    assert numbers(client.fetch(number, 1)) == [0]
    assert client.set(("ann", context, "s", at(3))) == [""]
    assert numbers(client.fetch(number)) == [2]
    client.progress((number, at(3)))
    assert client.set(("ann", context, "s", at(2))) == [""]
    assert numbers(client.fetch(number)) == [1, 2]
    assert client.set(("ann", context, "s", at(9))) == [""]
    assert client.fetch(number) == []


def test_setting_what_does_not_exist_says_so_in_its_place(client: Extended, context: str) -> None:
    client.register("ann", (context, "*", LONG_AGO), (context, "s", LONG_AGO))
    texts = client.set(
        ("ann", context, "", at(1)),
        ("bob", context, "*", at(1)),
        ("ann", context, "x", at(1)),
        ("ann", context, "s", at(1)),
    )
    assert (texts[0], texts[3]) == ("", "")
    assert all(text.startswith("no subscription of ") for text in texts[1:3])
    assert "bob" in texts[1]


@pytest.mark.parametrize("count", [0, -1])
def test_a_fetch_of_less_than_one_event_is_refused(client: Extended, context: str, count: int) -> None:
    (number,) = client.register("ann", (context, "*", LONG_AGO))
    with pytest.raises(Refused, match="count") as refused:
        client.fetch(number, count)
    assert refused.value.code == 1
