"""Messages of one byte string: as frames they are the byte string, however long its fields are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.wire.res01.messages import LONG_FIELD_BYTES, join_fields, large_frames, split_fields

FIELDS = st.lists(st.one_of(st.binary(max_size=20), st.integers(0, 3 * LONG_FIELD_BYTES).map(bytes)), max_size=12)


@given(FIELDS, st.integers(1, 70_000))
def test_frames_of_fields_are_their_byte_string_and_fit(fields: list[bytes], frame_bytes_max: int) -> None:
    frames = list(large_frames(fields, frame_bytes_max))
    assert b"".join(frames) == join_fields(fields)
    assert split_fields(frames) == fields
    assert all(1 <= len(frame) <= frame_bytes_max for frame in frames)


@given(FIELDS, st.integers(1, 40_000), st.data())
def test_fields_come_out_of_frames_that_end_anywhere(fields: list[bytes], first: int, data: st.DataObject) -> None:
    content = join_fields(fields)
    frames: list[bytes] = []
    while content:
        length = data.draw(st.integers(0, first)) if len(frames) < 8 else len(content)
        frames.append(content[:length])
        content = content[length:]
    assert split_fields(frames) == fields
    with pytest.raises(InvalidRequest):
        split_fields([*frames, b"more"])


def test_a_view_is_sent_without_a_copy() -> None:
    stored = bytearray(b"r" * 100_000)
    frames = list(large_frames([b"RD", memoryview(stored)], 65_535))  # type: ignore[list-item]
    stored[:] = b"s" * 100_000
    assert b"".join(frames).endswith(b"s" * 100_000)
