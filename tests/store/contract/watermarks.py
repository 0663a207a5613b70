"""Notes of backups and archives."""

from penstock.store import Store
from penstock.store.watermarks import BACKUP, LAKE, Watermark
from tests.store.contract.case import StoreCase


class WatermarkContract(StoreCase):
    def test_a_new_store_has_no_watermarks(self, store: Store) -> None:
        assert [mark for mark in store.watermarks() if mark.store == store.identity().id] == []

    def test_the_last_note_of_each_kind_is_kept(self, store: Store) -> None:
        identity = store.identity()
        for kind, position in ((BACKUP, 1), (LAKE, 7), (BACKUP, 2)):
            store.note_watermark(Watermark(kind, *identity, position, 1_700_000_000_000 + position))
        assert [(mark.kind, mark.position) for mark in store.watermarks()] == [(BACKUP, 2), (LAKE, 7)]
        assert store.watermarks()[0] == Watermark(BACKUP, *identity, 2, 1_700_000_000_002)
