"""Files: permissions of those that hold events, locks, atomic writes, safe paths, and documents from strangers.

Folders and files that hold events are for their owner alone from the first byte on: 0700 and 0600, whatever the umask
is. A folder that its group may write and others may not enter (0770) is shared: new files in it are for the folder's
group too. This module does not change the umask, which belongs to all threads of the program that embeds it.

A checksum shows that a file is as it was written, not who wrote it. So a reader checks a file before it
uses it: paths by `flaw_of` and `inside`, documents by `parsed` and `made_of`, sizes by `read_file`.
"""

import errno
import fcntl
import json
import os
import shlex
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from functools import cache
from hashlib import sha256
from io import BufferedWriter
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, get_args, get_origin, get_type_hints

SYSTEM: Final = ("/dev", "/proc")
"""Where links are that lead to standard output and other open files."""
FOLDER: Final = 0o700
FILE: Final = 0o600
SHARED_FOLDER: Final = 0o2770
"""With the set-group-ID bit, so that files which SQLite and others create in it get the folder's group as well."""
SHARED_FILE: Final = 0o660
NUMBER_BITS: Final = 64
CHECKSUM: Final = "checksum"
OWNER_BYTES_MAX: Final = 4096
SECRET_BYTES_MAX: Final = 4096
LOCK_TRIES: Final = 5
LOCK_TRY_S: Final = 0.005
SHOWN_CHARS: Final = 40
"""How much of a wrong value an error shows."""
_GROUP: Final = 0o070
_OTHERS: Final = 0o007

Made = TypeVar("Made")


# --- for the owner alone --------------------------------------------------------------------------------------


def is_shared(folder: Path) -> bool:
    """Whether a folder is for its owner and its group and closed to others; False if there is no such folder."""
    try:
        mode = folder.stat().st_mode
    except OSError:
        return False
    return mode & _GROUP == _GROUP and not mode & _OTHERS


def make_folder(folder: Path, *, shared: bool = False) -> list[Path]:
    """Create a folder, with those above it that are missing, for its owner alone; those that were missing.

    If it is `shared`, it is for the group of the folder that it is in, too.
    """
    missing = [place for place in (folder, *folder.parents) if not place.exists()]
    for place in reversed(missing):
        try:
            place.mkdir(FOLDER)
        except FileExistsError:
            if not place.is_dir():
                raise
            continue
        if shared:
            _share(place, place.parent.stat().st_gid, SHARED_FOLDER)
    if not missing and not folder.is_dir():
        folder.mkdir()  # Raises what the system says of a file in its place.
    return missing


def close_folder(folder: Path) -> None:
    """Close a folder, and so all that is in it, to other users, if it is ours and not shared."""
    found = folder.stat()
    if found.st_uid == os.geteuid() and found.st_mode & (_GROUP | _OTHERS) and not is_shared(folder):
        permit(folder, stat.S_IMODE(found.st_mode) & ~(_GROUP | _OTHERS))


def open_file(path: str | Path, flags: int) -> int:
    """Open or create a file of ours. Raises OSError for a link or a pipe, which others may have put in its place."""
    try:
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, FILE)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):
            reason = "It is a link" if error.errno == errno.ELOOP else "It is not a file"
            raise OSError(error.errno, reason, str(path)) from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "It is not a file", str(path))
    return descriptor


def private(path: str | Path, flags: int) -> int:
    """An opener for `open`: files of ours, old and new, are for their owner or the group of a shared folder."""
    descriptor = open_file(path, flags)
    try:
        restrict_access(descriptor, Path(path))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def restrict_access(descriptor: int, path: Path) -> None:
    """Close an open file to others, if it is ours; open it to the group of a shared folder."""
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        return
    if is_shared(path.parent):
        _share(descriptor, path.parent.stat().st_gid, SHARED_FILE)
    elif stat.S_IMODE(found.st_mode) & ~FILE:
        permit(descriptor, FILE)


def permit(file: int | Path, mode: int) -> None:
    """Set the permissions of a file or folder. A file system without permissions may refuse that: its mount decides."""
    with suppress(OSError):
        os.chmod(file, mode)  # noqa: PTH101


def _share(file: Path | int, group: int, mode: int) -> None:
    """Let a group use a new file, by path or descriptor. The file stays private if it cannot get that group."""
    with suppress(OSError):
        if os.stat(file).st_gid != group:  # noqa: PTH116
            os.chown(file, -1, group)
        os.chmod(file, mode)  # noqa: PTH101


def read_secret(path: Path, bytes_max: int = SECRET_BYTES_MAX) -> str:
    """A short text that is for its owner alone. Raises OSError, or ValueError for a file that others can read.

    The group may read a file of root, as secrets are often handed to services.
    """
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        if found.st_mode & _OTHERS or (found.st_mode & _GROUP and found.st_uid != 0):
            close = f"chmod 600 {shlex.quote(str(path))}"
            raise ValueError(f"can be read by other users; close it with {close}, and make a new secret")
        content = file.read(bytes_max + 1)
    if len(content) > bytes_max or not content.isascii():
        raise ValueError("is not a file with one secret" if bytes_max == SECRET_BYTES_MAX else "is no file in ASCII")
    return content.decode()


def created(path: Path, mode: Literal["wb", "xb", "ab"]) -> BufferedWriter:
    """Open a file to write what holds events; see `private`."""
    return open(path, mode, opener=private)


def release(file: int | Path, path: Path) -> None:
    """Give a finished file the permissions of the file at a path, or those of any new file there."""
    with suppress(OSError):
        permit(file, _mode_at(path))


