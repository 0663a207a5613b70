"""Messages: on the server from frames to requests and from replies to answers; in the client the other way round.

Nothing that arrives makes the server's side raise, except `Unanswerable`: every mistake becomes an answer with its code
and a sentence that names the field. Nothing that arrives makes the client's side raise.

In MqFrames, whose frames are short, a message's frames are those that a DEALER would send, with or without the leading
empty frame; the answer does as the message did. A field that is longer than a frame needs the tag `Res01L`, or `PEN1L`
in our own dialect: then all frames after the tag, joined, are one byte string with the number of fields, their lengths
and the fields themselves, split into frames anywhere.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from typing import Final, cast

import msgspec

from penstock.errors import AnswerMalformed, DoesNotFit, InvalidRequest, LimitExceeded, PenstockError, Refused, Retry
from penstock.model import TICKS_MAX, Append, Appended, Event, ProducerMark, Reply, Request
from penstock.model.columns import Columns, columns_of_one, received_one
from penstock.model.times import TICKS_MASK
from penstock.wire.codes import RETRIES, Res01Code
from penstock.wire.mqframe import LAST_HEADS, MORE_HEADS, split_frames
from penstock.wire.res01.commands import BINARY_COMMANDS, CF, OURS, OWN_COMMANDS, TEXT_COMMANDS
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
    EventEncoder,
    Frames,
    error_of,
)
from penstock.wire.res01.fields import (
    GUID_BYTES,
    INT64_MAX,
    LONG_DIGITS,
    TEXT_SCALARS,
    Fields,
    quoted,
    swap_guid,
)
from penstock.wire.res01.schema import Command, Replies


class Envelope(msgspec.Struct, frozen=True):
    """The part that the answer repeats: the routing frames, the protocol's tag and the RequestId."""

    routing: Frames
    tag: bytes
    request_id: bytes

    def around(self, payload: Frames) -> Frames:
        """An answer: the envelope, then its command and details."""
        return [*self.routing, b"", self.tag, self.request_id, *payload]


class Exchange(msgspec.Struct, frozen=True):
    """A decoded message: its requests, and how their replies become answers.

    `answers` gets the replies to all requests, in order: all at once, or with `one_each` one at a time. A message that
    is wrong, or needs no engine, has no requests and is answered at once. Every message has at least one answer.
    """

    envelope: Envelope
    dialect: Dialect
    command: Command | None = None
    requests: tuple[Request, ...] = ()
    settled: Frames | None = None
    """The answer, where no request is needed for it."""

    @property
    def name(self) -> str:
        """The command, or `other` for an unknown one."""
        return "other" if self.command is None else self.command.name

    @property
    def present(self) -> EventEncoder:
        return self.dialect.present if self.command is None or self.command.present is None else self.command.present

    @property
    def one_each(self) -> bool:
        return self.command is not None and self.command.answer.each

    def answers(self, replies: Replies) -> list[Frames]:
        if self.settled is not None or self.command is None:
            return [self.envelope.around(self.settled or [])]
        payloads = self.command.answer.payloads(self.requests, replies, self.dialect)
        return list(map(self.envelope.around, payloads))

    def failed(self, error: PenstockError) -> Frames:
        """The finished message with an error instead of an answer."""
        return self.envelope.around(self.dialect.failed(error))


MARK_FRAMES: Final = 2
ONE_EVENT_FRAMES: Final = {b"AC": 13, b"AF": 13 + MARK_FRAMES, b"AB": 13 + MARK_FRAMES}
"""Frames of an append of one event, with the leading empty one."""
NO_HEAD: Final = (TEXT_TAG, b"", b"")
"""Tag, command and RequestId of a message that has none."""
INTERNAL: Final = b"RR"
"""Response Ready. The original sends it to itself; clients must not."""


class Unanswerable(Exception):
    """A message without an empty frame: where its answer should go is unknown."""


