"""A plain client for Remits over TCP, written from the protocol's description alone.

The tests of the gate talk through it: one blocking socket, frames built and taken apart here, cbor2 for the CBOR. It
shares nothing with the server's codec, and forgives nothing: a byte too many in an answer fails the test.
"""

import contextlib
import itertools
import socket
import struct
import threading
from collections.abc import Iterator, Mapping
from io import BytesIO
from types import TracebackType
from typing import Any, Final, NamedTuple, Self

import cbor2

from tests.gates.serving import PAUSE_S

PATIENCE_S: Final = 30.0
"""How long an answer may take. Nothing is expected to take this long."""

REQUEST, INFO, DATA, ERROR = range(4)
"""The kinds of frames."""

(
    LOG_SHOW,
    LOG_ADD,
    LOG_DELETE,
    LOG_LIST,
    MESSAGE_ADD,
    ITERATOR_ADD,
    ITERATOR_LIST,
    ITERATOR_NEXT,
    ITERATOR_DELETE,
) = range(9)
"""The codes of requests."""
TOKEN: Final = 32

NAMES: Final = {
    0: "LogDoesNotExist",
    1: "ItrExistsWithSameName",
    2: "ItrDoesNotExist",
    3: "MsgNotValidCbor",
    4: "ErrRunningLua",
    5: "ErrReadingLuaResponse",
    7: "UnknownRequestCode",
    8: "UnknownFrameKind",
    9: "FailedToReadBytes",
    10: "ServerOnlyAcceptsRequests",
    11: "CouldNotReadPayload",
    18: "MsgFieldNotOfTypeBinary",
    32: "LimitExceeded",
    33: "ServerBusy",
    34: "IteratorTimeout",
    35: "NotAllowed",
    255: "InternalError",
}
"""The errors that are ever sent."""
WITH_DETAIL: Final = (4, 5, 34)
"""Those that say more than their name."""

_numbers = itertools.count(1)


def fresh(prefix: str = "log") -> str:
    """A name that no other test uses."""
    return f"{prefix}-{next(_numbers):04}"


class Failure(Exception):
    """The server answered an error."""

    def __init__(self, code: int, detail: str) -> None:
        super().__init__(f"error {code} {NAMES.get(code)}: {detail}")
        self.code = code
        self.detail = detail


class Answer(NamedTuple):
    """One frame of the server."""

    kind: int
    code: int
    payload: bytes

    def check(self) -> Self:
        """Raise what an error frame says."""
        if self.kind == ERROR:
            raise self.failure()
        assert self.code == 0
        return self

    def failure(self) -> Failure:
        """What this error frame says, which must be as the protocol has it."""
        assert self.kind == ERROR, f"no error: {self}"
        text = decoded(self.payload)
        assert isinstance(text, str)
        name, _, detail = text.partition(": ")
        assert name == NAMES[self.code]
        assert bool(detail) == (self.code in WITH_DETAIL), text
        return Failure(self.code, detail)

    def ok(self) -> None:
        """This must be Info `ok`."""
        assert (self.check().kind, decoded(self.payload)) == (INFO, "ok")

    def items(self) -> list[bytes]:
        """The items of Data, each as CBOR."""
        assert self.check().kind == DATA
        items, at = [], 0
        while at < len(self.payload):
            (length,) = struct.unpack_from(">I", self.payload, at)
            items.append(self.payload[at + 4 : at + 4 + length])
            at += 4 + length
        assert at == len(self.payload), "the last item is cut short"
        return items

    def values(self) -> list[Any]:
        """The items of Data as they are meant."""
        return [decoded(item) for item in self.items()]


def frame(code: int, payload: bytes = b"", kind: int = REQUEST) -> bytes:
    """A frame as bytes."""
    return struct.pack(">IBB", 2 + len(payload), kind, code) + payload


def request(code: int, **fields: Any) -> bytes:
    """A request as bytes, with a map of these fields."""
    return frame(code, cbor2.dumps(fields))


def decoded(item: bytes) -> Any:
    """The one value of this CBOR, with nothing behind it."""
    assert len(item) == len(whole(item)), f"more than one item: {item[:100]!r}"
    return cbor2.loads(item)


def whole(item: bytes) -> bytes:
    """The bytes of the first item of these."""
    stream = BytesIO(item)
    cbor2.CBORDecoder(stream).decode()
    return item[: stream.tell()]


