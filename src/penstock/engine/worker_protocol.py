"""Messages between the server and its own worker processes, never on a network.

A message is its length, a table of lengths, a pickle, and buffers that the pickle refers to: stored records, which the
server sends on as they are. The receiver has views of the buffers and copies none of them.

The server must not unpickle what a process that runs Lua sends: an attacker who breaks out of Lua controls it. Its
answers are JSON followed by the contents of all byte strings. In the JSON a byte string is its length; a record or an
error is a list of its class name and its fields. The reader passes the type that it expects, such as the return type of
the job; an answer of any other shape is Unreadable.
"""

import json
import os
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import StrEnum
from functools import cache
from io import BytesIO
from itertools import accumulate, pairwise
from struct import Struct, pack, unpack_from
from types import NoneType, UnionType
from typing import Any, Final, NamedTuple, NoReturn, Union, get_args, get_origin, get_type_hints

from penstock.errors import PenstockError

BYTES_MAX: Final = (1 << 32) - 1
_LENGTH: Final = Struct("<I")


class Opening(NamedTuple):
    """A worker's first message: its store, and whether it will run Lua.

    One that does gives up its rights, answers what the system does not let it give up, and answers in a form that
    cannot run anything in the server (`penstock.engine.worker_protocol`).
    """

    url: str
    runs_lua: bool


class Unreadable(Exception):
    """A message that none of our processes would send."""


def frame(value: Any) -> list[bytes | memoryview]:
    """A message in pieces: its head and pickle, then one for each `pickle.PickleBuffer` in the value."""
    buffers: list[memoryview] = []
    pickled = pickle.dumps(value, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda found: buffers.append(found.raw()))
    lengths = [len(pickled), *map(len, buffers)]
    table = pack(f"<{len(lengths) + 1}I", len(lengths), *lengths)
    return [_LENGTH.pack(len(table) + sum(lengths)) + table + pickled, *buffers]


def load(message: memoryview) -> Any:
    """The value of a message from one of our own processes."""
    (count,) = _LENGTH.unpack_from(message)
    ends = accumulate(unpack_from(f"<{count}I", message, _LENGTH.size), initial=_LENGTH.size * (count + 1))
    pickled, *buffers = (message[start:end] for start, end in pairwise(ends))
    return pickle.loads(pickled, buffers=buffers)  # noqa: S301


def framed(payload: bytes) -> bytes:
    """A message from its encoded bytes."""
    return _LENGTH.pack(len(payload)) + payload


SPARES_MAX: Final = 4
"""Buffers that are kept to be used again: a connection has so many pages in flight."""
SPARE_BYTES: Final = range(64 << 10, 10 << 20)
"""The size of a buffer that is kept: up to a page by default, and a record."""


