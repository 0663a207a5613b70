"""JSON of which nothing is lost when it is read.

Python's own reader takes the last of two members of one name, makes infinity of 1e999, and knows NaN. What somebody
hands over to be kept is refused instead.
"""

import json
from typing import Any, Final

__all__ = ["decoder", "parsed"]


def parsed(text: str) -> Any:
    """The value of a JSON text, if nothing of it is lost on the way. Raises ValueError."""
    found = decoder.decode(text)
    if "\\u" in text:
        # Half of a character has no place in UTF-8, though JSON can name it.
        json.dumps(found, ensure_ascii=False).encode()
    return found


def _refused(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{text} is too large")
    return number


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a name is there twice")
    return found


decoder: Final = json.JSONDecoder(parse_constant=_refused, parse_float=_finite, object_pairs_hook=_object)
