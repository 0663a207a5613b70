"""The dialects of Res01: how numbers, times, events and errors are written in each.

Workers call the encoders: an answer's events leave the worker ready to send. All are hot loops, a column at a time;
`bench/` has their figures with those of the gate.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from struct import Struct
from typing import Any, Final, cast

from penstock.errors import InvalidRequest, PenstockError, Refused, Retry, VersionConflict
from penstock.model import Event, stamp_of, ticks_of
from penstock.wire.codes import ERROR_CODES, Res01Code, codes_of
from penstock.wire.res01.fields import (
    BINARY_SCALARS,
    GUID_BYTES,
    TEXT_SCALARS,
    Scalars,
    read_guids,
    read_text,
    read_text_numbers,
    read_texts,
    swap_guids,
)

TEXT_TAG: Final = b"Res01"
ORIGINAL_TAG: Final = b"RC0.1"
"""The tag of all original clients. The length of the RequestId tells the dialect."""
TEXT_ID_BYTES: Final = 36
"""Original text clients write the RequestId as 36 characters of guid, original binary clients as 16 bytes."""
OWN_TAG: Final = b"PEN1"
"""The tag of our own clients: the text dialect, with errors as class and fields."""
LEGACY_WRITER_BUSY: Final = b"0x1"
CLIENTS_OWN: Final = {
    *("AnswerMalformed", "CannotConnect", "ClientClosed", "ConnectionLost", "DeadlinePassed", "TlsFailed"),
}
"""Errors about a client's own attempt, which no server sends."""
ORIGINAL_SENTENCES: Final[dict[type[PenstockError], str]] = {
    VersionConflict: (
        "expected version {expected} of stream {stream} in context {context}, "
        "but its last sequence is {actual}; nothing was written"
    ),
}
"""Sentences that stay as they are in the original's dialects, whatever the errors say elsewhere."""

Frames = list[bytes]
EventEncoder = Callable[[list[Event]], Frames]
"""Turns events into frames; a module-level function, so that it can be pickled for workers."""
SHOWN_FRAMES: Final = 8
"""Frames of an event in an answer: id, stream, context, sequence, timestamp, type, headers, body."""
FULL_FRAMES: Final = 11
"""Frames of a whole event: the same, then position, recorded time and commit id."""

_LONG: Final = Struct("<q")
_BITS: Final = Struct("<Q")
_SIGN: Final = 1 << 63
_WRAP: Final = 1 << 64


@dataclass(frozen=True, slots=True)
class Dialect:
    """How messages are encoded. `legacy`: commits get the older results. `own`: errors have class and fields."""

    scalars: Scalars
    present: EventEncoder
    legacy: bool = False
    is_binary: bool = False
    own: bool = False

    def reason(self, error: PenstockError) -> bytes:
        """An error in one frame, where an answer has a place for it. Never empty: that would mean success."""
        if self.own:
            return error_frame(error)
        fixed = ORIGINAL_SENTENCES.get(type(error))
        return (_sentence(error) if fixed is None else fixed.format_map(vars(error))).encode(errors="replace")

    def failed(self, error: PenstockError) -> Frames:
        """The answer to a request that failed: the original's code and sentence, or our own frame."""
        reason = self.reason(error)
        return [b"ER", reason] if self.own else [b"ER", b"%d" % codes_of(error)[0], reason]

    def refused(self, code: int, sentence: str) -> Frames:
        """The answer to a message that has no error class."""
        return self.failed(Refused(code, sentence, Retry.NEVER))

    def failed_commit(self, error: PenstockError) -> Frames:
        """The older CR of a failed commit. Its reader parses CommitId as a guid before it looks at Result."""
        code = codes_of(error)[0]
        result = LEGACY_WRITER_BUSY if code == Res01Code.WRITER_BUSY else b"%d" % code
        return [b"CR", result, self.reason(error), bytes(GUID_BYTES)] if self.legacy else self.failed(error)


def _sentence(error: PenstockError) -> str:
    return str(error) or type(error).__name__


# --- errors as our own clients get them: class and fields --------------------------------------------------------


def error_frame(error: PenstockError) -> bytes:
    """An error as a JSON object: its class and fields; code and message are for clients that do not know the class."""
    document = {
        "class": type(error).__name__,
        "fields": {field.name: getattr(error, field.name) for field in fields(error)},
        "code": codes_of(error)[0],
        "retry": error.retry,
        "message": _sentence(error),
    }
    return json.dumps(document, separators=(",", ":")).encode()


