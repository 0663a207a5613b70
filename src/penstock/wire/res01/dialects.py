"""The dialects of Res01: how numbers, times, events and errors are written in each."""

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, Final, cast

from penstock.errors import InvalidRequest, PenstockError, Refused, Retry
from penstock.model import Event
from penstock.wire.res01.codes import CODES, WRITER_BUSY, code_of
from penstock.wire.res01.events import binary_frames, text_frames
from penstock.wire.res01.fields import BINARY_SCALARS, GUID_BYTES, TEXT_SCALARS, Scalars

TEXT_TAG: Final = b"Res01"
ORIGINAL_TAG: Final = b"RC0.1"
"""The tag of all original clients, text and binary. The length of the RequestId tells the dialect."""
TEXT_ID_BYTES: Final = 36
"""Original text clients write the RequestId as 36 characters of guid, original binary clients as 16 bytes."""
OWN_TAG: Final = b"PEN1"
"""The tag of our own clients: the text dialect, but for errors, which come with class and fields."""
LEGACY_WRITER_BUSY: Final = b"0x1"
CLIENTS_OWN: Final = {"AnswerMalformed", "CannotConnect", "ClientClosed", "ConnectionLost", "DeadlinePassed"}
"""Errors that say what became of a client's own attempt."""

Frames = list[bytes]
Presenter = Callable[[list[Event]], Frames]
"""Turns events into frames; a function of a module, so that workers can be told to call it."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """A way of writing messages. `legacy`: commits are answered with the older results."""

    scalars: Scalars
    present: Presenter
    failed: Callable[[PenstockError], Frames]
    """The answer in place of one that an error prevents."""
    reason: Callable[[PenstockError], bytes]
    """An error in one frame, where an answer has a place for it."""
    legacy: bool = False
    is_binary: bool = False

    def refused(self, code: int, sentence: str) -> Frames:
        """The answer to a message that no class of errors is about."""
        return self.failed(Refused(code, sentence, Retry.NEVER))


# --- errors as the original has them: a code and a sentence ----------------------------------------------------


def refusal_payload(code: int, sentence: str) -> Frames:
    """ER with a code and a sentence."""
    return [b"ER", b"%d" % code, sentence.encode(errors="replace")]


def error_payload(error: PenstockError) -> Frames:
    """ER with the code and the sentence of an error."""
    return refusal_payload(code_of(error), sentence_of(error))


def sentence_of(error: PenstockError) -> str:
    """What happened. Never empty: in some answers an empty reason means success."""
    return str(error) or type(error).__name__


def _sentence(error: PenstockError) -> bytes:
    return sentence_of(error).encode(errors="replace")


def legacy_commit_error(error: PenstockError) -> Frames:
    """CR as it was, of a commit that failed. Its reader makes a guid of CommitId before it looks at Result."""
    code = code_of(error)
    result = LEGACY_WRITER_BUSY if code == WRITER_BUSY else b"%d" % code
    return [b"CR", result, _sentence(error), bytes(GUID_BYTES)]


# --- errors as our own clients get them: class and fields --------------------------------------------------------


def error_frame(error: PenstockError) -> bytes:
    """An error as a JSON object: its class and fields, and what is left of it for whoever does not know the class."""
    told = {
        "class": type(error).__name__,
        "fields": {field.name: getattr(error, field.name) for field in fields(error)},
        "code": code_of(error),
        "retry": error.retry,
        "message": sentence_of(error),
    }
    return json.dumps(told, separators=(",", ":")).encode()


def _own_payload(error: PenstockError) -> Frames:
    return [b"ER", error_frame(error)]


def error_of(frame: bytes) -> PenstockError:
    """The error that a server had. One whose class this client does not know is Refused, with the same message.

    So is one that only a client can have: it would say something about this client's connection, which is not so.
    """
    try:
        told = json.loads(frame)
        kind, given = told["class"], told["fields"]
        if (known := _errors().get(kind)) is not None and known.takes(given):
            return known.make(given)
        retry = Retry.UNKNOWN if kind in CLIENTS_OWN else Retry(told["retry"])
        return Refused(int(told["code"]), str(told["message"]), retry)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest("Error", f"is not an error of this protocol: {error!r}") from None


@dataclass(frozen=True, slots=True)
class _Known:
    """A class of errors, and the types of its fields."""

    kind: type[PenstockError]
    types: dict[str, Any]

    def takes(self, given: object) -> bool:
        """Whether these are its fields: another version may have others."""
        if not isinstance(given, dict) or given.keys() != self.types.keys():
            return False
        return all(isinstance(given[name], _IN_JSON.get(kind, kind)) for name, kind in self.types.items())

    def make(self, given: dict[str, Any]) -> PenstockError:
        """The error."""
        values = {name: Retry(value) if self.types[name] is Retry else value for name, value in given.items()}
        return cast("Callable[..., PenstockError]", self.kind)(**values)


_IN_JSON: Final[dict[Any, Any]] = {Retry: str, float: int | float}
"""What JSON makes of the types of fields, where that is something else."""


@cache
def _errors() -> dict[str, _Known]:
    """The classes of errors by name."""
    told = (kind for kind in CODES if kind.__name__ not in CLIENTS_OWN)
    return {kind.__name__: _Known(kind, {field.name: field.type for field in fields(kind)}) for kind in told}


# --- the dialects ------------------------------------------------------------------------------------------------

TEXT: Final = Dialect(TEXT_SCALARS, text_frames, error_payload, _sentence)
LEGACY: Final = Dialect(TEXT_SCALARS, text_frames, error_payload, _sentence, legacy=True)
BINARY: Final = Dialect(BINARY_SCALARS, binary_frames, error_payload, _sentence, is_binary=True)
OWN: Final = Dialect(TEXT_SCALARS, text_frames, _own_payload, error_frame)
