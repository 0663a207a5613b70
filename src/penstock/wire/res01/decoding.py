"""From a list of frames to what it asks for.

Nothing that arrives makes this raise, but `Unanswerable`: every mistake becomes an answer with its code and a
sentence that names the field.
"""

from contextlib import suppress
from typing import Final

from penstock.errors import LimitExceeded, PenstockError
from penstock.model import TICKS_MAX, Append, ProducerMark
from penstock.model.ticks import TICKS_MASK
from penstock.wire.res01.codes import MALFORMED, UNSUPPORTED_COMMAND, UNSUPPORTED_PROTOCOL
from penstock.wire.res01.commands import BINARY_COMMANDS, OWN_COMMANDS, TEXT_COMMANDS, Command
from penstock.wire.res01.dialects import (
    BINARY,
    LEGACY,
    ORIGINAL_TAG,
    OWN,
    OWN_TAG,
    TEXT,
    TEXT_ID_BYTES,
    TEXT_TAG,
    Dialect,
    Frames,
)
from penstock.wire.res01.exchange import Envelope, Exchange
from penstock.wire.res01.fields import Fields, new_event_of
from penstock.wire.res01.scalars import GUID_BYTES, INT64_MAX, LONG_DIGITS, shown, swap_guid

MARK_FRAMES: Final = 2
ONE_EVENT_FRAMES: Final = {b"AC": 13, b"AF": 13 + MARK_FRAMES}
"""Frames of an append of one event, the empty one that leads it included."""
INTERNAL: Final = b"RR"
"""Response Ready. The original sends it to itself; from outside it is no command."""


class Unanswerable(Exception):
    """A message without an empty frame: there is no telling where an answer should go."""


def decode(frames: Frames, *, legacy: bool = False) -> Exchange:
    """What a message asks for. `legacy`: on an endpoint that answers AC with the older results."""
    try:
        border = frames.index(b"")
    except ValueError:
        raise Unanswerable from None
    tag, name, request_id = _head(frames, border)
    envelope = Envelope(frames[:border], TEXT_TAG if tag is None else tag, request_id or b"")
    found = _dialect(envelope, legacy=legacy)
    if found is None:
        sentence = f"protocol {shown(envelope.tag)} is not spoken here"
        return Exchange(envelope, TEXT, settled=TEXT.refused(UNSUPPORTED_PROTOCOL, sentence))
    dialect, known = found
    if name is None or request_id is None:
        sentence = "RequestId is missing: the message has too few frames"
        return Exchange(envelope, dialect, settled=dialect.refused(MALFORMED, sentence))
    command = known.get(name)
    if command is None:
        return Exchange(envelope, dialect, settled=dialect.refused(UNSUPPORTED_COMMAND, _unknown(name)))
    if len(frames) == border + ONE_EVENT_FRAMES.get(name, 0) and not dialect.is_binary:
        with suppress(UnicodeDecodeError):
            append = _one_event(command, frames, border + 4)
            if append is not None:
                return Exchange(envelope, dialect, command, (append,))
    return _asked(envelope, command, dialect, frames, border + 4)


def _dialect(envelope: Envelope, *, legacy: bool) -> tuple[Dialect, dict[bytes, Command]] | None:
    if envelope.tag == OWN_TAG:
        return OWN, OWN_COMMANDS
    if envelope.tag == TEXT_TAG or (envelope.tag == ORIGINAL_TAG and len(envelope.request_id) == TEXT_ID_BYTES):
        return (LEGACY if legacy else TEXT), TEXT_COMMANDS
    return (BINARY, BINARY_COMMANDS) if envelope.tag == ORIGINAL_TAG else None


def _one_event(command: Command, frames: Frames, at: int) -> Append | None:
    """The most common message of all, an append of one event, in half the time; None leaves it to the general way."""
    mark = None
    if command.code == b"AF":
        producer, mark_number = frames[at : at + MARK_FRAMES]
        at += MARK_FRAMES
        if producer or mark_number:
            if not producer or not mark_number.isdigit() or len(mark_number) >= LONG_DIGITS:
                return None
            mark = ProducerMark(producer.decode(), int(mark_number))
    context, stream, version, count, number, stamp, kind, headers, body = frames[at:]
    if count != b"1" or len(number) != GUID_BYTES or not stamp.isdigit() or len(stamp) > LONG_DIGITS:
        return None
    if version != b"-1" and not (version.isdigit() and len(version) < LONG_DIGITS):
        return None
    value = int(stamp)
    if value & TICKS_MASK > TICKS_MAX or value > INT64_MAX:
        return None
    row = swap_guid(number), value, kind.decode(), headers.decode() or None, body
    return Append(context.decode(), stream.decode(), (new_event_of(row),), int(version), mark)


def _head(frames: Frames, border: int) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The tag, the command and the RequestId, as far as they are there."""
    tag, name, request_id = (*frames[border + 1 : border + 4], None, None, None)[:3]
    return tag, name, request_id


def _asked(envelope: Envelope, command: Command, dialect: Dialect, frames: Frames, at: int) -> Exchange:
    fields = Fields(frames, at, dialect.scalars)
    try:
        _weigh(command, frames)
        requests = command.read(fields)
        fields.end()
    except PenstockError as error:
        return Exchange(envelope, dialect, command, settled=command.answer.failed(error, dialect))
    if command.settled is not None and (payload := command.settled(requests[0])) is not None:
        return Exchange(envelope, dialect, command, settled=payload)
    return Exchange(envelope, dialect, command, requests)


def _weigh(command: Command, frames: Frames) -> None:
    if command.bytes_max is not None and (size := sum(map(len, frames))) > command.bytes_max:
        raise LimitExceeded("command_bytes_max", size, command.bytes_max)


def _unknown(name: bytes) -> str:
    if name == INTERNAL:
        return "command 'RR' is internal and not for use from outside"
    if name in TEXT_COMMANDS:
        return f"command {shown(name)} is not part of the binary dialect; use the text dialect for it"
    return f"command {shown(name)} is not known"
