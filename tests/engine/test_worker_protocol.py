"""Messages between the server and its workers: what is sent arrives, and records arrive without a copy."""

from pickle import PickleBuffer
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.worker_protocol import SPARE_BYTES, SPARES_MAX, Spares, Unframer, frame

VALUES = st.recursive(st.one_of(st.none(), st.integers(), st.text(), st.binary()), st.lists, max_leaves=10)


def received(data: bytes) -> list[Any]:
    """What a receiver makes of bytes that arrive as its buffers allow."""
    unframer = Unframer()
    values: list[Any] = []
    while data:
        size = min(len(unframer.space), len(data))
        unframer.space[:size] = data[:size]
        values += unframer.received(size)
        data = data[size:]
    return values


@given(st.lists(st.tuples(VALUES, st.lists(st.binary())), max_size=4))
def test_messages_arrive_one_after_the_other_with_their_buffers(messages: list[tuple[Any, list[bytes]]]) -> None:
    sent = [piece for value, buffers in messages for piece in frame((value, list(map(PickleBuffer, buffers))))]
    arrived = received(b"".join(sent))
    assert [(value, [bytes(buffer) for buffer in buffers]) for value, buffers in arrived] == messages


def test_buffers_are_sent_and_received_without_copies() -> None:
    record = bytearray(10_000)
    *_, piece = frame([PickleBuffer(record)])
    assert isinstance(piece, memoryview)
    assert piece.obj is record
    ((view,),) = received(b"".join(frame([PickleBuffer(record)])))
    assert isinstance(view, memoryview)
    # A view of what was received, which is longer: the pickle is in front of it.
    assert len(memoryview(view.obj)) > len(record)


SIZE = SPARE_BYTES.start


def test_a_large_buffer_is_used_again_once_nobody_looks_at_it() -> None:
    spares = Spares()
    first = spares.space(SIZE)
    first[:] = b"1" * SIZE
    part, buffer = first[10:20].toreadonly(), first.obj
    del first
    second = spares.space(SIZE)
    second[:] = b"2" * SIZE
    assert second.obj is not buffer
    assert part == b"1" * 10
    del part
    assert spares.space(SIZE).obj is buffer


def test_few_buffers_are_kept_and_none_that_are_small_or_huge() -> None:
    spares = Spares()
    views = [spares.space(SIZE) for _ in range(SPARES_MAX + 1)]
    assert len({id(view.obj) for view in views}) == len(views)
    kept = {id(view.obj) for view in views[1:]}
    forgotten = views[0].obj
    views.clear()
    again = [spares.space(SIZE) for _ in range(SPARES_MAX)]
    assert {id(view.obj) for view in again} == kept
    assert forgotten is not None
    for size in (SIZE - 1, SPARE_BYTES.stop):
        whole = spares.space(size).obj
        assert spares.space(size).obj is not whole
