"""The columns of event bodies: reading them from DDL, and checking JSON bodies against them. None of it needs Spark.

`schema_of` reads columns as in SQL, `customer STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING>>`, because a program
that defines a pipeline must not ask Spark to. It knows the types that JSON can hold. A schema is a document, as
PySpark's `StructType.jsonValue()` returns it.

`body_check` tells why a body does not fit. Spark's own JSON reader takes numbers for strings, takes the first of
several objects, and gives no reason. So executors check each body here, and Spark reads those that pass. Rules: the
body is one object; a field has the JSON type of its column or is null; a NOT NULL field is there and is not null;
fields without a column are ignored.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Decimal
from typing import Any, Final, NoReturn

from penstock.errors import InvalidRequest

Schema = dict[str, Any]

KEPT: Final = ("position", "context", "stream", "sequence", "headers", "event_id", "timestamp", "recorded_at")
"""Columns of events that the table of a type has before the fields of the body."""


def column_name(field: str) -> str:
    return f"body_{field}" if field.lower() in KEPT else field


# -- DDL


TYPES: Final = {
    "STRING": "string",
    "BOOLEAN": "boolean",
    "TINYINT": "byte",
    "BYTE": "byte",
    "SMALLINT": "short",
    "SHORT": "short",
    "INT": "integer",
    "INTEGER": "integer",
    "BIGINT": "long",
    "LONG": "long",
    "FLOAT": "float",
    "REAL": "float",
    "DOUBLE": "double",
    "DATE": "date",
    "TIMESTAMP": "timestamp",
    "TIMESTAMP_NTZ": "timestamp_ntz",
    "VARIANT": "variant",
}
"""Types without arguments, by their names in SQL. DECIMAL, ARRAY, MAP and STRUCT have arguments."""
DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
DIGITS_MAX: Final = 38
LEVELS_MAX: Final = 100
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")


def schema_of(columns: str) -> Schema:
    """The schema of columns in DDL. Raises InvalidRequest with the reason."""
    fields = _DdlParser(columns).fields(end="") if columns.strip() else []
    return {"type": "struct", "fields": fields}


class _DdlParser:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        self._at = 0
        self._level = 0
        at, text = 0, text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise _unreadable(f"{text[at:].strip()[:20]!r} is no part of a column")
            self._tokens.append(found.group().strip())
            at = found.end()

    def fields(self, end: str) -> list[Schema]:
        found = [self._field()]
        while self._take(","):
            found.append(self._field())
        if self._next() != end:
            raise _unreadable(f"{self._next()!r} stands where a comma or the end should be")
        self._at += 1
        names = [field["name"].lower() for field in found]
        for field in found:
            if names.count(field["name"].lower()) > 1:
                raise _unreadable(f"{field['name']} is there twice")
        return found

    def _field(self) -> Schema:
        name = self._pop()
        if name.startswith("`"):
            name = name[1:-1].replace("``", "`")
        elif not name[:1].isidentifier():
            raise _unreadable(f"{name!r} stands where a name should be" if name else "a name is missing at the end")
        self._take(":")
        field = {"name": name, "type": self._type(name), "nullable": not self._take("NOT"), "metadata": {}}
        if not field["nullable"] and not self._take("NULL"):
            raise _unreadable("NULL is missing after NOT")
        if self._take("COMMENT"):
            self._at += 1
        return field

    def _type(self, name: str) -> Any:
        word = self._pop().upper()
        if word in TYPES:
            return TYPES[word]
        if word in DECIMALS:
            return self._decimal()
        if word in ("ARRAY", "MAP", "STRUCT"):
            self._need("<", word)
            self._level += 1
            if self._level > LEVELS_MAX:
                raise _unreadable(f"{name} has more than {LEVELS_MAX} types in one another")
            nested = self._nested(word, name)
            self._level -= 1
            return nested
        raise _unreadable(f"{name} has the type {word or 'nothing'}, which is unknown, or cannot come from JSON")

    def _decimal(self) -> str:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._need(")", "DECIMAL")
        if not 0 < precision <= DIGITS_MAX or scale > precision:
            raise _unreadable(f"there is no DECIMAL({precision},{scale})")
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        word = self._pop()
        if not word.isdecimal() or len(word) > DIGITS_MAX:
            raise _unreadable(f"{word[:DIGITS_MAX]!r} stands where a number should be")
        return int(word)

    def _nested(self, word: str, name: str) -> Schema:
        if word == "STRUCT":
            return {"type": "struct", "fields": self.fields(end=">")}
        found: Schema = {"type": "array", "elementType": self._type(name), "containsNull": True}
        if word == "MAP":
            self._need(",", word)
            key, value = found["elementType"], self._type(name)
            found = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        self._need(">", word)
        return found

    def _next(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _pop(self) -> str:
        token = self._next()
        self._at += 1
        return token

    def _take(self, word: str) -> bool:
        if self._next().upper() != word:
            return False
        self._at += 1
        return True

    def _need(self, word: str, where: str) -> None:
        if not self._take(word):
            raise _unreadable(f"{word} is missing in {where}")


def _unreadable(reason: str) -> InvalidRequest:
    return InvalidRequest("columns", f"cannot be read: {reason}")


# -- checks


Problem = str | None
"""Why a value does not fit, or None."""
Check = Callable[[Any, str], Problem]

SHOWN_CHARS_MAX: Final = 40
WHOLE_BITS: Final = {"byte": 8, "short": 16, "integer": 32, "long": 64}
FLOAT32_MAX: Final = (2 - 2.0**-23) * 2.0**127
DDL: Final = {"byte": "TINYINT", "short": "SMALLINT", "integer": "INT", "long": "BIGINT"}
_KINDS: Final = {dict: "an object", list: "a list", str: "a string", bool: "true or false", type(None): "null"}


def body_check(schema: Mapping[str, Any]) -> Callable[[str | None], Problem]:
    """A function that tells why a body does not fit. Raises InvalidRequest if the schema has an unknown type."""
    check = _struct(schema)

    def problem(text: str | None) -> Problem:
        if text is None:
            return "the body is no text"
        try:
            body = json.loads(text, parse_constant=_refuse_constant, parse_float=Decimal)
        except RecursionError:
            return "the body is nested too deeply"
        except ArithmeticError:
            return "the body has a number that is too large for anything"
        except ValueError as error:
            reason = str(error)
            if reason.partition(" ")[0].istitle():
                reason = reason[:1].lower() + reason[1:]
            return f"the body is no JSON: {reason}"
        if not isinstance(body, dict):
            return f"the body is {_KINDS.get(type(body), 'a number')}, not an object"
        found = check(body, "")
        # JSON may have half of a surrogate pair, which no file can store: the reason shows it as `\\ud800`.
        return None if found is None else found.encode("utf-8", "backslashreplace").decode("utf-8")

    return problem


def _refuse_constant(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number")


def _not(value: Any, path: str, wanted: str) -> str:
    text = str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False, default=float)
    shown = text if len(text) <= SHOWN_CHARS_MAX else f"{text[:SHOWN_CHARS_MAX]}…"
    return f"{path} is {shown}, not {wanted}"


def _check_of(kind: Any, path: str) -> Check:
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
    fields = [(each["name"], each["nullable"], _check_of(each["type"], each["name"])) for each in kind["fields"]]

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, dict):
            return _not(value, path, "an object")
        prefix = f"{path}." if path else ""
        for name, is_optional, check_field in fields:
            found = value.get(name)
            if found is None:
                if not is_optional:
                    return f"{prefix}{name} is {'null' if name in value else 'missing'}"
            elif (problem := check_field(found, f"{prefix}{name}")) is not None:
                return problem
        return None

    return check


def _array(kind: Mapping[str, Any]) -> Check:
    check_element = _check_of(kind["elementType"], "an element")

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, list):
            return _not(value, path, "an array")
        problems = (check_element(each, f"{path}[{index}]") for index, each in enumerate(value) if each is not None)
        return next((problem for problem in problems if problem is not None), None)

    return check


def _map(kind: Mapping[str, Any]) -> Check:
    if kind["keyType"] != "string":
        raise InvalidRequest("columns", "cannot be read from JSON: keys of maps must be STRING")
    check_value = _check_of(kind["valueType"], "a value")

    def check(value: Any, path: str) -> Problem:
        if not isinstance(value, dict):
            return _not(value, path, "an object")
        problems = (check_value(each, f"{path}.{key}") for key, each in value.items() if each is not None)
        return next((problem for problem in problems if problem is not None), None)

    return check


def _whole(kind: str) -> Check:
    bits, wanted = WHOLE_BITS[kind] - 1, DDL[kind]
    least, most = -(1 << bits), (1 << bits) - 1

    # One call for each value, as for strings: pipelines check every field of every body.
    def check(value: Any, path: str) -> Problem:
        return None if type(value) is int and least <= value <= most else _not(value, path, wanted)

    return check


def _string(value: Any, path: str) -> Problem:
    return None if isinstance(value, str) else _not(value, path, "STRING")


def _decimal(kind: str) -> Check:
    precision, _, scale = kind.removeprefix("decimal").strip("()").partition(",")
    digits_max, places_max = int(precision or 10), int(scale or 0)

    def fits(value: Any) -> bool:
        if type(value) not in (int, Decimal):
            return False
        number = Decimal(value)
        _, digits, exponent = number.as_tuple()
        zeros = len(digits) - len("".join(map(str, digits)).rstrip("0"))
        places = -(int(exponent) + zeros)
        return not number or (number.adjusted() < digits_max - places_max and places <= places_max)

    return _that(fits, kind.upper())


def _that(fits: Callable[[Any], bool], wanted: str) -> Check:
    return lambda value, path: None if fits(value) else _not(value, path, wanted)


def _up_to(most: float) -> Callable[[Any], bool]:
    # Spark would read a larger number as infinite.
    return lambda value: type(value) in (int, Decimal) and -most <= value <= most


def _parsed_by(parse: Callable[[str], object]) -> Callable[[Any], bool]:
    def fits(value: Any) -> bool:
        try:
            return isinstance(value, str) and parse(value) is not None
        except ValueError:
            return False

    return fits


_SIMPLE: Final[Mapping[str, Check]] = {
    "string": _string,
    "boolean": _that(lambda value: isinstance(value, bool), "BOOLEAN"),
    "float": _that(_up_to(FLOAT32_MAX), "FLOAT"),
    "double": _that(_up_to(sys.float_info.max), "DOUBLE"),
    "date": _that(_parsed_by(date.fromisoformat), "DATE"),
    "timestamp": _that(_parsed_by(datetime.fromisoformat), "TIMESTAMP"),
    "timestamp_ntz": _that(_parsed_by(datetime.fromisoformat), "TIMESTAMP_NTZ"),
    "variant": _that(lambda _: True, "VARIANT"),
}
