"""Files that somebody else gives: where one may be written, what a path in a manifest may name, what a document says.

A checksum tells that a file is as it was written, not who has written it. So whatever is read is judged before it is
used: paths by `flaw_of` and `inside`, documents by `parsed` and `made_of`, sizes by `read_file`.
"""

import errno
import json
import os
import stat
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

SYSTEM: Final = ("/dev", "/proc")
"""Where links are that lead to standard output and other open files."""
NUMBER_BITS: Final = 64
CHECKSUM: Final = "checksum"
SHOWN_CHARS: Final = 40
"""How much of a wrong value an error shows."""

Made = TypeVar("Made")


def is_replaceable(path: Path) -> bool:
    """Whether a file may take the place of what is there: not of a pipe, a device, or where standard output goes."""
    if path.exists() and not path.is_file():
        return False
    return not (path.is_symlink() and any(map(path.absolute().is_relative_to, SYSTEM)))


def flaw_of(path: object) -> str | None:
    """Why a path that was read from a manifest or a plan cannot be used below a folder, or None if it can."""
    if not isinstance(path, str):
        return "is not a path"
    if "\0" in path or not path.isprintable():
        return "has control characters in it"
    if path.startswith("/"):
        return "is an absolute path"
    parts = path.split("/")
    if ".." in parts:
        return "leads out of the folder"
    return "is not in its shortest form" if "" in parts or "." in parts else None


def inside(folder: Path, path: str) -> Path:
    """A path below a folder; raises ValueError, with the reason, if that is elsewhere."""
    reason = flaw_of(path)
    if reason is not None:
        raise ValueError(reason)
    found = str(folder)
    for part in path.split("/"):
        found = f"{found}/{part}"
        if os.path.islink(found) and not _is_below(found, folder):  # noqa: PTH114 - paths are many, and Path is slow
            raise ValueError("is a link that leads out of the folder")
    return Path(found)


def _is_below(link: str, folder: Path) -> bool:
    return Path(os.path.realpath(link)).is_relative_to(os.path.realpath(folder))


def read_file(path: Path, bytes_max: int) -> bytes:
    """A file of at most so many bytes. Raises OSError, also if it is larger, or a pipe that nobody may write to."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "It is not a file", str(path))
        if found.st_size > bytes_max:
            raise OSError(errno.EFBIG, f"It has {found.st_size} bytes, more than {bytes_max}", str(path))
        return file.read(bytes_max + 1)


# --- documents ------------------------------------------------------------------------------------------------


def parsed(data: bytes | str) -> Any:
    """What JSON says. Raises ValueError, whatever is wrong with it."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sealed(document: dict[str, Any]) -> str:
    """A document as JSON with its checksum: not a bit of it can change unnoticed."""
    return json.dumps({**document, CHECKSUM: _checksum(document)})


def unsealed(data: bytes) -> dict[str, Any]:
    """A document that `sealed` has written. Raises ValueError if it is another one."""
    document = parsed(data)
    if not isinstance(document, dict) or document.pop(CHECKSUM, None) != _checksum(document):
        raise ValueError("it does not have its checksum")
    return document


def _checksum(document: dict[str, Any]) -> str:
    return sha256(json.dumps(document).encode()).hexdigest()


def made_of(kind: type[Made], members: object) -> Made:
    """A dataclass from an object of JSON, if that has its fields and no others, and each is of its type.

    Numbers have 64 bits, texts are printable, and lists become tuples. Raises TypeError, which names the field.
    """
    checker: Checker = _checker(kind)  # type: ignore[arg-type]
    found: Made = checker(members)
    return found


Checker = Callable[[Any], Any]
"""Gives a value as it is kept; raises TypeError if it is of another type."""


@lru_cache
def _checker(kind: Any) -> Checker:
    origin, parts = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _dataclass(kind)
    if origin is UnionType:
        return _one_of(tuple(map(_checker, parts)))
    if origin is tuple and parts[-1] is Ellipsis:
        return _every(_checker(parts[0]))
    if origin is tuple:
        return _each(tuple(map(_checker, parts)))
    if origin is Mapping:
        return _mapping(_checker(parts[1]))
    return _PLAIN[kind]


def _dataclass(kind: Any) -> Checker:
    known = {field.name: _checker(get_type_hints(kind)[field.name]) for field in fields(kind)}

    def check(members: Any) -> Any:
        if not isinstance(members, dict):
            raise _wrong(members)
        given = {}
        for name, value in members.items():
            if name not in known:
                raise TypeError(f"it has {name[:SHOWN_CHARS]!r}, which nobody knows")
            try:
                given[name] = known[name](value)
            except TypeError as error:
                raise TypeError(f"its {name} {error}") from None
        return kind(**given)

    return check


def _one_of(checkers: tuple[Checker, ...]) -> Checker:
    def check(value: Any) -> Any:
        for each in checkers[:-1]:
            try:
                return each(value)
            except TypeError:
                continue
        return checkers[-1](value)

    return check


def _every(checker: Checker) -> Checker:
    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise _wrong(value)
        return tuple(map(checker, value))

    return check


def _each(checkers: tuple[Checker, ...]) -> Checker:
    def check(value: Any) -> Any:
        if not isinstance(value, list | tuple) or len(value) != len(checkers):
            raise _wrong(value)
        return tuple(each(item) for each, item in zip(checkers, value, strict=True))

    return check


def _mapping(checker: Checker) -> Checker:
    def check(value: Any) -> Any:
        if not isinstance(value, dict):
            raise _wrong(value)
        return {_text(name): checker(item) for name, item in value.items()}

    return check


def _number(value: Any) -> int:
    if type(value) is not int or not -(1 << NUMBER_BITS - 1) <= value < 1 << NUMBER_BITS - 1:
        raise _wrong(value)
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise _wrong(value)
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1 << NUMBER_BITS:
        raise _wrong(value)
    return float(value)


def _nothing(value: Any) -> None:
    if value is not None:
        raise _wrong(value)


_PLAIN: Final[dict[Any, Checker]] = {int: _number, str: _text, float: _seconds, NoneType: _nothing}


def _wrong(value: Any) -> TypeError:
    try:
        shown = repr(value)
    except (ValueError, RecursionError):
        # Very long numbers have no text, and what is nested deeply neither.
        shown = f"of type {type(value).__name__}"
    return TypeError(f"is {shown[:SHOWN_CHARS]}")
