"""What every part of the contract suite stands on: a store in a fresh place, a clock, and a check at the end."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.store import Store
from tests.store.kit import Clock, findings


class StoreCase:
    """A backend says how it is opened; everything else is the same for all."""

    def open(self, path: Path, clock: Clock) -> Store:
        """Open a store in a directory for writing; make it if it is not there."""
        raise NotImplementedError

    def open_reader(self, path: Path, clock: Clock) -> Store:
        """Open the store of a directory for reading, beside its writer."""
        raise NotImplementedError

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: Clock) -> Iterator[Store]:
        """A new store; whatever a test does to it, `verify` must find nothing wrong afterwards."""
        store = self.open(tmp_path, clock)
        yield store
        assert findings(store) == []
        store.close()

    @pytest.fixture
    def reader(self, store: Store, tmp_path: Path, clock: Clock) -> Iterator[Store]:
        """A reader beside the writer."""
        reader = self.open_reader(tmp_path, clock)
        yield reader
        reader.close()
