"""Types that only DuckDB has, and what there is instead of them in an answer: texts, also within lists and structs."""

from typing import Any, Final

_TEXTS: Final = frozenset(
    (
        "bit",
        "bignum",
        "geometry",
        "interval",
        "time with time zone",
        "uhugeint",
        "union",
        "variant",
    )
)
"""Types that neither Parquet nor JSON has, and that Arrow has in a form of DuckDB's own."""
_NESTED: Final = frozenset(("array", "list", "map", "struct", "tuple"))


def plain_relation(relation: Any) -> Any:
    """A relation without the types that only DuckDB knows: those become text."""
    if not any(map(_has_texts, relation.types)):
        return relation
    columns = zip(relation.columns, relation.types, strict=True)
    return relation.project(", ".join(_column(*column, number) for number, column in enumerate(columns, 1)))


def _column(name: str, kind: Any, number: int) -> str:
    cast = f"::{_plain_type(kind)}" if _has_texts(kind) else ""
    return f"#{number}{cast} AS {_quoted(name)}"


def _has_texts(kind: Any) -> bool:
    return kind.id in _TEXTS or (kind.id in _NESTED and any(_has_texts(child) for _, child in _children(kind)))


def _plain_type(kind: Any) -> str:
    """A type as SQL says it, with texts in place of what only DuckDB has."""
    if kind.id in _TEXTS:
        return "VARCHAR"
    if kind.id not in _NESTED:
        return str(kind)
    inner = [(name, _plain_type(child)) for name, child in _children(kind)]
    match kind.id:
        case "list":
            return f"{inner[0][1]}[]"
        case "array":
            return f"{inner[0][1]}[{dict(kind.children)['size']}]"
        case "struct":
            return f"STRUCT({', '.join(f'{_quoted(name)} {child}' for name, child in inner)})"
        case named:
            return f"{named.upper()}({', '.join(child for _, child in inner)})"


def _children(kind: Any) -> list[tuple[str, Any]]:
    """The types within a type. How long an array is stands among them."""
    return [(name, child) for name, child in kind.children if kind.id != "array" or name != "size"]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
