"""From a list of frames to what it asks for.

Nothing that arrives makes this raise, but `Unanswerable`: every mistake becomes an answer with its code and a
sentence that names the field.
"""

from typing import Final

from penstock.errors import PenstockError
from penstock.wire.res01 import commands, encoding
from penstock.wire.res01.codes import MALFORMED, UNSUPPORTED_COMMAND, UNSUPPORTED_PROTOCOL
from penstock.wire.res01.commands import Command
from penstock.wire.res01.encoding import Dialect
from penstock.wire.res01.events import binary_frames, text_frames
from penstock.wire.res01.exchange import Envelope, Exchange, Frames, error_payload, refusal_payload
from penstock.wire.res01.extensions import EXTENSIONS
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.full import FULL
from penstock.wire.res01.logs import LOGS
from penstock.wire.res01.scalars import BINARY_SCALARS, TEXT_SCALARS, shown

TEXT_TAG: Final = b"Res01"
BINARY_TAG: Final = b"RC0.1"

TEXT: Final = Dialect("Res01", TEXT_SCALARS, text_frames)
LEGACY: Final = Dialect("Res01", TEXT_SCALARS, text_frames, legacy=True)
BINARY: Final = Dialect("RC0.1", BINARY_SCALARS, binary_frames)

TEXT_COMMANDS: Final[dict[bytes, Command]] = {**commands.TEXT, **EXTENSIONS, **FULL, **LOGS}
BINARY_COMMANDS: Final[dict[bytes, Command]] = commands.BINARY
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
    if envelope.tag == TEXT_TAG:
        dialect, known = (LEGACY if legacy else TEXT), TEXT_COMMANDS
    elif envelope.tag == BINARY_TAG:
        dialect, known = BINARY, BINARY_COMMANDS
    else:
        return _refused(envelope, UNSUPPORTED_PROTOCOL, f"protocol {shown(envelope.tag)} is not spoken here")
    if name is None or request_id is None:
        return _refused(envelope, MALFORMED, "RequestId is missing: the message has too few frames")
    command = known.get(name)
    if command is None:
        return _refused(envelope, UNSUPPORTED_COMMAND, _unknown(name, dialect))
    return _asked(envelope, name, command, dialect, Fields(frames, border + 4, dialect.scalars))


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


def _unknown(name: bytes, dialect: Dialect) -> str:
    if name == INTERNAL:
        return "command 'RR' is internal and not for use from outside"
    if name in TEXT_COMMANDS:
        return f"command {shown(name)} is not part of {dialect.name}; use Res01 for it"
    return f"command {shown(name)} is not known"
