"""Single fields: .NET's datetimes of all kinds, its guids, ISO 8601, and numbers."""

from datetime import UTC, datetime, timedelta
from struct import pack
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock.errors import InvalidRequest
from penstock.model import KIND_UTC, TICKS_MAX, Event, stamp_of, ticks_of, ticks_of_datetime
from penstock.wire.res01.dialects import BINARY, TEXT, Dialect, binary_frames, text_frames
from penstock.wire.res01.fields import (
    BINARY_SCALARS,
    INT64_MAX,
    INT64_MIN,
    TEXT_SCALARS,
    read_guid,
    read_guids,
    read_texts,
    stamp_of_binary,
    swap_guid,
    swap_guids,
)
from penstock.wire.res01.schema import INT, LONG, Scalar
from tests.wire.samples import EVENT, STAMP, TICKS

ticks = st.integers(0, TICKS_MAX)
kinds = st.integers(0, 3)
int64s = st.integers(INT64_MIN, INT64_MAX)
KINDS = ["unspecified", "UTC", "local", "local, ambiguous"]


def to_binary(ticks: int, kind: int) -> int:
    """What .NET's DateTime.ToBinary() gives."""
    bits = kind << 62 | ticks
    return bits - (1 << 64) if bits >= 1 << 63 else bits


# --- datetimes ------------------------------------------------------------------------------------------------


@given(ticks, kinds)
def test_a_time_comes_back_as_it_was_sent(ticks: int, kind: int) -> None:
    binary = to_binary(ticks, kind)
    for scalars, frame in ((TEXT_SCALARS, b"%d" % binary), (BINARY_SCALARS, pack("<q", binary))):
        stamp = scalars.read_stamp(frame, "Timestamp")
        assert ticks_of(stamp) == ticks
        assert scalars.write_stamp(stamp) == frame


@given(st.lists(st.tuples(ticks, kinds), max_size=30))
def test_a_column_of_times_is_what_each_of_them_is(times: list[tuple[int, int]]) -> None:
    stamps = [stamp_of(*time) for time in times]
    for scalars in (TEXT_SCALARS, BINARY_SCALARS):
        frames = [scalars.write_stamp(stamp) for stamp in stamps]
        assert scalars.read_stamps(frames, "Timestamp") == stamps


@given(st.lists(int64s, min_size=1, max_size=30))
def test_a_column_of_any_numbers_is_what_each_of_them_is(values: list[int]) -> None:
    for scalars, frames in (
        (TEXT_SCALARS, [b"%d" % value for value in values]),
        (BINARY_SCALARS, [pack("<q", value) for value in values]),
    ):
        assert scalars.read_stamps(frames, "Timestamp") == [stamp_of_binary(value) for value in values]


@given(st.integers())
def test_any_number_is_a_time_in_range(value: int) -> None:
    stamp = stamp_of_binary(value)
    assert 0 <= ticks_of(stamp) <= TICKS_MAX
    assert 0 <= stamp < 1 << 64


@pytest.mark.parametrize("kind", range(4), ids=KINDS)
@pytest.mark.parametrize("ticks", [0, 1, TICKS, TICKS_MAX])
def test_the_kinds_of_time_compare_as_utc_ticks(ticks: int, kind: int) -> None:
    stamp = TEXT_SCALARS.read_stamp(b"%d" % to_binary(ticks, kind), "Timestamp")
    assert (ticks_of(stamp), stamp >> 62) == (ticks, kind)


def test_a_local_time_has_the_top_bit_set() -> None:
    assert to_binary(TICKS, 2) < 0
    assert BINARY_SCALARS.write_stamp(stamp_of(TICKS, 2))[7] & 0x80


@pytest.mark.parametrize(
    ("value", "ticks", "kind"),
    [
        (to_binary(TICKS_MAX + 1, 0), TICKS_MAX, 0),
        (to_binary(TICKS_MAX + 1, 1), TICKS_MAX, 1),
        (to_binary((1 << 62) - 1, 1), TICKS_MAX, 1),
        (to_binary(TICKS_MAX + 1, 2), TICKS_MAX, 2),
        (to_binary((1 << 62) - 1, 2), 0, 2),
        (to_binary((1 << 62) - 36_000_000_000, 3), 0, 3),
        (INT64_MAX + 1, TICKS_MAX, KIND_UTC),
        (10**30, TICKS_MAX, KIND_UTC),
        (INT64_MIN - 1, 0, KIND_UTC),
        (-(10**30), 0, KIND_UTC),
    ],
)
def test_a_time_out_of_range_becomes_the_nearest_in_range(value: int, ticks: int, kind: int) -> None:
    stamp = TEXT_SCALARS.read_stamp(b"%d" % value, "Timestamp")
    assert (ticks_of(stamp), stamp >> 62) == (ticks, kind)
    assert TEXT_SCALARS.read_stamps([b"%d" % value] * 3, "Timestamp") == [stamp] * 3


ISO = {
    "2024-05-06T07:08:09.1234567Z": TICKS,
    "2024-05-06T07:08:09.1234567": TICKS,
    "2024-05-06 07:08:09.1234567": TICKS,
    "2024-05-06T07:08:09,1234567Z": TICKS,
    "20240506T070809.1234567Z": TICKS,
    "2024-05-06T09:08:09.1234567+02:00": TICKS,
    "2024-05-05T23:38:09.1234567-07:30": TICKS,
    "2024-05-06T07:08:09.123456Z": TICKS - 7,
    "2024-05-06T07:08:09.123456789Z": TICKS,
    "2024-05-06T07:08:09Z": TICKS - 1_234_567,
    "2024-05-06T07:08Z": TICKS - 91_234_567,
    "2000-01-01T00:00:00.000001-10:00": 630_823_176_000_000_010,
    "2024-05-06": TICKS - 256_891_234_567,
    "0001-01-01T00:00:00Z": 0,
    "0001-01-01T00:00:00+05:00": 0,
    "0001-01-01T00:00:00.0000003+05:00": 0,
    "0000-06-01T00:00:00Z": 0,
    "0000-02-29": 0,
    "9999-12-31T23:59:59.9999999Z": TICKS_MAX,
    "9999-12-31T23:59:59.9999999-05:00": TICKS_MAX,
}


