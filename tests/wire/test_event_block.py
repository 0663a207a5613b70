"""Blocks of events: whole events in one frame, column by column."""

import re
from contextlib import suppress
from pathlib import Path
from random import Random
from struct import pack_into
from typing import Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import AnswerMalformed, InvalidRequest
from penstock.model import Event, EventPage, ReadStream
from penstock.wire.res01.event_block import HEAD, event_block, events_of_block
from penstock.wire.res01.messages import reply_of
from tests.wire.res01_strategies import event_lists
from tests.wire.samples import EVENT

PAGE: Final = (Path(__file__).parents[2] / "docs" / "protocols" / "res01.md").read_text(encoding="utf-8")


def some(count: int) -> list[Event]:
    return [
        structs.replace(
            EVENT,
            position=3 * at,
            sequence=at,
            stream=f"order-{at % 3}",
            body=b"%d" % at * (at % 5),
            headers=None if at % 2 else '{"n":"é"}',
        )
        for at in range(1, count + 1)
    ]


@given(event_lists)
@example([])
@example(some(40))
def test_events_come_back_from_a_block_as_they_were(events: list[Event]) -> None:
    (block,) = event_block(events)
    assert events_of_block(block) == events


def test_events_of_a_block_share_their_names() -> None:
    read = events_of_block(*event_block(some(100)))
    assert len({id(event.stream) for event in read}) == 3
    assert len({id(event.context) for event in read}) == 1


@given(st.data())
def test_a_block_that_was_changed_is_refused_or_read_as_events(data: st.DataObject) -> None:
    (block,) = event_block(some(12))
    changed = bytearray(block)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(block) - 1))] = data.draw(st.integers(0, 255))
    # Any other exception would reach the caller as it is.
    with suppress(InvalidRequest):
        assert all(isinstance(event, Event) for event in events_of_block(bytes(changed)))


def test_a_block_that_is_cut_or_has_more_is_refused() -> None:
    (block,) = event_block(some(12))
    for length in (0, 1, HEAD.size - 1, *Random(7).sample(range(HEAD.size, len(block)), 60)):
        with pytest.raises(InvalidRequest):
            events_of_block(block[:length])
    with pytest.raises(InvalidRequest):
        events_of_block(block + b"x")


@pytest.mark.parametrize("field", range(4))
def test_numbers_that_do_not_fit_the_block_take_no_memory(field: int) -> None:
    (block,) = event_block(some(2))
    changed = bytearray(block)
    pack_into("<I", changed, 4 * field, 0xFFFFFFFF)
    with pytest.raises(InvalidRequest):
        events_of_block(bytes(changed))


def test_a_client_that_gets_a_broken_block_says_what_it_could_not_read() -> None:
    read = reply_of(ReadStream("shop", "order-1", 1, None), [b"PB", b"2", b"1", b"short"])
    assert isinstance(read, AnswerMalformed)
    assert read.reason.startswith("Block is no block of events")
    whole = reply_of(ReadStream("shop", "order-1", 1, None), [b"PB", b"2", b"1", *event_block([EVENT])])
    assert whole == EventPage([EVENT], 2, True)


def test_the_layout_of_the_page_is_that_of_the_codec() -> None:
    section = PAGE.split("### Blocks of events")[1].split("\n## ")[0]
    head, *fixed = (int(size) * int(many) for many, size in re.findall(r"(\d) × (\d+) bytes", section))
    assert head == HEAD.size
    empty = structs.replace(EVENT, headers=None, body=b"")
    one, two = (len(*event_block([empty] * many)) for many in (1, 2))
    assert two - one == sum(fixed)
