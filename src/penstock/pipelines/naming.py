"""Names of tables, from types of events: `OrderPlaced` and `order-placed` both become `order_placed`.

Two types whose names clash get numbers, in the order of their names: no event may depend on which was seen first.
"""

import re
from collections.abc import Iterable
from typing import Final

NAME_CHARS_MAX: Final = 128
"""The longest name that the metastore takes."""
TAKEN: Final = ("bronze", "judged", "quarantine", "events_per_hour", "events_per_type", "quarantine_per_type")
"""Tables that every project has."""
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,127}")


def is_table_name(name: str) -> bool:
    """Whether a table may be called this in every catalog: small letters, digits and underscores."""
    return _TABLE.fullmatch(name) is not None


def table_name(type: str) -> str:
    """The name that the table of a type would have."""
    words = _WORDS.sub("_", type).lower()
    name = re.sub(r"[^a-z0-9]+", "_", words).strip("_")
    if not name or not name[0].isalpha():
        name = f"type_{name}".rstrip("_")
    return name[:NAME_CHARS_MAX]


def table_names(types: Iterable[str]) -> dict[str, str]:
    """A table's name for each type, no two of them the same."""
    names: dict[str, str] = {}
    taken = set(TAKEN)
    for type in sorted(types):
        wanted = table_name(type)
        numbered = (f"{wanted[: NAME_CHARS_MAX - 1 - len(str(n))]}_{n}" for n in range(2, len(taken) + 3))
        names[type] = wanted if wanted not in taken else next(name for name in numbered if name not in taken)
        taken.add(names[type])
    return names
