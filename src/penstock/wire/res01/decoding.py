"""From a list of frames to what it asks for.

Nothing that arrives makes this raise, but `Unanswerable`: every mistake becomes an answer with its code and a
sentence that names the field.
"""

from typing import Final

from penstock.errors import PenstockError
from penstock.model import TICKS_MAX, Append
from penstock.model.ticks import TICKS_MASK
from penstock.wire.res01 import commands, encoding
from penstock.wire.res01.builds import BUILDS
from penstock.wire.res01.codes import MALFORMED, UNSUPPORTED_COMMAND, UNSUPPORTED_PROTOCOL
from penstock.wire.res01.commands import Command
from penstock.wire.res01.encoding import Dialect
from penstock.wire.res01.events import binary_frames, text_frames
from penstock.wire.res01.exchange import Envelope, Exchange, Frames, error_payload, refusal_payload
from penstock.wire.res01.extensions import EXTENSIONS
from penstock.wire.res01.fields import Fields, new_event_of
from penstock.wire.res01.full import FULL
from penstock.wire.res01.logs import LOGS
from penstock.wire.res01.scalars import (
    BINARY_SCALARS,
    GUID_BYTES,
    INT64_MAX,
    LONG_DIGITS,
    TEXT_SCALARS,
    shown,
    swap_guid,
)
from penstock.wire.res01.staging import STAGING
from penstock.wire.res01.upkeep import UPKEEP

TEXT_TAG: Final = b"Res01"
ORIGINAL_TAG: Final = b"RC0.1"
"""The tag of all original clients, text and binary. The length of the RequestId tells the dialect."""
TEXT_ID_BYTES: Final = 36
"""Original text clients write the RequestId as 36 characters of guid, original binary clients as 16 bytes."""

TEXT: Final = Dialect(TEXT_SCALARS, text_frames)
LEGACY: Final = Dialect(TEXT_SCALARS, text_frames, legacy=True)
BINARY: Final = Dialect(BINARY_SCALARS, binary_frames)

TEXT_COMMANDS: Final[dict[bytes, Command]] = {
    **commands.TEXT,
    **EXTENSIONS,
    **FULL,
    **LOGS,
    **UPKEEP,
    **STAGING,
    **BUILDS,
}
BINARY_COMMANDS: Final[dict[bytes, Command]] = commands.BINARY
ONE_EVENT_FRAMES: Final = 13
"""Frames of an append of one event, the empty one that leads it included."""
ONE_EACH: Final = {b"EF", b"BF"}
"""Answers that come one for each request of a message, as they are ready."""
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
    if envelope.tag == TEXT_TAG or (envelope.tag == ORIGINAL_TAG and len(envelope.request_id) == TEXT_ID_BYTES):
        dialect, known = (LEGACY if legacy else TEXT), TEXT_COMMANDS
    elif envelope.tag == ORIGINAL_TAG:
        dialect, known = BINARY, BINARY_COMMANDS
    else:
        return _refused(envelope, UNSUPPORTED_PROTOCOL, f"protocol {shown(envelope.tag)} is not spoken here")
    if name == b"AC" and len(frames) == border + ONE_EVENT_FRAMES and dialect is TEXT:
        exchange = _one_event(envelope, frames, border)
        if exchange is not None:
            return exchange
    if name is None or request_id is None:
        return _refused(envelope, MALFORMED, "RequestId is missing: the message has too few frames")
    command = known.get(name)
    if command is None:
        return _refused(envelope, UNSUPPORTED_COMMAND, _unknown(name))
    return _asked(envelope, name, command, dialect, Fields(frames, border + 4, dialect.scalars))


def _one_event(envelope: Envelope, frames: Frames, border: int) -> Exchange | None:
    """The most common message of all, an append of one event, in half the time; None leaves it to the general way."""
    context, stream, version, count, number, stamp, kind, headers, body = frames[border + 4 :]
    if count != b"1" or len(number) != GUID_BYTES or not stamp.isdigit() or len(stamp) > LONG_DIGITS:
        return None
    if version != b"-1" and not (version.isdigit() and len(version) < LONG_DIGITS):
        return None
    value = int(stamp)
    if value & TICKS_MASK > TICKS_MAX or value > INT64_MAX:
        return None
    try:
        row = swap_guid(number), value, kind.decode(), headers.decode() or None, body
        append = Append(context.decode(), stream.decode(), (new_event_of(row),), int(version))
    except UnicodeDecodeError:
        return None
    return Exchange(envelope, (append,), encoding.commit_answer(TEXT), text_frames)


def _head(frames: Frames, border: int) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The tag, the command and the RequestId, as far as they are there."""
    tag, name, request_id = (*frames[border + 1 : border + 4], None, None, None)[:3]
    return tag, name, request_id


def _asked(envelope: Envelope, name: bytes, command: Command, dialect: Dialect, fields: Fields) -> Exchange:
    try:
        requests, compose = command.decode(fields, dialect)
        fields.end()
    except PenstockError as error:
        failed = encoding.legacy_commit_error if dialect.legacy and name == b"AC" else error_payload
        return Exchange(envelope, (), encoding.always(failed(error)), dialect.present)
    return Exchange(envelope, requests, compose, command.present or dialect.present, command.answer in ONE_EACH)


def _refused(envelope: Envelope, code: int, sentence: str) -> Exchange:
    return Exchange(envelope, (), encoding.always(refusal_payload(code, sentence)), text_frames)


def _unknown(name: bytes) -> str:
    if name == INTERNAL:
        return "command 'RR' is internal and not for use from outside"
    if name in TEXT_COMMANDS:
        return f"command {shown(name)} is not part of the binary dialect; use the text dialect for it"
    return f"command {shown(name)} is not known"
