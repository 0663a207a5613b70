"""Streams as a principal sees them: in order, page by page, and without a look at those that it does not see."""

from typing import cast

from hypothesis import example, given
from hypothesis import strategies as st

from penstock.engine import jobs
from penstock.model import ContextInfo, ListStreams, Right, StreamInfo, View
from penstock.store import Store
from tests.engine.caller import principal

NAMES = st.text("ab", min_size=1, max_size=4)
GRANTS = st.lists(st.tuples(NAMES | st.just(""), st.booleans()).filter(lambda each: each[0] or not each[1]), max_size=5)


class Streams:
    """In the place of a store: the streams of a context."""

    def __init__(self, names: set[str]) -> None:
        self.names = sorted(names)
        self.given: list[str] = []

    def streams(self, _context: str, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        found = [name for name in self.names if name.startswith(prefix) and name > after][:limit]
        self.given += found
        return [StreamInfo(name, 1) for name in found]


def view_of(grants: list[tuple[str, bool]]) -> View:
    texts = [f"read:shop/{name}" if is_exact else f"read:shop/{name}*" for name, is_exact in grants]
    return principal("eve", *texts or ("read:other",)).views[Right.READ]


@given(st.sets(NAMES), GRANTS, NAMES | st.just(""), st.integers(1, 4))
def test_pages_have_what_is_seen_in_order(
    names: set[str], grants: list[tuple[str, bool]], prefix: str, limit: int
) -> None:
    store, view = Streams(names), view_of(grants)
    found: list[str] = []
    end = False
    while not end:
        after = found[-1] if found else ""
        page = jobs.list_streams(cast("Store", store), ListStreams("shop", prefix, after), limit, view)
        end = page.end
        found += [info.name for info in page.items]
        assert end or len(page.items) == limit
    assert found == [name for name in sorted(names) if name.startswith(prefix) and view.has_stream("shop", name)]


@given(st.sets(NAMES), GRANTS)
@example({"a", "aa", "ab", "b"}, [("a", True)])
def test_counts_are_of_what_is_seen_and_nothing_else_is_looked_at(
    names: set[str], grants: list[tuple[str, bool]]
) -> None:
    store, view = Streams(names), view_of(grants)
    info = ContextInfo("shop", len(names), len(names), len(names), 100)
    seen = [name for name in names if view.has_stream("shop", name)]
    shown = jobs._seen_context(cast("Store", store), view, info)
    if view.has_filter("shop", ""):
        assert shown == info
    else:
        assert (0 if shown is None else shown.streams) == len(seen)
        # Of a stream by its name, the first that begins with it.
        assert len(store.given) <= len(seen) + sum(is_exact for _, is_exact in grants)