def decode(frames: Frames, *, legacy: bool = False, size: int | None = None) -> Exchange:
    """Decode a message. `legacy`: AC gets the older results. `size`: the bytes of all frames, if known."""
    try:
        border = frames.index(b"")
    except ValueError:
        raise Unanswerable from None
    head = frames[border + 1 : border + 4]
    is_short = len(head) < len(NO_HEAD)
    tag, name, request_id = (*head, *NO_HEAD[len(head) :]) if is_short else head
    envelope = Envelope(frames[:border], tag, request_id)
    if tag == OWN_TAG:
        dialect, known = OWN, OWN_COMMANDS
    elif tag == TEXT_TAG or (tag == ORIGINAL_TAG and len(request_id) == TEXT_ID_BYTES):
        dialect, known = (LEGACY if legacy else TEXT), TEXT_COMMANDS
    elif tag == ORIGINAL_TAG:
        dialect, known = BINARY, BINARY_COMMANDS
    else:
        sentence = f"protocol {quoted(tag)} is not spoken here"
        return Exchange(envelope, TEXT, settled=TEXT.refused(Res01Code.UNSUPPORTED_PROTOCOL, sentence))
    if is_short:
        sentence = "RequestId is missing: the message has too few frames"
        return Exchange(envelope, dialect, settled=dialect.refused(Res01Code.MALFORMED, sentence))
    command = known.get(name)
    if command is None:
        sentence = f"command {quoted(name)} is not known"
        if name == INTERNAL:
            sentence = "command 'RR' is internal; clients must not send it"
        elif name in TEXT_COMMANDS:
            sentence = f"command {quoted(name)} is not part of the binary dialect; use the text dialect for it"
        return Exchange(envelope, dialect, settled=dialect.refused(Res01Code.UNSUPPORTED_COMMAND, sentence))
    if len(frames) == border + ONE_EVENT_FRAMES.get(name, 0) and not dialect.is_binary:
        try:
            append = _one_event(command, frames, border + 4)
        except (UnicodeDecodeError, InvalidRequest):
            append = None
        if append is not None:
            return Exchange(envelope, dialect, command, (append,))
    fields = Fields(frames, border + 4, dialect.scalars)
    try:
        if command.bytes_max is not None:
            size = sum(map(len, frames)) if size is None else size
            if size > command.bytes_max:
                raise LimitExceeded("command_bytes_max", size, command.bytes_max)
        requests = command.read(fields)
        fields.end()
    except PenstockError as error:
        return Exchange(envelope, dialect, command, settled=command.answer.failed(error, dialect))
    if command.settled is not None and (payload := command.settled(requests[0])) is not None:
        return Exchange(envelope, dialect, command, settled=payload)
    return Exchange(envelope, dialect, command, requests)


def _one_event(command: Command, frames: Frames, at: int) -> Append | None:
    """The most common message, an append of one event, in half the time; None leaves it to the general way."""
    mark = None
    if command.code != b"AC":
        producer, mark_number = frames[at : at + MARK_FRAMES]
        at += MARK_FRAMES
        if producer or mark_number:
            if not producer or not mark_number.isdigit() or len(mark_number) >= LONG_DIGITS:
                return None
            mark = ProducerMark(producer.decode(), int(mark_number))
    context, stream, version, count, *event = frames[at:]
    if count != b"1" or (version != b"-1" and not (version.isdigit() and len(version) < LONG_DIGITS)):
        return None
    if command.code == b"AB":
        types, kind, fixed, headers, body = event
        one = received_one(kind, fixed, headers, body) if types == b"1" else None
        return one and Append(context.decode(), stream.decode(), one, int(version), mark)
    number, stamp, kind, headers, body = event
    if len(number) != GUID_BYTES or not stamp.isdigit() or len(stamp) > LONG_DIGITS:
        return None
    value = int(stamp)
    if value & TICKS_MASK > TICKS_MAX or value > INT64_MAX:
        return None
    if not headers.isascii():
        headers.decode()
    columns = columns_of_one(swap_guid(number), value, kind, headers, body)
    return Append(context.decode(), stream.decode(), columns, int(version), mark)


LARGE_TAG: Final = b"Res01L"
OWN_LARGE_TAG: Final = b"PEN1L"
LARGE: Final = {LARGE_TAG: TEXT_TAG, OWN_LARGE_TAG: OWN_TAG}
"""The tags of messages in one byte string, and the tags of the same messages in frames."""
FIELDS_MAX: Final = 250_000
"""Fields of one Res01L message: empty ones cost little to send, but much to decode."""
LONG_FIELD_BYTES: Final = 4096
"""From here on a separate frame costs less than a copy."""
_COUNT: Final = Struct("<I")