class Spares:
    """Buffers of large messages, for the next ones: new memory from the system costs as much as a copy.

    A buffer is used again when no view of it is left. It belongs to one thread.
    """

    def __init__(self) -> None:
        self._buffers: list[bytearray] = []

    def space(self, size: int) -> memoryview:
        if size not in SPARE_BYTES:
            return memoryview(bytearray(size))
        for buffer in self._buffers:
            # A short message must not hold a long buffer.
            if size <= len(buffer) <= 2 * size:
                # A buffer that has a view refuses to change its length.
                with suppress(BufferError):
                    buffer.append(buffer.pop())
                    return memoryview(buffer)[:size]
        # The next page is often a little longer.
        made = bytearray(size + size // 8)
        self._buffers = [*self._buffers, made][-SPARES_MAX:]
        return memoryview(made)[:size]


class Unframer:
    """Receives bytes into the message's own buffer: pages are megabytes, so nothing is copied twice.

    Receive into `space`, then call `received` with the number of bytes.
    """

    def __init__(
        self,
        load: Callable[[memoryview], Any] = load,
        bytes_max: int = BYTES_MAX,
        spares: Spares | None = None,
    ) -> None:
        self._load = load
        self._bytes_max = bytes_max
        self._spares = spares or Spares()
        self._expect(_LENGTH.size, is_length=True)

    def _expect(self, size: int, *, is_length: bool) -> None:
        self.space = self._spares.space(size)
        self._whole = self.space
        self._is_length = is_length

    def received(self, count: int) -> Sequence[Any]:
        """The message that the last `count` bytes complete, if they do; Unreadable if it is too long."""
        # A generator would keep the bytes in memory while the caller handles the message.
        self.space = self.space[count:]
        if self.space:
            return ()
        whole = self._whole
        if self._is_length:
            (size,) = _LENGTH.unpack(whole)
            if not 0 < size <= self._bytes_max:
                raise Unreadable(f"it has {size} bytes")
            self._expect(size, is_length=False)
            return ()
        self._expect(_LENGTH.size, is_length=True)
        return [self._load(whole)]


HEAD_BYTES_MAX: Final = 4 << 20
"""The JSON of an answer. Read, it takes up to 30 times as much memory."""
ERROR_CHARACTERS_MAX: Final = 100
_NUMBERS: Final = range(-(1 << 63), 1 << 63)


class JobAnswer(NamedTuple):
    """Whether a job succeeded, its result or its error, and whether its process stays for another job."""

    succeeded: bool
    result: Any
    stays: bool


def frame_answer(answer: JobAnswer) -> bytes:
    """An answer as bytes. Raises TypeError for a value that an answer cannot have, ValueError if it is too long."""
    parts: list[bytes] = []
    head = json.dumps([answer.succeeded, _packed(answer.result, parts), answer.stays]).encode()
    if len(head) > HEAD_BYTES_MAX:
        raise ValueError(f"the answer's head is longer than {HEAD_BYTES_MAX} bytes")
    return framed(b"".join((_LENGTH.pack(len(head)), head, *parts)))


def _packed(value: Any, parts: list[bytes]) -> Any:
    if isinstance(value, bytes):
        parts.append(value)
        return len(value)
    if value is None or isinstance(value, int | float | str):
        return value
    if is_dataclass(value):
        name, *inside = type(value).__name__, *(getattr(value, field.name) for field in fields(value))
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        name, *inside = type(value).__name__, *value
    elif isinstance(value, list | tuple):
        if set(map(type, value)) != {bytes}:
            return [_packed(item, parts) for item in value]
        # Thousands of items are the rule.
        parts += value
        return list(map(len, value))
    else:
        raise TypeError(f"{type(value).__name__} has no place in an answer")
    return [name, *(_packed(item, parts) for item in inside)]


def load_answer(data: memoryview, expected: Any) -> JobAnswer:
    """The answer in a frame; Unreadable unless its result is of the expected type, or it is an error."""
    try:
        return _loaded(data, expected)
    except (ValueError, TypeError, RecursionError) as error:
        raise Unreadable(f"{type(error).__name__}: {str(error)[:ERROR_CHARACTERS_MAX]}") from error


def _loaded(data: memoryview, expected: Any) -> JobAnswer:
    (size,) = _LENGTH.unpack(data[: _LENGTH.size].tobytes().ljust(_LENGTH.size, b"\xff"))
    end = _LENGTH.size + size
    if size > HEAD_BYTES_MAX or end > len(data):
        raise Unreadable("its head is too long")
    succeeded, packed, stays = _of_type(json.loads(data[_LENGTH.size : end].tobytes()), list)
    contents = _Contents(data[end:])
    result = _reader(expected if _of_type(succeeded, bool) else PenstockError)(packed, contents)
    if contents.rest:
        raise Unreadable(f"{contents.rest} bytes are left over")
    return JobAnswer(succeeded, result, _of_type(stays, bool))


@cache
def returned_by(function: Callable[..., Any]) -> Any:
    """The return type of a job or of an encoder."""
    return get_type_hints(function)["return"]


class _Contents:
    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    @property
    def rest(self) -> int:
        return len(self._data) - self._at

    def take(self, sizes: Sequence[Any]) -> list[bytes]:
        if set(map(type, sizes)) - {int} or min(sizes, default=0) < 0:
            raise Unreadable("a length is no length")
        start, self._at = self._at, self._at + sum(sizes)
        if self._at > len(self._data):
            raise Unreadable("bytes are missing")
        data = self._data[start : self._at].tobytes()
        # Thousands of slices would take five times as long.
        return [data] if len(sizes) == 1 else list(map(BytesIO(data).read, sizes))


_Reader = Callable[[Any, _Contents], Any]


@cache
def _reader(kind: Any) -> _Reader:
    """The function that reads a value of a type from its JSON and the next bytes."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    rest = tuple(one for one in kinds if one is not NoneType)
    read = _scalar(rest[0]) if len(rest) == 1 else None
    if read is None and rest:
        read = _record(rest)
    if len(rest) == len(kinds):
        assert read is not None
        return read

    def optional(value: Any, contents: _Contents) -> Any:
        if value is None:
            return None
        if read is None:
            raise Unreadable("there is something where nothing was expected")
        return read(value, contents)

    return optional


def _scalar(kind: Any) -> _Reader | None:
    """The reader of a type that is not a record."""
    origin = get_origin(kind)
    if kind is bytes:
        return lambda value, contents: contents.take([value])[0]
    if kind is Any:
        return _encoded
    if kind is bool:
        return lambda value, _: _of_type(value, bool)
    if kind is int:
        return _number
    if kind is float:
        return lambda value, contents: value if type(value) is float else float(_number(value, contents))
    if kind is str:
        return _text
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return lambda value, _: kind(value)
    if origin is list or origin is tuple:
        return _several(origin, get_args(kind)[0])
    return None


def _encoded(value: Any, contents: _Contents) -> bytes | list[bytes]:
    """`Encoded.content`: one payload, or frames. The caller checks which of them it asked for."""
    return contents.take(value) if type(value) is list else contents.take([value])[0]


def _number(value: Any, _contents: _Contents) -> int:
    if type(value) is not int or value not in _NUMBERS:
        raise Unreadable("a number is none")
    return value


def _text(value: Any, _contents: _Contents) -> str:
    # Half a surrogate pair can be in JSON, and in no reply.
    return str(_of_type(value, str)).encode(errors="replace").decode()


def _several(make: type, inside: Any) -> _Reader:
    read = _reader(inside)
    if inside is bytes:
        return lambda value, contents: make(contents.take(_of_type(value, list)))
    return lambda value, contents: make([read(item, contents) for item in _of_type(value, list)])


def _record(kinds: tuple[type, ...]) -> _Reader:
    """The reader of one of some classes, and of all errors below them."""
    known = {one.__name__: one for kind in kinds for one in _with_errors_below(kind)}
    readers = {name: _field_readers(one) for name, one in known.items()}

    def read(value: Any, contents: _Contents) -> Any:
        name, *inside = _of_type(value, list) or [None]
        if type(name) is not str or name not in known:
            raise Unreadable("a record is of no class that was expected")
        # Evaluated from left to right, as it was packed.
        return known[name](*(one(item, contents) for one, item in zip(readers[name], inside, strict=True)))

    return read


def _with_errors_below(kind: type) -> list[type]:
    below = kind.__subclasses__() if issubclass(kind, PenstockError) else []
    ours = (one for one in below if one.__module__ == PenstockError.__module__)
    return [kind, *(one for sub in ours for one in _with_errors_below(sub))]


def _field_readers(kind: Any) -> list[_Reader]:
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else kind._fields
    hints = get_type_hints(kind)
    return [_reader(hints[name]) for name in names]


def _of_type(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise Unreadable(f"there is a {type(value).__name__} instead of a {kind.__name__}")
    return value


EXIT_CODE: Final = 3

_connection: list[Callable[[bytes], object]] = []


def connected(send: Callable[[bytes], object]) -> None:
    _connection[:] = [send]


def answer_and_leave(result: Any) -> NoReturn:
    """Answer the current job and end the process, while Lua hangs inside a C function of another thread."""
    try:
        for send in _connection:
            send(frame_answer(JobAnswer(succeeded=True, result=result, stays=False)))
    finally:
        os._exit(EXIT_CODE)