@pytest.mark.parametrize(("text", "ticks"), ISO.items())
def test_iso_times_are_taken_as_utc_unless_they_say_otherwise(text: str, ticks: int) -> None:
    assert TEXT_SCALARS.read_stamp(text.encode(), "Timestamp") == stamp_of(ticks)


@given(st.datetimes(timezones=st.timezones() | st.just(UTC)))
def test_iso_times_of_python_are_understood(moment: datetime) -> None:
    ticks = min(max(ticks_of_datetime(moment), 0), TICKS_MAX)
    stamp = TEXT_SCALARS.read_stamp(moment.isoformat().encode(), "Timestamp")
    assert stamp == stamp_of(ticks)


@pytest.mark.parametrize(
    "text",
    [
        *("", "now", "2024-13-01", "2023-02-29", "0000-02-30", "2024-05-06T25:00:00Z", "10000-01-01", "1e9", "0x10"),
        *("2024-05-06T07:08:09." + "0" * 60 + "Z", "２０２４-05-06", "--5", "-", "5.5"),
    ],
)
def test_what_is_neither_ticks_nor_iso_is_refused(text: str) -> None:
    for read in (TEXT_SCALARS.read_stamp, lambda frame, field: TEXT_SCALARS.read_stamps([frame], field)):
        with pytest.raises(InvalidRequest, match="is neither ticks nor ISO 8601"):
            read(text.encode(), "Timestamp")


def test_the_time_of_the_samples_is_what_the_page_says() -> None:
    moment = datetime(2024, 5, 6, 7, 8, 9, 123456, tzinfo=UTC)
    assert ticks_of_datetime(moment) + 7 == TICKS
    assert (moment - datetime(1, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) == TICKS // 10
    assert stamp_of(TICKS) == STAMP


# --- guids ----------------------------------------------------------------------------------------------------


@given(st.uuids())
def test_a_guid_has_the_layout_of_dotnet(uuid: UUID) -> None:
    assert read_guid(uuid.bytes_le, "EventId") == uuid.bytes
    assert swap_guid(uuid.bytes) == uuid.bytes_le


@given(st.lists(st.uuids(), max_size=40))
def test_a_column_of_guids_has_it_too(uuids: list[UUID]) -> None:
    assert read_guids([uuid.bytes_le for uuid in uuids], "EventId") == [uuid.bytes for uuid in uuids]
    assert swap_guids([uuid.bytes for uuid in uuids]) == [uuid.bytes_le for uuid in uuids]


@pytest.mark.parametrize("length", [0, 15, 17, 36])
@pytest.mark.parametrize("others", [0, 1, 40])
def test_a_guid_of_another_length_is_refused(length: int, others: int) -> None:
    frames = [*[bytes(16)] * others, bytes(length)]
    with pytest.raises(InvalidRequest, match=f"EventId of event {others + 1} has {length} bytes; a guid has 16"):
        read_guids(frames, "EventId")


@pytest.mark.parametrize("others", [0, 1, 40])
def test_a_text_that_is_not_utf_8_is_refused_by_its_place(others: int) -> None:
    with pytest.raises(InvalidRequest, match=rf"TypeKey of event {others + 1} is not UTF-8 \(byte 1\)"):
        read_texts([*[b"Placed"] * others, b"x\xff"], "TypeKey")


# --- numbers --------------------------------------------------------------------------------------------------


def written(kind: Scalar, number: int, dialect: Dialect) -> bytes:
    frames: list[bytes] = []
    kind.write(frames, number, dialect)
    (frame,) = frames
    return frame


@given(int64s)
def test_a_number_comes_back_as_it_was_sent(number: int) -> None:
    assert TEXT_SCALARS.read_number(written(LONG, number, TEXT), "Count") == number
    assert BINARY_SCALARS.read_number(written(LONG, number, BINARY), "Count") == number


@given(st.integers(-(1 << 31), (1 << 31) - 1))
def test_an_int_has_four_bytes_in_the_binary_dialect(number: int) -> None:
    frame = written(INT, number, BINARY)
    assert len(frame) == 4
    assert BINARY_SCALARS.read_number(frame, "Count") == number


@pytest.mark.parametrize("number", [INT64_MAX + 1, INT64_MIN - 1, 10**31])
def test_a_number_beyond_64_bits_is_refused(number: int) -> None:
    with pytest.raises(InvalidRequest, match="does not fit 64 bits"):
        TEXT_SCALARS.read_number(b"%d" % number, "Count")


# --- events ---------------------------------------------------------------------------------------------------


def test_no_events_are_no_frames() -> None:
    assert text_frames([]) == binary_frames([]) == []


@given(
    st.lists(
        st.builds(lambda kind, ticks: structs.replace(EVENT, stamp=stamp_of(ticks, kind)), kinds, ticks), max_size=20
    )
)
def test_events_have_eight_frames_each_in_order(events: list[Event]) -> None:
    for present, scalars in ((text_frames, TEXT_SCALARS), (binary_frames, BINARY_SCALARS)):
        frames = present(events)
        assert len(frames) == 8 * len(events)
        assert [scalars.read_stamp(frame, "Timestamp") for frame in frames[4::8]] == [event.stamp for event in events]
        assert [scalars.read_number(frame, "Sequence") for frame in frames[3::8]] == [1] * len(events)