class Framed(msgspec.Struct, frozen=True):
    """A message in MqFrames: what it asks for, and how its answers become frames."""

    exchange: Exchange
    frame_bytes_max: int
    bare: bool
    fields: int
    """How many fields it has: each takes memory, even an empty one."""
    large_tag: bytes | None = None

    @property
    def present(self) -> EventEncoder:
        """Turns events into frames; the worker notices what does not fit."""
        present = self.exchange.present
        return present if self.large_tag else partial(fitting, present, self.frame_bytes_max)

    def wrap(self, answer: Frames) -> Frames:
        """An answer of the exchange as frames that fit."""
        if self.large_tag:
            # The fields follow the empty frame and the tag.
            answer = [b"", self.large_tag, *large_frames(answer[2:], self.frame_bytes_max)]
        return answer[1:] if self.bare else answer

    def refusal(self, size: int) -> Frames:
        return self.wrap(self.exchange.failed(DoesNotFit(size, self.frame_bytes_max)))


def decode_framed(frames: Frames, frame_bytes_max: int, size: int | None = None) -> Framed:
    """Decode a message in MqFrames. `size`: the bytes of all frames, if known. Nothing that arrives makes it raise."""
    bare = frames[0] != b""
    if bare:
        frames = [b"", *frames]
    large_tag = frames[1] if len(frames) > 1 else b""
    tag = LARGE.get(large_tag)
    if tag is None:
        return Framed(decode(frames, size=size), frame_bytes_max, bare, len(frames))
    try:
        fields = split_fields(frames[2:])
    except PenstockError as error:
        dialect = OWN if tag == OWN_TAG else TEXT
        exchange = Exchange(Envelope([], tag, b""), dialect, settled=dialect.failed(error))
        return Framed(exchange, frame_bytes_max, bare, 0, large_tag)
    return Framed(decode([b"", tag, *fields]), frame_bytes_max, bare, len(fields), large_tag)


def fitting(present: EventEncoder, frame_bytes_max: int, events: list[Event]) -> Frames:
    """Events as frames, or DoesNotFit: raised in the worker, before the engine delivers anything for good."""
    frames = present(events)
    longest = max(map(len, frames), default=0)
    if longest > frame_bytes_max:
        raise DoesNotFit(longest, frame_bytes_max)
    return frames


def join_fields(fields: Sequence[bytes]) -> bytes:
    return b"".join((_head(list(map(len, fields))), *fields))


def joined_bytes(fields: Sequence[bytes]) -> int:
    """The length of the byte string."""
    return _COUNT.size * (len(fields) + 1) + sum(map(len, fields))


def _head(lengths: Sequence[int]) -> bytes:
    return pack(f"<{len(lengths) + 1}I", len(lengths), *lengths)


def large_frames(fields: Sequence[bytes], frame_bytes_max: int) -> Iterator[bytes]:
    """The same byte string, split into frames that fit. Long fields are not copied: their frames are views."""
    if max(map(len, fields), default=0) < LONG_FIELD_BYTES:
        # A page of events has thousands of short fields: for these the loop below takes twice as long as one join.
        yield from split_frames(join_fields(fields), frame_bytes_max)
        return
    small: list[bytes] = [_head(list(map(len, fields)))]
    for field in fields:
        if len(field) < LONG_FIELD_BYTES:
            small.append(field)
            continue
        yield from split_frames(b"".join(small), frame_bytes_max)
        small.clear()
        yield from split_frames(cast("bytes", memoryview(field)), frame_bytes_max)
    yield from split_frames(b"".join(small), frame_bytes_max)


def split_fields(frames: Sequence[bytes]) -> Frames:
    """The fields of a byte string that is split into frames; the sum of their lengths must be what there is."""
    size, ends = sum(map(len, frames)), list(accumulate(map(len, frames)))

    def beginning(length: int) -> tuple[bytes, int]:
        """Frames with at least so many bytes, joined, and how many frames these are."""
        used = bisect_left(ends, length) + 1
        return b"".join(frames[:used]), used

    count = _COUNT.unpack_from(beginning(_COUNT.size)[0])[0] if size >= _COUNT.size else 0
    start = _COUNT.size * (count + 1)
    if start > size:
        raise InvalidRequest("Res01L", "is too short for the lengths of its fields")
    if count > FIELDS_MAX:
        raise LimitExceeded("message_fields_max", count, FIELDS_MAX)
    # Joining everything to cut it again would copy long fields twice; for short fields or frames it is quicker.
    are_long = size >= LONG_FIELD_BYTES * (count + len(frames))
    content, used = beginning(start if are_long else size)
    lengths = unpack_from(f"<{count}I", content, _COUNT.size)
    if start + sum(lengths) != size:
        reason = f"has {size - start} bytes of fields where its lengths say {sum(lengths)}"
        raise InvalidRequest("Res01L", reason)
    if are_long:
        return _gathered([content[start:], *frames[used:]], lengths)
    cuts = list(accumulate(lengths, initial=start))
    return [content[begin:end] for begin, end in pairwise(cuts)]


