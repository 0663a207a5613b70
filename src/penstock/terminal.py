"""Texts that people read: on a terminal, in a prompt, in a log.

Names, types, bodies, reasons and paths come from strangers. A character of theirs that a terminal obeys, that cannot be
seen, or that turns the direction of writing could forge what is read, so it is shown escaped. This is the one place
that knows which characters these are; what the command line prints, and every line of a log, passes through here.
"""

import json
import logging
import re
import sys
import time
import traceback
from types import TracebackType
from typing import Final

_HIDDEN: Final = re.compile(
    "["
    "\0-\x1f\x7f-\x9f"  # control characters
    "\u2028\u2029"  # separators of lines and paragraphs
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # the direction of writing
    "\xad\u034f\u115f\u1160\u17b4\u17b5\u180e\u200b-\u200d\u2060-\u2065\u206a-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb"
    "\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e00ff\U000e01f0-\U000e0fff"  # nothing to see
    "\ud800-\udfff"  # halves of characters, which no terminal can be sent
    "]"
)
_BLANK: Final = "\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0"
"""Those of them that Python takes for printable."""
_BARE: Final = re.compile(r"[\w.:/@*~\[\]-]+")
_JOINERS: Final = "\u200c\u200d"
_JOINED: Final = "\u0590"
"""From here on there are scripts, and emoji, whose characters join; a joiner between others only hides."""


def escape(text: str) -> str:
    r"""A text in one line: what could mislead is escaped, as in `\x1b` or `\n`."""
    if _is_plain(text):
        return text
    return _HIDDEN.sub(lambda found: _escaped(found, is_json=False), text)


def escape_document(text: str) -> str:
    r"""Lines of JSON or CSV; characters that could mislead are escaped as JSON does it: `\u001b`."""
    if _is_plain(text.replace("\n", "")):
        return text
    return _HIDDEN.sub(lambda found: found[0] if _ends_line(found) else _escaped(found, is_json=True), text)


def one_line(text: str) -> str:
    """A text of several lines in one, escaped."""
    return escape(" | ".join(line.strip() for line in text.splitlines()))


def print_error(message: str) -> None:
    """Print a message of the program in one line on standard error."""
    sys.stderr.write(f"penstock: {one_line(message)}\n")


TIME: Final = "%Y-%m-%dT%H:%M:%S"


class LogLines(logging.Formatter):
    """Records of a log: each, its traceback too, is one line fit to be shown, and times are in UTC.

    The `fields` of a record, and the id of its request, stand at the end: `(gate=mq request=5f1c-2a)`.
    """

    def format(self, record: logging.LogRecord) -> str:
        line = one_line(super().format(record))
        fields = " ".join(f"{name}={_field(value)}" for name, value in fields_of(record).items())
        return f"{line} ({fields})" if fields else line

    def converter(self, seconds: float | None) -> time.struct_time:
        return time.gmtime(seconds)


class JsonLines(logging.Formatter):
    """The same as objects of JSON. Their texts are escaped as well: what reads them may show them on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime(TIME, time.gmtime(record.created))
        document: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": one_line(record.getMessage()),
        }
        document |= {
            name: escape(value) if isinstance(value, str) else value for name, value in fields_of(record).items()
        }
        if record.exc_info and (text := self.formatException(record.exc_info)):
            document["error"] = [escape(line) for line in text.splitlines()]
        # In fields that are lists or objects, too.
        return escape_document(json.dumps(document, ensure_ascii=False, default=repr))


def fields_of(record: logging.LogRecord) -> dict[str, object]:
    """Facts of a record in addition to its message, by name."""
    fields: dict[str, object] = dict(getattr(record, "fields", None) or {})
    request = getattr(record, "request", None)
    return fields if request is None else {"request": request, **fields}


def _field(value: object) -> str:
    """A value in a line of text: in quotes if it has anything but letters, digits and some marks."""
    text = escape(str(value))
    return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)


def escape_python() -> None:
    """Escape what Python itself writes to standard error: warnings without a log, and tracebacks."""
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(LogLines())
    sys.excepthook = _print_traceback


def _print_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    text = "".join(traceback.format_exception(kind, error, trace))
    sys.stderr.write("".join(f"{escape(line)}\n" for line in text.splitlines()))


def _is_plain(text: str) -> bool:
    """Whether no character needs an escape, as nearly always: many times faster than a search."""
    return text.isprintable() and (text.isascii() or not any(letter in text for letter in _BLANK))


def _ends_line(found: re.Match[str]) -> bool:
    return found[0] == "\n" or (found[0] == "\r" and found.string[found.end() : found.end() + 1] == "\n")


def _escaped(found: re.Match[str], *, is_json: bool) -> str:
    letter = found[0]
    if letter in _JOINERS and _joins(found.string, found.start()):
        return letter
    if not is_json:
        return letter.encode("unicode_escape").decode()
    units = letter.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))


def _joins(text: str, at: int) -> bool:
    """Whether a joiner stands between two characters that join."""
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    return all(each >= _JOINED and not _HIDDEN.match(each) for each in (before, after))