class Remits:
    """One connection. `send` and `receive` for those who pipeline, the operations by their names for everyone else."""

    def __init__(self, address: str, *, patience_s: float = PATIENCE_S, receive_bytes: int | None = None) -> None:
        host, _, port = address.rpartition(":")
        self.socket = socket.socket()
        if receive_bytes is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        self.socket.settimeout(patience_s)
        try:
            self.socket.connect((host, int(port)))
        except OSError:
            self.socket.close()
            raise
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.address = "{}:{}".format(*self.socket.getsockname())
        """Ours, as the server sees it."""
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    # -- frames

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.socket.sendall(data)

    def receive(self) -> Answer:
        """The next answer; ConnectionError if there is none."""
        (length,) = struct.unpack(">I", self._exactly(4))
        assert length >= 2
        body = self._exactly(length)
        return Answer(body[0], body[1], body[2:])

    def _exactly(self, count: int) -> bytes:
        data = self._file.read(count)
        if len(data) < count:
            raise ConnectionError(f"closed after {len(data)} of {count} bytes")
        return data

    def is_closed(self) -> bool:
        """Whether the server closes the connection, without another byte."""
        try:
            return self._file.read(1) == b""
        except ConnectionError:
            return True

    def ask_frame(self, data: bytes) -> Answer:
        """Send one frame and wait for its answer."""
        self.send(data)
        return self.receive()

    def ask(self, code: int, fields: Mapping[Any, Any] | None = None) -> Answer:
        """Send a request and wait for its answer; without fields its payload is empty."""
        return self.ask_frame(frame(code, b"" if fields is None else cbor2.dumps(fields)))

    # -- logs

    def log_show(self, log: str) -> dict[str, Any]:
        """What is known of a log."""
        (shown,) = self.ask(LOG_SHOW, {"log_name": log}).values()
        assert isinstance(shown, dict)
        return shown

    def log_add(self, log: str) -> str:
        """Make a log; its name."""
        self.ask(LOG_ADD, {"log_name": log}).ok()
        return log

    def log_delete(self, log: str) -> None:
        """Delete a log."""
        self.ask(LOG_DELETE, {"log_name": log}).ok()

    def log_list(self) -> list[str]:
        """The names of all logs."""
        (names,) = self.ask(LOG_LIST).values()
        assert isinstance(names, list)
        return names

    def add(self, log: str, *values: Any) -> None:
        """Add messages, given as values."""
        self.add_encoded(log, *map(cbor2.dumps, values))

    def add_encoded(self, log: str, *messages: bytes) -> None:
        """Add messages, given as CBOR."""
        self.ask(MESSAGE_ADD, {"log_name": log, "messages": list(messages)}).ok()

    # -- iterators

    def iterator_add(self, log: str, kind: str, function: str, *, indexed: bool = False, name: str = "") -> str:
        """Make an iterator; its name, a new one if none is given."""
        name = name or fresh(kind)
        fields = {"log_name": log, "iterator_name": name, "iterator_type": kind, "iterator_func": function}
        self.ask(ITERATOR_ADD, {**fields, "indexed": indexed}).ok()
        return name

    def iterator_list(self, log: str | None = None) -> list[str]:
        """The names of the iterators of a log, or of all."""
        return self.ask(ITERATOR_LIST, {"log_name": log}).values()

    def next_items(self, iterator: str, ordinal: int, count: int) -> list[bytes]:
        """A page of an iterator, each item as CBOR."""
        return self.ask(ITERATOR_NEXT, {"iterator_name": iterator, "message_id": ordinal, "count": count}).items()

    def next(self, iterator: str, ordinal: int = 0, count: int = 1000) -> list[Any]:
        """A page of an iterator."""
        return [decoded(item) for item in self.next_items(iterator, ordinal, count)]

    def last(self, iterator: str) -> Any:
        """The last item of an iterator."""
        (item,) = self.next(iterator, -1, 1)
        return item

    def all_items(self, iterator: str, count: int = 100_000) -> list[bytes]:
        """Everything of an iterator, page by page until an empty one, each item as CBOR."""
        items: list[bytes] = []
        while page := self.next_items(iterator, len(items), count):
            items += page
        return items

    def all(self, iterator: str, count: int = 100_000) -> list[Any]:
        """Everything of an iterator."""
        return [decoded(item) for item in self.all_items(iterator, count)]

    def iterator_delete(self, log: str, iterator: str) -> None:
        """Delete an iterator."""
        self.ask(ITERATOR_DELETE, {"log_name": log, "iterator_name": iterator}).ok()


@contextlib.contextmanager
def neighbours_are_served(address: str) -> Iterator[None]:
    """Let another client add and read all the while: each of its requests must be answered, and rightly."""
    done = threading.Event()
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with Remits(address) as another:
                log = another.log_add(fresh("others"))
                total = another.iterator_add(log, "reduce", "return (acc or 0) + msg", indexed=True)
                plain = another.iterator_add(log, "map", "return msg * 2")
                for number in itertools.count(1):
                    another.add(log, number)
                    if number % 10 == 1:
                        assert another.last(total) == number * (number + 1) // 2
                        assert another.last(plain) == number * 2
                    if done.wait(PAUSE_S):
                        break
                assert another.log_show(log)["message_count"] == number
        except BaseException as error:  # noqa: BLE001 - told in the main thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert not failures, failures
