"""Events as pages show them. Workers call `rows` and `shown`, so that large bodies neither reach the server's own
process nor keep it busy.
"""

import json
from collections.abc import Iterable
from functools import partial
from typing import Any, Final, NamedTuple

from penstock.model import LOG_CONTEXT, Event
from penstock.wire.remits.cbor import check_message

EXCERPT_BYTES: Final = 160
"""How much of a body a list shows."""
JSON_BYTES_MAX: Final = 1 << 20
CBOR_BYTES_MAX: Final = 256 << 10
"""Longer bodies are not decoded: there they are text or bytes, with a link to all of it."""
NODES_MAX: Final = 2000
"""Values of a tree."""
DEPTH_MAX: Final = 60
VALUE_CHARACTERS_MAX: Final = 4096
TREE_CHARACTERS_MAX: Final = 64 << 10
"""Characters of one text in a tree, and of all together: hostile ones take long to escape."""
MESSAGE_CHARACTERS_MAX: Final = 1000
"""Characters of a message in a list."""
TEXT_BYTES_MAX: Final = 64 << 10
HEX_BYTES_MAX: Final = 4096
HEX_WIDTH: Final = 16
FORMS: Final = ("json", "cbor", "text", "hex")


class Row(NamedTuple):
    """An event in a list. `excerpt` is the beginning of its body, if that is text."""

    context: str
    stream: str
    sequence: int
    position: int
    type: str
    ticks: int
    recorded: int
    size: int
    excerpt: str | None


class Node(NamedTuple):
    """A value of a tree. `kind` is object, array, string, number or word; `more` counts what is left out."""

    key: str | None
    kind: str
    text: str
    children: "tuple[Node, ...]"
    more: int


class Shown(NamedTuple):
    """One event. `form` is how its body is shown here: one of FORMS, or empty; `forms` are those that fit it."""

    row: Row
    id: str
    commit: str
    headers_text: str
    headers: Node | None
    """None if there are none, or if they are no JSON."""
    form: str
    forms: tuple[str, ...]
    tree: Node | None
    text: str
    hex: tuple[tuple[str, str, str], ...]
    left_out: int
    """Bytes of the body that are not shown."""
    is_cut: bool
    """Whether the tree leaves out some values."""


def rows(events: list[Event]) -> list[Row]:
    return [row(event) for event in events]


def row(event: Event) -> Row:
    place = (event.context, event.stream, event.sequence, event.position, event.type, event.ticks, event.recorded)
    return Row(*place, len(event.body), _text(event.body[:EXCERPT_BYTES]))


def shown_as(form: str) -> Any:
    """A function for a worker, which makes the page of an event."""
    return partial(shown, form)


def shown(form: str, events: list[Event]) -> list[Shown]:
    return [_shown(event, form) for event in events]


def whole(events: list[Event]) -> list[bytes]:
    """The bodies."""
    return [event.body for event in events]


def _shown(event: Event, wanted: str) -> Shown:
    body = event.body
    found: dict[str, tuple[Node, bool]] = {}
    if (json_tree := _json_tree(body)) is not None:
        found["json"] = json_tree
    is_text = _text(body[:TEXT_BYTES_MAX]) is not None
    may_be_cbor = event.context == LOG_CONTEXT or not is_text
    if may_be_cbor and (cbor_tree := _cbor_tree(body)) is not None:
        found["cbor"] = cbor_tree
    forms = tuple(form for form in FORMS if body and (form in found or form == "hex" or (form == "text" and is_text)))
    usual = next(iter([*(["cbor"] if event.context == LOG_CONTEXT and "cbor" in found else []), *forms]), "")
    form = wanted if wanted in forms else usual
    text = _text(body[:TEXT_BYTES_MAX]) or "" if form == "text" else ""
    lines = tuple(_hex_lines(body[:HEX_BYTES_MAX])) if form == "hex" else ()
    left_out = max(0, len(body) - {"text": TEXT_BYTES_MAX, "hex": HEX_BYTES_MAX}.get(form, len(body)))
    headers = _json_tree((event.headers or "").encode())
    return Shown(
        row(event),
        event.id_text,
        event.commit.hex(),
        event.headers or "",
        None if headers is None or headers[0].kind != "object" else headers[0],
        form,
        forms,
        found[form][0] if form in found else None,
        text,
        lines,
        left_out,
        found[form][1] if form in found else False,
    )