def _gathered(pieces: Sequence[bytes], lengths: Sequence[int]) -> Frames:
    """Fields of these lengths from pieces that end anywhere: each byte is copied once."""
    fields, left, piece = [], iter(pieces), memoryview(b"")
    for length in lengths:
        parts = []
        while length:
            piece = piece or memoryview(next(left))
            parts.append(piece[:length])
            piece = piece[length:]
            length -= len(parts[-1])  # noqa: PLW2901
        fields.append(b"".join(parts))
    return fields


ERROR: Final = b"ER"
APPENDED_FRAMES: Final = 1 + len(CF.layout.fields)
_APPEND_HEAD: Final = b"".join(MORE_HEADS[len(frame)] + frame for frame in (OWN_TAG, b"AB"))
"""The first frames of an append in our own dialect."""
_ONE_EVENT: Final = 2 * (MORE_HEADS[1] + b"1")
"""One event, one type."""


def fields_of(request: Request) -> Frames:
    """The command and the payload of a request. Raises InvalidRequest for what this wire cannot carry."""
    command = OURS.get(type(request))
    if command is None:
        raise InvalidRequest(type(request).__name__, "cannot be sent over Res01")
    try:
        return [command.code, *command.write(request)]
    except UnicodeEncodeError as error:
        raise InvalidRequest("text", f"is not valid Unicode: {error.object[:40]!r}") from None


def append_message(request: Request, number: bytes) -> bytes | None:
    """The most common message, an append of one event in MqFrames, in a third of the time.

    None leaves it to the general way, which also knows what is wrong with it.
    """
    if type(request) is not Append or type(request.events) is not Columns or request.events.length != 1:
        return None
    _, (kind,), fixed, headers, body, _, _ = request.events
    mark, more = request.mark, MORE_HEADS
    try:
        producer, mark_number = (b"", b"") if mark is None else (mark.producer.encode(), b"%d" % mark.number)
        context, stream, expected = request.context.encode(), request.stream.encode(), b"%d" % request.expected
        pieces = [_APPEND_HEAD, more[len(number)], number]
        pieces += (more[len(producer)], producer, more[len(mark_number)], mark_number)
        pieces += (more[len(context)], context, more[len(stream)], stream, more[len(expected)], expected)
        pieces += (_ONE_EVENT, more[len(kind)], kind, more[len(fixed)], fixed, more[len(headers)], headers)
        pieces += (LAST_HEADS[len(body)], body)
    except (AttributeError, IndexError, TypeError, ValueError):
        return None
    return b"".join(pieces)


def _appended(answer: Frames) -> Appended | None:
    """The most common answer, in a third of the time; None leaves it to the general way."""
    code, commit, position, sequence, count, repeated = answer
    is_plain = position.isdigit() and sequence.isdigit() and count.isdigit() and repeated in (b"0", b"1")
    if not is_plain or code != CF.code or len(commit) != GUID_BYTES:
        return None
    if len(position) >= LONG_DIGITS or len(sequence) >= LONG_DIGITS or len(count) >= LONG_DIGITS:
        return None
    return Appended(swap_guid(commit), int(position), int(sequence), int(count), repeated == b"1")


def reply_of(request: Request, answer: Frames) -> Reply | PenstockError:
    """The reply in the frames after an answer's tag and RequestId. Nothing that arrives makes this raise.

    An ER is the error in it; an answer that violates the protocol is AnswerMalformed.
    """
    if len(answer) == APPENDED_FRAMES and type(request) is Append and (appended := _appended(answer)) is not None:
        return appended
    fields, command = Fields(answer, 0, TEXT_SCALARS), OURS[type(request)]
    try:
        code = fields.frame("Command")
        if code == command.answer.code:
            reply = command.answer.read(fields)
        elif code != ERROR:
            raise InvalidRequest("Command", f"is {quoted(code)} in answer to {quoted(command.code)}")
        else:
            error = fields.frame("Error")
            if not fields.left:
                return error_of(error)
            # A server that does not know our dialect answers in the original's way: a code and a sentence.
            number, sentence = TEXT_SCALARS.read_number(error, "Code"), fields.frame("Message").decode(errors="replace")
            reply = Refused(number, sentence, RETRIES.get(number, Retry.UNKNOWN))
        fields.end()
    except InvalidRequest as malformed:
        return AnswerMalformed(str(malformed))
    return reply
