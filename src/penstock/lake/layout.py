"""Where things are in a lake."""

import re
from datetime import date
from typing import Final, NamedTuple

DAY: Final = "recorded_day"
"""The column that folders are named by; it is in no file, and readers who know such folders add it."""
OWN: Final = "_penstock"
"""All that is not events. Names that begin so are passed over by whoever reads a folder of Parquet."""
MANIFEST: Final = f"{OWN}/manifest.json"
PENDING: Final = f"{OWN}/pending.json"
LOCK: Final = f"{OWN}/lock"
ASIDE: Final = f"{OWN}/aside"
STAGED: Final = ".new"
"""How the names of files end that are being written: not in .parquet, so that nobody takes them for events."""
_PATH: Final = re.compile(rf"{DAY}=(\d{{4}}-\d\d-\d\d)/(\d{{20}})-(\d{{20}})\.parquet", re.ASCII)
_ASIDE: Final = re.compile(rf"{ASIDE}/[0-9a-f]{{32}}\{STAGED}")


class Named(NamedTuple):
    """What the path of a file says."""

    day: str
    first: int
    last: int


def folder_of(day: str) -> str:
    """The folder of a day."""
    return f"{DAY}={day}"


def path_of(day: str, first: int, last: int) -> str:
    """Where the events of these positions are."""
    return f"{folder_of(day)}/{first:020}-{last:020}.parquet"


def named(path: str) -> Named | None:
    """What a path says, if it is one of ours."""
    found = _PATH.fullmatch(path)
    return Named(found[1], int(found[2]), int(found[3])) if found and _is_day(found[1]) else None


def _is_day(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True


def is_aside(path: str) -> bool:
    """Whether a path is that of a file that a task has written aside."""
    return _ASIDE.fullmatch(path) is not None


def is_passed_over(path: str) -> bool:
    """Whether readers of the folder do not look at it: something in it begins with an underscore or a dot."""
    return any(part.startswith(("_", ".")) for part in path.split("/"))
