"""Where the rows that pass a filter can lie, so that nothing else is read.

An extent is never too narrow. It may be too wide: whoever reads it applies the filter itself as well.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import takewhile
from typing import Any, Final, NamedTuple

from penstock.history.options import POSITION_MAX, ReadOptions
from penstock.model.events import check_context, check_stream
from penstock.model.times import TICKS_MAX, TICKS_PER_US, UNIX_EPOCH_TICKS
from penstock.sql.substrait import Among, Call, Column, Literal, Node


class Span(NamedTuple):
    """From a value to another, both included; None is no end.

    The upper end of texts is a pair, and its second part says whether the text itself is included.
    """

    low: Any = None
    high: Any = None


@dataclass(frozen=True, slots=True)
class Extent:
    """For some columns between which values the rows lie, for some which values they have."""

    spans: Mapping[str, Span] = field(default_factory=dict)
    values: Mapping[str, frozenset[Any]] = field(default_factory=dict)

    def __and__(self, other: "Extent") -> "Extent":
        """The rows of both."""
        spans = {name: _meet(self.spans.get(name), other.spans.get(name)) for name in {*self.spans, *other.spans}}
        common = self.values.keys() & other.values.keys()
        met = {name: self.values[name] & other.values[name] for name in common}
        return Extent(spans, {**self.values, **other.values, **met})

    def __or__(self, other: "Extent") -> "Extent":
        """The rows of either, and those between them."""
        spans = {name: _join(self.spans[name], other.spans[name]) for name in self.spans.keys() & other.spans.keys()}
        common = self.values.keys() & other.values.keys()
        return Extent(spans, {name: self.values[name] | other.values[name] for name in common})

    def span(self, column: str) -> Span:
        """Between which values a column is."""
        return self.spans.get(column, Span())


EVERYTHING: Final = Extent()


def extent_of(node: Node) -> Extent:
    """Where the rows lie for which a filter is true."""
    match node:
        case Call("and", parts) if parts:
            return reduce(Extent.__and__, map(extent_of, parts))
        case Call("or", parts) if parts:
            return reduce(Extent.__or__, map(extent_of, parts))
        case Call(function, (Column(name), Literal(value))) if function in _COMPARED and value is not None:
            return _COMPARED[function](name, value)
        case Among(Column(name), options):
            values = [option.value if isinstance(option, Literal) else None for option in options]
            return EVERYTHING if None in values else _among(name, frozenset(values))
        case _:
            return EVERYTHING


def _among(column: str, values: frozenset[Any]) -> Extent:
    return Extent({column: Span(min(values), _up_to(max(values)))}, {column: values}) if values else EVERYTHING


def _up_to(value: Any) -> Any:
    return value if isinstance(value, int) else (value, True)


def _below(value: Any) -> Any:
    return value - 1 if isinstance(value, int) else (value, False)


def _above(value: Any) -> Any:
    return value + 1 if isinstance(value, int) else value


_COMPARED: Final[dict[str, Callable[[str, Any], Extent]]] = {
    "equal": lambda name, value: _among(name, frozenset([value])),
    "gt": lambda name, value: Extent({name: Span(low=_above(value))}),
    "gte": lambda name, value: Extent({name: Span(low=value)}),
    "lt": lambda name, value: Extent({name: Span(high=_below(value))}),
    "lte": lambda name, value: Extent({name: Span(high=_up_to(value))}),
}


def _meet(one: Span | None, other: Span | None) -> Span:
    if one is None or other is None:
        return one or other or Span()
    return Span(_chosen(max, one.low, other.low), _chosen(min, one.high, other.high))


def _chosen(choose: Callable[[Any, Any], Any], one: Any, other: Any) -> Any:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)


def _join(one: Span, other: Span) -> Span:
    low = None if one.low is None or other.low is None else min(one.low, other.low)
    high = None if one.high is None or other.high is None else max(one.high, other.high)
    return Span(low, high)


# -- what is read


def narrowed(options: ReadOptions, extent: Extent) -> ReadOptions:
    """Options that let through what lies in an extent, and as little else as they can say."""
    low, high = extent.span("position")
    since, until = event_times(extent)
    return replace(
        options,
        context=_context(extent),
        filter=_prefix(extent.span("stream")),
        types=_types(extent),
        first=max(options.first, 1 if low is None else low),
        last=min(options.last, POSITION_MAX if high is None else high),
        since=since,
        until=until,
    )


def _context(extent: Extent) -> str | None:
    found = extent.values.get("context", ())
    return next((name for name in found if len(found) == 1 and not check_context(name)), None)


def _types(extent: Extent) -> tuple[str, ...] | None:
    found = extent.values.get("type")
    return None if found is None else tuple(found)


def _prefix(span: Span) -> str:
    """What all names between two begin with, if it can be the beginning of a name."""
    if span.low is None or span.high is None:
        return ""
    high, is_included = span.high
    pairs = zip(span.low, high if is_included else _just_before(high), strict=False)
    common = "".join(one for one, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    # As an option, a lone star means every stream.
    return "" if not common or common == "*" or check_stream(common) else common


def _just_before(text: str) -> str:
    """A beginning of what lies right before a text: what is below `order.`, but not below `order-`, has `order-`."""
    last = ord(text[-1]) if text else 0
    return f"{text[:-1]}{chr(last - 1)}" if last and last != _AFTER_SURROGATES else text


_AFTER_SURROGATES: Final = 0xE000


def event_times(extent: Extent) -> tuple[int | None, int | None]:
    """The first tick at which events can have happened, and the first one at which they cannot any more."""
    low, high = _meet(extent.span("ticks"), _ticks(extent.span("timestamp")))
    return None if low is None else _clipped(low), None if high is None else _clipped(high) + 1


def recorded_times(extent: Extent) -> Span:
    """The ticks between which events can have been recorded."""
    return _ticks(extent.span("recorded_at"))


def _ticks(span: Span) -> Span:
    """Times that are cut to microseconds as the ticks that they can be."""
    low, high = span
    first = None if low is None else _clipped(low * TICKS_PER_US + UNIX_EPOCH_TICKS)
    last = None if high is None else _clipped((high + 1) * TICKS_PER_US - 1 + UNIX_EPOCH_TICKS)
    return Span(first, last)


def _clipped(ticks: int) -> int:
    return min(max(ticks, -1), TICKS_MAX + 1)
