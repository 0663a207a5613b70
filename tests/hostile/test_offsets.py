"""Offsets of streaming queries, as Spark keeps them in files: damaged or made up, they are refused with a sentence."""

from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.errors import PenstockError
from penstock.history.columns import TABLE
from penstock.history.options import ReadOptions
from penstock.spark.source import PenstockStreamReader
from tests.backup.support import writing
from tests.hostile.mutations import EDITS, Edit, edited
from tests.hostile.support import Tally, some
from tests.store.kit import append
from tests.store.kit import some as events


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PenstockStreamReader]:
    folder = tmp_path_factory.mktemp("store")
    with writing(folder) as store:
        append(store, "s", events(3))
    found = PenstockStreamReader(ReadOptions.of({"url": f"sqlite:///{folder}"}), TABLE)
    yield found
    found.stop()


def test_an_offset_is_judged_before_it_is_used(reader: PenstockStreamReader) -> None:
    """It is refused, or is one of this history: then a batch has events that there are."""
    seen = Tally()

    @some(4)
    @given(EDITS, st.booleans())
    @example([Edit("lose", 2)], True)
    @example([Edit("value", 1, 0)], False)
    def check(edits: list[Edit], is_start: bool) -> None:
        whole = {**reader.initialOffset(), "position": 2}
        offset = edited(whole, edits)
        try:
            found = reader.partitions(offset, whole) if is_start else reader.partitions(whole, offset)
        except PenstockError:
            seen.add(is_refused=True)
            return
        seen.add(is_refused=False)
        assert len(found) <= 1

    check()
    seen.check(1 / 3)
