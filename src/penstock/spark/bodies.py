"""Whether a JSON body fits a schema, and if not, why: strictly, and said in a sentence.

Spark's own JSON takes numbers for strings, the first of several objects, and says of a body that does not fit only
that it does not. So the bodies are checked here, by executors, and Spark reads those that pass. Rules: an object, and
nothing behind it; a field has the JSON type of its column or is null; one that is NOT NULL is there and is not null;
fields that the schema does not name are ignored.

A schema comes as PySpark's `StructType.jsonValue()`: nothing of PySpark is needed here.
"""

import json
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NoReturn

from penstock.errors import InvalidRequest

Problem = str | None
"""What is wrong with a value, if anything is."""
Check = Callable[[Any, str], Problem]
"""Checks a value that is found at a path."""

SHOWN_CHARS_MAX: Final = 40
"""How much of a value a reason shows."""
WHOLE_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
FLOAT_MAX: Final = (2 - 2.0**-23) * 2.0**127
"""The largest number of 32 bits."""
DDL: Final = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_KINDS: Final = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


KEPT: Final = ("position", "context", "stream", "sequence", "headers", "event_id", "timestamp", "recorded_at")
"""Columns of events that tables of one type have; the fields of the body come after them."""


def column_name(field: str) -> str:
    """The name of the column that a field of a body has."""
    return f"body_{field}" if field.lower() in KEPT else field


def body_check(schema: Mapping[str, Any]) -> Callable[[str | None], Problem]:
    """A function that tells what is wrong with a body. Raises InvalidRequest if the schema has an unknown type."""
    fits = _struct(schema)

    def problem(text: str | None) -> Problem:
        if text is None:
            return "the body is no text"
        try:
            body = json.loads(text, parse_constant=_refuse, parse_float=Decimal)
        except RecursionError:
            return "the body is nested too deeply"
        except ArithmeticError:
            return "the body has a number that is too large for anything"
        except ValueError as error:
            return f"the body is no JSON: {_lower(str(error))}"
        if not isinstance(body, dict):
            return f"the body is {_kind(body)}, not an object"
        found = fits(body, "")
        return None if found is None else _storable(found)

    return problem


def _storable(reason: str) -> str:
    r"""JSON may have one half of a pair of surrogates, which no file can: it is shown as `\ud800`."""
    return reason.encode("utf-8", "backslashreplace").decode("utf-8")


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _lower(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:] if sentence.partition(" ")[0].istitle() else sentence


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "a number")


def _not(value: Any, path: str, wanted: str) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=float)
    shown = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
    return f"{path} is {shown}, not {wanted}"


# -- a check for each type of Spark's


def _check(kind: Any, path: str) -> Check:
    if isinstance(kind, Mapping):
        return {"struct": _struct, "array": _array, "map": _map}[kind["type"]](kind)
    if kind in WHOLE_BITS:
        return _whole(kind)
    if kind.startswith("decimal"):
        return _decimal(kind)
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    raise InvalidRequest("columns", f"cannot be read from JSON: {path} is {kind.upper()}")


def _struct(kind: Mapping[str, Any]) -> Check:
    fields = [(each["name"], each["nullable"], _check(each["type"], each["name"])) for each in kind["fields"]]

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, dict):
            return _not(value, path, "an object")
        prefix = f"{path}." if path else ""
        for name, is_optional, fits in fields:
            found = value.get(name)
            if found is None:
                if not is_optional:
                    return f"{prefix}{name} is {'null' if name in value else 'missing'}"
            elif (problem := fits(found, f"{prefix}{name}")) is not None:
                return problem
        return None

    return check


def _array(kind: Mapping[str, Any]) -> Check:
    fits = _check(kind["elementType"], "an element")

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, list):
            return _not(value, path, "an array")
        problems = (fits(each, f"{path}[{index}]") for index, each in enumerate(value) if each is not None)
        return next((problem for problem in problems if problem is not None), None)

    return check


def _map(kind: Mapping[str, Any]) -> Check:
    if kind["keyType"] != "string":
        raise InvalidRequest("columns", "cannot be read from JSON: keys of maps must be STRING")
    fits = _check(kind["valueType"], "a value")

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, dict):
            return _not(value, path, "an object")
        problems = (fits(each, f"{path}.{key}") for key, each in value.items() if each is not None)
        return next((problem for problem in problems if problem is not None), None)

    return check


def _whole(kind: str) -> Check:
    bits, wanted = WHOLE_BITS[kind], DDL[kind]
    least, most = -(1 << (bits - 1)), (1 << (bits - 1)) - 1

    def check(value: Any, path: str) -> Problem:
        if type(value) is not int or not least <= value <= most:
            return _not(value, path, wanted)
        return None

    return check


def _decimal(kind: str) -> Check:
    precision, _, scale = kind.removeprefix("decimal").strip("()").partition(",")
    digits_max, places = int(precision or 10), int(scale or 0)

    def check(value: Any, path: str) -> Problem:
        if type(value) not in (int, Decimal):
            return _not(value, path, kind.upper())
        number = Decimal(value)
        fits = number.adjusted() < digits_max - places and _places(number) <= places
        return None if fits or not number else _not(value, path, kind.upper())

    return check


def _places(number: Decimal) -> int:
    """Digits after the point that are not just zeros at the end."""
    _, digits, exponent = number.as_tuple()
    zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
    return -(int(exponent) + zeros)


def _floating(wanted: str, most: float) -> Check:
    def check(value: Any, path: str) -> Problem:
        # What is too large would be read as infinite.
        return None if type(value) in (int, Decimal) and -most <= value <= most else _not(value, path, wanted)

    return check


def _string(value: Any, path: str) -> Problem:
    return None if isinstance(value, str) else _not(value, path, "STRING")


def _boolean(value: Any, path: str) -> Problem:
    return None if isinstance(value, bool) else _not(value, path, "BOOLEAN")


def _anything(value: Any, path: str) -> Problem:  # noqa: ARG001 - whatever it is, it fits
    return None


def _parsed(parse: Callable[[str], object], wanted: str) -> Check:
    def check(value: Any, path: str) -> Problem:
        try:
            if isinstance(value, str):
                parse(value)
                return None
        except ValueError:
            pass
        return _not(value, path, wanted)

    return check


_SIMPLE: Final[Mapping[str, Check]] = {
    "string": _string,
    "boolean": _boolean,
    "float": _floating("FLOAT", FLOAT_MAX),
    "double": _floating("DOUBLE", sys.float_info.max),
    "date": _parsed(date.fromisoformat, "DATE"),
    "timestamp": _parsed(datetime.fromisoformat, "TIMESTAMP"),
    "timestamp_ntz": _parsed(datetime.fromisoformat, "TIMESTAMP_NTZ"),
    "variant": _anything,
}