def _text(data: bytes) -> str | None:
    """Text without NUL; None for other bytes. Its last character may be cut off."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        if error.start < len(data) - 3 or error.reason != "unexpected end of data":
            return None
        text = data[: error.start].decode()
    return None if "\0" in text else text


def _hex_lines(data: bytes) -> Iterable[tuple[str, str, str]]:
    for start in range(0, len(data), HEX_WIDTH):
        line = data[start : start + HEX_WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in line)
        yield f"{start:06x}", line.hex(" "), letters


# --- messages of logs -----------------------------------------------------------------------------------------


class Message(NamedTuple):
    """A message of a log, or an item of an iterator: its JSON, of which `more` characters are left out."""

    number: int
    text: str
    more: int
    size: int
    recorded: int | None = None


def messages(events: list[Event]) -> list[Message]:
    """Messages by the versions of their events."""
    return [_message(event.sequence, event.body)._replace(recorded=event.recorded) for event in events]


def items(_store: Any, contents: list[bytes], first: int) -> list[Message]:
    """A job of a worker: items of CBOR, numbered from the first."""
    return [_message(first + at, content) for at, content in enumerate(contents)]


def contents(events: list[Event]) -> list[tuple[int, bytes]]:
    """Messages as functions get them."""
    return [(event.sequence, event.body) for event in events]


def event_messages(events: list[Event]) -> list[tuple[int, bytes]]:
    """Events of a stream as functions get them."""
    # It brings Lua with it.
    from penstock.engine.iterator_jobs import event_message  # noqa: PLC0415

    return [(event.sequence, event_message(event)) for event in events]


def _message(number: int, content: bytes) -> Message:
    from penstock.history.columns import json_of  # noqa: PLC0415 - as above

    if not content or len(content) > CBOR_BYTES_MAX or check_message(content) is not None:
        text = "(nothing)" if not content else "(too long to show, or no CBOR)"
        return Message(number, text, 0, len(content))
    text = json_of(content)
    return Message(number, text[:MESSAGE_CHARACTERS_MAX], max(0, len(text) - MESSAGE_CHARACTERS_MAX), len(content))


# --- trees ----------------------------------------------------------------------------------------------------


class Number(str):
    """The digits of a number, as they are stored."""

    __slots__ = ()


class Members(list[tuple[str, Any]]):
    """An object, whose names may be there twice."""


DECODER: Final = json.JSONDecoder(
    parse_int=Number, parse_float=Number, parse_constant=Number, object_pairs_hook=Members
)


def _json_tree(body: bytes) -> tuple[Node, bool] | None:
    """The tree of a JSON text, and whether it leaves something out; None for other bodies."""
    if not body or len(body) > JSON_BYTES_MAX:
        return None
    try:
        value = DECODER.decode(body.decode())
        json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        return None
    return _tree(value)


def _cbor_tree(body: bytes) -> tuple[Node, bool] | None:
    if not body or len(body) > CBOR_BYTES_MAX or check_message(body) is not None:
        return None
    # It brings Arrow with it, which takes long to import.
    from penstock.history.columns import json_of  # noqa: PLC0415

    return _tree(DECODER.decode(json_of(body)))


def _tree(value: Any) -> tuple[Node, bool]:
    budget = _Budget()
    return budget.node(None, value, 0), budget.is_cut


class _Budget:
    def __init__(self) -> None:
        self._left = NODES_MAX
        self._characters = TREE_CHARACTERS_MAX
        self.is_cut = False

    def node(self, key: str | None, value: Any, depth: int) -> Node:
        self._left -= 1
        self._characters -= len(key or "")
        if isinstance(value, list):
            is_object = isinstance(value, Members)
            items: Iterable[tuple[str, Any]] = value if is_object else ((str(at), one) for at, one in enumerate(value))
            children: list[Node] = []
            for name, item in items:
                if self._left <= 0 or depth >= DEPTH_MAX or len(name) > self._characters:
                    break
                children.append(self.node(name, item, depth + 1))
            more = len(value) - len(children)
            self.is_cut |= more > 0
            return Node(key, "object" if is_object else "array", str(len(value)), tuple(children), more)
        if isinstance(value, Number):
            return self._leaf(key, "number", value)
        if isinstance(value, str):
            return self._leaf(key, "string", value)
        return self._leaf(key, "word", {True: "true", False: "false"}.get(value, "null"))

    def _leaf(self, key: str | None, kind: str, text: str) -> Node:
        shown = text[: max(0, min(VALUE_CHARACTERS_MAX, self._characters))]
        more = len(text) - len(shown)
        self._characters -= len(shown)
        self.is_cut |= more > 0
        return Node(key, kind, str(shown), (), more)