def error_of(frame: bytes) -> PenstockError:
    """The error that a server sent. A class that this client does not know becomes Refused, with the same message.

    So does a class that only a client can raise: it would claim something about this client's connection.
    """
    try:
        document = json.loads(frame)
        name, given = document["class"], document["fields"]
        found = _errors().get(name)
        if found is not None and isinstance(given, dict):
            kind, types = found
            # Another version may have other fields.
            if given.keys() == types.keys() and all(
                isinstance(given[field], _IN_JSON.get(type_, type_)) for field, type_ in types.items()
            ):
                values = {field: Retry(v) if types[field] is Retry else v for field, v in given.items()}
                return cast("Callable[..., PenstockError]", kind)(**values)
        retry = Retry.UNKNOWN if name in CLIENTS_OWN else Retry(document["retry"])
        return Refused(int(document["code"]), str(document["message"]), retry)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("Error", f"is not an error of this protocol: {error!r}") from None


_IN_JSON: Final[dict[Any, Any]] = {Retry: str, float: int | float}
"""The types of fields that JSON represents by another type."""


@cache
def _errors() -> dict[str, tuple[type[PenstockError], dict[str, Any]]]:
    """The error classes that a server may send, by name, with the types of their fields."""
    kinds = (kind for kind in ERROR_CODES if kind.__name__ not in CLIENTS_OWN)
    return {kind.__name__: (kind, {field.name: field.type for field in fields(kind)}) for kind in kinds}


# --- events -------------------------------------------------------------------------------------------------------


def text_frames(events: list[Event]) -> list[bytes]:
    return _frames(events, [b"%d" % event.sequence for event in events], _text_times(events))


def binary_frames(events: list[Event]) -> list[bytes]:
    """Eight frames for each event, in the binary dialect."""
    sequences = [_LONG.pack(event.sequence) for event in events]
    # The bits of a stamp are those of its signed number.
    times = [_BITS.pack(event.stamp) for event in events]
    return _frames(events, sequences, times)


def full_frames(events: list[Event]) -> list[bytes]:
    """Eleven frames for each event, in the text dialect: whole events."""
    frames = _frames(events, [b"%d" % event.sequence for event in events], _text_times(events), FULL_FRAMES)
    frames[8::FULL_FRAMES] = [b"%d" % event.position for event in events]
    frames[9::FULL_FRAMES] = [b"%d" % stamp_of(event.recorded) for event in events]
    frames[10::FULL_FRAMES] = swap_guids([event.commit for event in events])
    return frames


def item_frames(items: list[Any]) -> list[bytes]:
    """Items of an iterator, one frame each: they are bytes already."""
    return items


def _text_times(events: list[Event]) -> list[bytes]:
    return [b"%d" % (stamp if (stamp := event.stamp) < _SIGN else stamp - _WRAP) for event in events]


def _frames(
    events: list[Event], sequences: list[bytes], times: list[bytes], frames_each: int = SHOWN_FRAMES
) -> list[bytes]:
    frames = [b""] * (frames_each * len(events))
    frames[0::frames_each] = swap_guids([event.id for event in events])
    frames[1::frames_each] = [event.stream.encode() for event in events]
    frames[2::frames_each] = [event.context.encode() for event in events]
    frames[3::frames_each] = sequences
    frames[4::frames_each] = times
    frames[5::frames_each] = [event.type.encode() for event in events]
    frames[6::frames_each] = [event.headers.encode() if event.headers else b"" for event in events]
    frames[7::frames_each] = [event.body for event in events]
    return frames


def full_events(frames: list[bytes]) -> list[Event]:
    """Events from eleven frames each: the inverse of `full_frames`."""
    each = FULL_FRAMES
    columns = (
        read_text_numbers(frames[8::each], "Position"),
        _names(frames[2::each], "Context"),
        _names(frames[1::each], "StreamId"),
        read_text_numbers(frames[3::each], "Sequence"),
        read_guids(frames[0::each], "EventId"),
        TEXT_SCALARS.read_stamps(frames[4::each], "Timestamp"),
        _names(frames[5::each], "Type tag"),
        [text or None for text in read_texts(frames[6::each], "Headers")],
        frames[7::each],
        map(ticks_of, TEXT_SCALARS.read_stamps(frames[9::each], "Recorded")),
        read_guids(frames[10::each], "CommitId"),
    )
    return list(map(Event, *columns))


def _names(column: list[bytes], field: str) -> list[str]:
    """A column of names. Often all are the same: then it decodes, and keeps, one."""
    if column and column.count(column[0]) == len(column):
        return [read_text(column[0], f"{field} of event 1")] * len(column)
    return read_texts(column, field)


# --- the dialects ------------------------------------------------------------------------------------------------

TEXT: Final = Dialect(TEXT_SCALARS, text_frames)
LEGACY: Final = Dialect(TEXT_SCALARS, text_frames, legacy=True)
BINARY: Final = Dialect(BINARY_SCALARS, binary_frames, is_binary=True)
OWN: Final = Dialect(TEXT_SCALARS, text_frames, own=True)
