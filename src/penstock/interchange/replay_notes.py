"""What a replay notes about itself in a file: what it is of, how far it is, and what is under way.

How far it is, is known exactly where the events go, by producer marks. The note says what the marks cannot: what was
asked for, up to which position, and which piece was sent last. It is written before each piece, and put in place in
one step.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from penstock.errors import PenstockError
from penstock.files import atomic_write, made_of, make_folder, private, read_file, sealed, try_lock, unsealed

NOTE_BYTES_MAX: Final = 1 << 20


@dataclass(eq=False)
class ReplayRefused(PenstockError):
    """A replay that cannot be, as things are."""

    reason: str

    def __str__(self) -> str:
        return self.reason


@dataclass
class Note:
    """A replay, as far as it is."""

    name: str
    asked: str
    """A digest of what was asked for: only the same is gone on with."""
    source: tuple[str, int]
    target: tuple[str, int]
    """Store and timeline of both."""
    first: int
    last: int
    """The positions that it is of."""
    since: int | None = None
    until: int | None = None
    """The times of events, in ticks; the second one exclusive."""
    run: int = 0
    """How often it was begun again on purpose."""
    done: int = 0
    """All up to this position is done."""
    sending: int = 0
    sending_events: int = 0
    """The last position of the piece that was sent last, and its events; 0 if none is under way."""
    sending_at: float = 0.0
    """When that was noted, in seconds since 1970."""
    events: int = 0
    left_out: int = 0
    erased: int = 0
    finished: str | None = None
    """When it was finished."""


class NoteFile:
    """The file of a note, for one process at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            make_folder(path.parent)
            self._lock = private(f"{path}.lock", os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise _refused(path, error) from None
        if not try_lock(self._lock):
            os.close(self._lock)
            raise ReplayRefused(f"another process is at this replay; {path}.lock is its lock")

    def read(self) -> Note | None:
        """The note, if there is one."""
        try:
            note = made_of(Note, unsealed(read_file(self.path, NOTE_BYTES_MAX)))
            if not 0 <= note.first - 1 <= note.done <= max(note.last, note.first - 1) or note.sending < 0:
                raise ValueError("its positions do not fit together")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _refused(self.path, error) from None
        except (ValueError, TypeError) as error:
            reason = f"{self.path} is no state of a replay: {error}; name another file with --state"
            raise ReplayRefused(reason) from None
        return note

    def write(self, note: Note, *, lasting: bool = False) -> None:
        """Put a note in place. If it must outlast a power cut too, it is on the disk when this returns."""
        try:
            with atomic_write(self.path, sync=lasting) as file:
                file.write(sealed(asdict(note)).encode())
        except OSError as error:
            raise _refused(self.path, error) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._lock)


def _refused(path: Path, error: OSError) -> ReplayRefused:
    return ReplayRefused(f"{path}: {(error.strerror or str(error)).lower()}; name another file with --state")
