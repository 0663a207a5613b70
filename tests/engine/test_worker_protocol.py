"""Messages between the server and its workers: what is sent arrives, and records arrive without a copy."""

from pickle import PickleBuffer
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.engine.worker_protocol import Unframer, frame

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