def _mode_at(path: Path) -> int:
    if path.exists():
        return stat.S_IMODE(path.stat().st_mode)
    # Reading the umask means changing it for a moment, and an ACL of the folder may say something else. So try.
    tried = path.with_name(f".penstock-{uuid.uuid4().hex}")
    descriptor = os.open(tried, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        return stat.S_IMODE(os.fstat(descriptor).st_mode)
    finally:
        os.close(descriptor)
        tried.unlink()


# --- locks, and files that replace others ------------------------------------------------------------------------


def try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Lock an open file, alone or with others; False if another process has it. Closing the file unlocks it."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_owner(path: Path) -> bytes | None:
    """What the process that holds a lock has written to the locked file; None if no process holds it."""
    try:
        descriptor = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return None if try_lock(descriptor, shared=True) else os.pread(descriptor, OWNER_BYTES_MAX, 0)
    finally:
        os.close(descriptor)


@contextmanager
def owned_lock(path: Path, owner: bytes, in_use: Callable[[bytes], Exception]) -> Iterator[None]:
    """Lock a file, and write the owner into it. If another process has it, raise what `in_use` makes of its owner."""
    descriptor = private(path, os.O_RDWR | os.O_CREAT)
    try:
        tries = 1
        while not try_lock(descriptor):
            # `lock_owner` of another process has it for a moment.
            if tries == LOCK_TRIES:
                raise in_use(os.pread(descriptor, OWNER_BYTES_MAX, 0))
            time.sleep(LOCK_TRY_S)
            tries += 1
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, owner, 0)
        yield
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Put the names in a directory on the disk, so that they survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(
    path: Path, *, aside: Path | None = None, sync: bool = True, public: bool = False
) -> Iterator[BufferedWriter]:
    """A file that replaces the one at a path when it is whole. After an error the old one is unchanged.

    Until then it is next to it, or at `aside`, for its owner only; a `public` one gets the permissions of the old file.
    """
    aside = aside or path.with_name(f"{path.name}.new")
    file = created(aside, "wb")
    try:
        with file:
            yield file
            file.flush()
            if public:
                release(file.fileno(), path)
            if sync:
                os.fsync(file.fileno())
        aside.replace(path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


# --- names in arguments and manifests ---------------------------------------------------------------------------


def is_replaceable(path: Path) -> bool:
    """Whether a file may replace what is at a path: not a pipe, a device, or where standard output goes."""
    if path.exists() and not path.is_file():
        return False
    return not (path.is_symlink() and any(map(path.absolute().is_relative_to, SYSTEM)))


def flaw_of(path: object) -> str | None:
    """Why a path from a manifest or a plan cannot be used below a folder, or None."""
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
    """A path below a folder; raises ValueError, with the reason, if it leads elsewhere."""
    reason = flaw_of(path)
    if reason is not None:
        raise ValueError(reason)
    found = str(folder)
    for part in path.split("/"):
        found = f"{found}/{part}"
        # Paths are many, and Path is slow.
        if os.path.islink(found) and not Path(os.path.realpath(found)).is_relative_to(os.path.realpath(folder)):  # noqa: PTH114
            raise ValueError("is a link that leads out of the folder")
    return Path(found)


def read_file(path: Path, bytes_max: int) -> bytes:
    """A file of at most so many bytes. Raises OSError, also if it is larger, or not a regular file."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "It is not a file", str(path))
        if found.st_size > bytes_max:
            raise OSError(errno.EFBIG, f"It has {found.st_size} bytes, more than {bytes_max}", str(path))
        return file.read(bytes_max + 1)


# --- documents ------------------------------------------------------------------------------------------------


def parsed(data: bytes | str) -> Any:
    """Parse JSON. Raises ValueError for any error."""
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def sealed(document: dict[str, Any]) -> str:
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
    found: Made = _checked(kind, members)
    return found


def _checked(kind: Any, value: Any) -> Any:
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind):
        return _made(kind, value)
    if origin is UnionType:
        for each in inner[:-1]:
            with suppress(TypeError):
                return _checked(each, value)
        return _checked(inner[-1], value)
    if origin is tuple and isinstance(value, list | tuple):
        kinds = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        if len(kinds) == len(value):
            return tuple(map(_checked, kinds, value))
    elif origin is Mapping and isinstance(value, dict):
        return {_checked(str, name): _checked(inner[1], item) for name, item in value.items()}
    elif kind is int and type(value) is int and -(1 << NUMBER_BITS - 1) <= value < 1 << NUMBER_BITS - 1:
        return value
    elif kind is float and type(value) in (int, float) and abs(value) < 1 << NUMBER_BITS:
        return float(value)
    elif (kind is str and isinstance(value, str) and value.isprintable()) or (kind is NoneType and value is None):
        return value
    raise _wrong(value)


def _made(kind: Any, members: Any) -> Any:
    if not isinstance(members, dict):
        raise _wrong(members)
    known = _field_types(kind)
    given = {}
    for name, value in members.items():
        if name not in known:
            raise TypeError(f"it has {name[:SHOWN_CHARS]!r}, which is not a field")
        try:
            given[name] = _checked(known[name], value)
        except TypeError as error:
            raise TypeError(f"its {name} {error}") from None
    return kind(**given)


@cache
def _field_types(kind: Any) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind)}


def _wrong(value: Any) -> TypeError:
    try:
        text = repr(value)
    except (ValueError, RecursionError):
        # Python cannot print very long numbers, nor deeply nested values.
        text = f"of type {type(value).__name__}"
    return TypeError(f"is {text[:SHOWN_CHARS]}")
