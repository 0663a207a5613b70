"""Columns as SQL has them, read without Spark: `customer STRING NOT NULL, lines ARRAY<STRUCT<sku: STRING>>`.

While a pipeline is defined Spark may not be asked to read them. What can come from JSON is known here, nothing else;
the answer is what PySpark's `StructType.jsonValue()` would be.
"""

import re
from typing import Any, Final

from penstock.errors import InvalidRequest

SIMPLE: Final = {
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
"""Types by their names in SQL. DECIMAL, ARRAY, MAP and STRUCT have arguments."""
DECIMALS: Final = ("DECIMAL", "DEC", "NUMERIC")
DIGITS_MAX: Final = 38
LEVELS_MAX: Final = 100
"""How deep types may lie in one another."""
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|([A-Za-z_][A-Za-z0-9_]*)|(\d+)|('(?:[^'\\]|\\.)*')|([<>(),:]))")

Schema = dict[str, Any]


def schema_of(columns: str) -> Schema:
    """The schema that columns are. Raises InvalidRequest, which says what is wrong."""
    reader = _Reader(columns)
    fields = reader.fields(":", end="") if columns.strip() else []
    return {"type": "struct", "fields": fields}


class _Reader:
    """Reads columns, word by word."""

    def __init__(self, text: str) -> None:
        self._words = _words(text)
        self._at = 0
        self._level = 0

    def fields(self, colon: str, end: str) -> list[Schema]:
        """Columns with commas between them."""
        found = [self._field(colon)]
        while self._take(","):
            found.append(self._field(colon))
        if self._next() != end:
            raise _wrong(f"{self._next()!r} stands where a comma or the end should be")
        self._at += 1
        names = [field["name"].lower() for field in found]
        for field in found:
            if names.count(field["name"].lower()) > 1:
                raise _wrong(f"{field['name']} is there twice")
        return found

    def _field(self, colon: str) -> Schema:
        name = self._name()
        self._take(colon)
        field = {"name": name, "type": self._type(name), "nullable": not self._not_null(), "metadata": {}}
        if self._take("COMMENT"):
            self._at += 1
        return field

    def _name(self) -> str:
        word = self._next()
        self._at += 1
        if word.startswith("`"):
            return word[1:-1].replace("``", "`")
        if not word[:1].isidentifier():
            raise _wrong(f"{word!r} stands where a name should be" if word else "a name is missing at the end")
        return word

    def _not_null(self) -> bool:
        if not self._take("NOT"):
            return False
        if not self._take("NULL"):
            raise _wrong("NULL is missing after NOT")
        return True

    def _type(self, name: str) -> Any:
        word = self._next().upper()
        self._at += 1
        if word in SIMPLE:
            return SIMPLE[word]
        if word in DECIMALS:
            return self._decimal()
        if word in ("ARRAY", "MAP", "STRUCT"):
            self._need("<", word)
            self._level += 1
            if self._level > LEVELS_MAX:
                raise _wrong(f"{name} has more than {LEVELS_MAX} types in one another")
            nested = self._nested(word, name)
            self._level -= 1
            return nested
        raise _wrong(f"{name} has the type {word or 'nothing'}, which is unknown, or cannot come from JSON")

    def _decimal(self) -> str:
        precision, scale = 10, 0
        if self._take("("):
            precision = self._number()
            scale = self._number() if self._take(",") else 0
            self._need(")", "DECIMAL")
        if not 0 < precision <= DIGITS_MAX or scale > precision:
            raise _wrong(f"there is no DECIMAL({precision},{scale})")
        return f"decimal({precision},{scale})"

    def _number(self) -> int:
        word = self._next()
        self._at += 1
        if not word.isdecimal() or len(word) > DIGITS_MAX:
            raise _wrong(f"{word[:DIGITS_MAX]!r} stands where a number should be")
        return int(word)

    def _nested(self, word: str, name: str) -> Schema:
        if word == "STRUCT":
            return {"type": "struct", "fields": self.fields(":", end=">")}
        found: Schema = {"type": "array", "elementType": self._type(name), "containsNull": True}
        if word == "MAP":
            self._need(",", word)
            key, value = found["elementType"], self._type(name)
            found = {"type": "map", "keyType": key, "valueType": value, "valueContainsNull": True}
        self._need(">", word)
        return found

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self, word: str) -> bool:
        if self._next().upper() != word:
            return False
        self._at += 1
        return True

    def _need(self, word: str, where: str) -> None:
        if not self._take(word):
            raise _wrong(f"{word} is missing in {where}")


def _words(text: str) -> list[str]:
    words, at, text = [], 0, text.strip()
    while at < len(text):
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(f"{text[at:].strip()[:20]!r} is no part of a column")
        words.append(found.group().strip())
        at = found.end()
    return words


def _wrong(reason: str) -> InvalidRequest:
    return InvalidRequest("columns", f"cannot be read: {reason}")
