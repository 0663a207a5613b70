"""Spark's checkpoints of flows and its logs of tables' files, read without Spark.

A checkpoint is a folder: `offsets/N` has the end of batch N, `commits/N` exists if it is done, and `sources/0/N` lists
the files it read, if the flow reads a table. A table that a stream writes has a log `_spark_metadata/N` of the files
that batch N added. In both logs, `N.compact` has everything up to N. A refreshed table has a new checkpoint, numbered
one higher; the last one counts.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.errors import InvalidRequest
from penstock.files import parsed
from penstock.pipelines.projects import local_path

FILES_LOG: Final = "_spark_metadata"
_COMPACT: Final = ".compact"
DIGITS_MAX: Final = 19
"""Digits of a position or of a batch number."""
_HEADER_LINES: Final = 2
"""Lines of an offset file before those of the sources."""


@dataclass(frozen=True)
class Checkpoint:
    flow: str
    target: str
    path: Path

    @property
    def planned(self) -> int:
        """The last batch that began, or -1."""
        return last_batch(self.path / "offsets")

    @property
    def committed(self) -> int:
        """The last batch that is done, or -1."""
        return last_batch(self.path / "commits")

    def offsets(self) -> list[dict[str, Any]]:
        """The end of the last batch that is done, for each source."""
        if self.committed < 0:
            return []
        try:
            lines = (self.path / "offsets" / str(self.committed)).read_text(encoding="utf-8").splitlines()
            found = [parsed(line) for line in lines[_HEADER_LINES:] if line != "-"]
        except (OSError, ValueError):
            return []
        return [each for each in found if isinstance(each, dict)]

    def files_read(self) -> dict[int, set[Path]]:
        """The files that complete batches have read, for each source that is a table."""
        found = {}
        for source, offset in enumerate(self.offsets()):
            if "logOffset" in offset:
                until = number_of(self.path, offset, "logOffset")
                found[source] = set(logged_files(self.path / "sources" / str(source), until))
        return found


def checkpoints(folder: Path | None) -> list[Checkpoint]:
    """Every current checkpoint, by target and flow."""
    if folder is None:
        return []
    # A table or a flow may have this name too. Checkpoints are in a numbered folder.
    flows = {offsets.parent.parent for offsets in folder.glob("**/offsets") if offsets.parent.name.isdecimal()}
    found = []
    for flow in flows:
        # The last one counts, even if it is empty.
        version = max(int(path.name) for path in flow.iterdir() if path.name.isdecimal())
        found.append(Checkpoint(flow.name, flow.parent.name, flow / str(version)))
    return sorted(found, key=lambda each: (each.target, each.flow))


def last_batch(log: Path) -> int:
    """The last batch in a log, or -1."""
    return max((number for number, _ in _logs(log)), default=-1)


def logged_files(log: Path, until: int | None = None) -> Iterator[Path]:
    logs = sorted((number, path) for number, path in _logs(log) if until is None or number <= until)
    begin = max((index for index, (_, path) in enumerate(logs) if path.name.endswith(_COMPACT)), default=0)
    for _, path in logs[begin:]:
        try:
            for line in path.read_text(encoding="utf-8").splitlines()[1:]:
                entry = parsed(line)
                place = local_path(entry["path"])
                if place is not None and entry.get("action", "add") == "add":
                    yield place
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise _damaged(path, str(error)) from None


def _logs(log: Path) -> Iterator[tuple[int, Path]]:
    if log.is_dir():
        for path in log.iterdir():
            number = path.name.removesuffix(_COMPACT)
            if number.isdecimal():
                yield int(number), path


def number_of(checkpoint: Path, offset: dict[str, Any], name: str) -> int:
    """A number in an offset, as a number or as digits. Raises InvalidRequest."""
    value = str(offset[name]) if isinstance(offset[name], int | str) else ""
    if not value.isdecimal() or len(value) > DIGITS_MAX:
        raise _damaged(checkpoint / "offsets", f"its {name} is no number")
    return int(value)


def _damaged(path: Path, reason: str) -> InvalidRequest:
    rest = "remove the project's tables and checkpoints, and run it again: all of it is made from the history"
    return InvalidRequest(str(path), f"is damaged ({reason}); {rest}")
