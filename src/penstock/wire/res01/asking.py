"""The client's side of Res01: requests to messages, answers to replies, in the dialect of our own."""

from typing import Final

from penstock.errors import AnswerMalformed, InvalidRequest, PenstockError, Refused, Retry
from penstock.model import Reply, Request
from penstock.wire.res01.codes import RETRIES
from penstock.wire.res01.commands import OURS
from penstock.wire.res01.dialects import OWN_TAG, Frames, error_of
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.scalars import TEXT_SCALARS, shown

ERROR: Final = b"ER"


def fields_of(request: Request) -> Frames:
    """The Command and the payload of a request. What this wire cannot carry is InvalidRequest."""
    command = OURS.get(type(request))
    if command is None:
        raise InvalidRequest(type(request).__name__, "cannot be asked over Res01")
    try:
        return [command.code, *command.write(request)]
    except UnicodeEncodeError as error:
        raise InvalidRequest("text", f"is not valid Unicode: {error.object[:40]!r}") from None


def message_of(request: Request, request_id: bytes) -> Frames:
    """A request as a message, but for routing frames and the empty frame behind them."""
    command, *payload = fields_of(request)
    return [OWN_TAG, command, request_id, *payload]


def reply_of(request: Request, answer: Frames) -> Reply | PenstockError:
    """What the frames behind an answer's tag and RequestId say. Nothing that arrives makes this raise.

    An ER is the error it tells of; an answer that is not what the protocol says is AnswerMalformed.
    """
    try:
        return _read(request, Fields(answer, 0, TEXT_SCALARS))
    except InvalidRequest as error:
        return AnswerMalformed(str(error))


def _read(request: Request, fields: Fields) -> Reply | PenstockError:
    command, code = OURS[type(request)], fields.frame("Command")
    if code == command.answer.code:
        reply = command.answer.read(fields)
    elif code == ERROR:
        reply = _error(fields)
    else:
        raise InvalidRequest("Command", f"is {shown(code)} in answer to {shown(command.code)}")
    fields.end()
    return reply


def _error(fields: Fields) -> PenstockError:
    error = fields.frame("Error")
    if not fields.left:
        return error_of(error)
    # A server that does not know our dialect says so in the original's way: a code and a sentence.
    code, sentence = TEXT_SCALARS.read_number(error, "Code"), fields.frame("Message").decode(errors="replace")
    return Refused(code, sentence, RETRIES.get(code, Retry.UNKNOWN))
