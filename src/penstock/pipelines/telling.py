"""What Spark says, in a line: which flow, and why.

Spark tells of a failure with its query's plan and a stack of calls. The line that says what happened is in it: the
message of an error of Penstock's, which names position and store, else the last message with a name in brackets.
"""

import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import PenstockError

LINE_CHARS_MAX: Final = 500
"""How long what Spark says may be; it lists columns and plans."""
_OURS: Final = re.compile(r"penstock\.errors\.\w+: (.+)")
_RAISED: Final = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception)): (.+)", re.MULTILINE)
_NAMED: Final = re.compile(r"\[([A-Z][A-Z0-9_.]{5,})\] *((?:(?!\[[A-Z][A-Z0-9_.]{5,}\]).)+)")
_STATE: Final = re.compile(r"\s*SQLSTATE: \w+;?")
_QUERY: Final = re.compile(r"\[STREAM_FAILED\] Query \[[^\]]*\] terminated with exception:\s*")
_WRAPPERS: Final = ("STREAM_FAILED", "PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR", "PYTHON_DATA_SOURCE_ERROR")
_FLOW: Final = re.compile(r"^Flow '?(?P<flow>[^'\s]+)'? (?:is |has )?(?P<state>[A-Z]{4,})\b(?P<rest>.*)", re.DOTALL)
_UNRESOLVED: Final = re.compile(r"^Failed to resolve flow: '(?P<flow>[^']+)'\.\s*(?P<rest>.*)", re.DOTALL)


class Failure(NamedTuple):
    """What went wrong, and in which flow if that is known."""

    flow: str | None
    reason: str

    def __str__(self) -> str:
        return f"flow {self.flow}: {self.reason}" if self.flow else self.reason


class Told(NamedTuple):
    """What an event of a run says of a flow: its state, and an error if it has failed."""

    flow: str
    state: str
    error: str | None


def told(message: str) -> Told | None:
    """What a message of a run says of a flow, if it says anything."""
    if found := _UNRESOLVED.match(message):
        return Told(short(found["flow"]), "FAILED", reason(found["rest"].removeprefix("Error:")))
    if (found := _FLOW.match(message)) is None:
        return None
    error = reason(found["rest"].partition("Error:")[2]) if "Error:" in found["rest"] else None
    return Told(short(found["flow"]), found["state"], error)


def short(name: str) -> str:
    """A flow's name without catalog and database."""
    return name.replace("`", "").rpartition(".")[2]


def reason(text: str) -> str:
    """The line that says what happened."""
    return _STATE.sub("", next(_candidates(text))).strip().rstrip(";")[:LINE_CHARS_MAX]


def _candidates(text: str) -> Iterator[str]:
    head = _QUERY.sub("", text.partition("JVM stacktrace:")[0])
    yield from _OURS.findall(text)[-1:]
    yield from (f"{name}: {message}" for name, message in _RAISED.findall(head)[-1:])
    yield from (message for name, message in _NAMED.findall(head) if name not in _WRAPPERS)
    yield next((line for line in head.splitlines() if line.strip()), "Spark does not say why")


def mistake(error: BaseException, folder: Path) -> str:
    """What is wrong in a project's own files: where, and what."""
    what = str(error) if isinstance(error, PenstockError) else _message(error)
    if isinstance(error, SyntaxError):
        return f"{_within(error.filename or '', folder)}, line {error.lineno}: {error.msg}"
    frames = [each for each in traceback.extract_tb(error.__traceback__) if Path(each.filename).is_relative_to(folder)]
    return f"{_within(frames[-1].filename, folder)}, line {frames[-1].lineno}: {what}" if frames else what


def _message(error: BaseException) -> str:
    if type(error).__module__.startswith("pyspark"):
        return reason(str(error))
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _within(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file
