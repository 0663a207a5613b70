"""A server knows when its store was backed up and archived, although other processes do that."""

import json
import logging
import re
from datetime import datetime
from pathlib import Path

import httpx
import pytest

import penstock
from penstock.store import store_url
from penstock.store.watermarks import BACKUP, LAKE, NOTE_BYTES_MAX, Watermark, file_name
from penstock.testing import Server, server
from tests.backup.support import backed_up, fill, reading, restored, writing
from tests.lake.support import archive
from tests.test_server import PATIENCE_S


def samples(served: Server) -> dict[str, float]:
    text = httpx.get(f"{served.http}/metrics", timeout=PATIENCE_S).text
    found = re.findall(r"^penstock_watermark_(\w+)\{kind=\"(\w+)\"\} (\S+)$", text, re.MULTILINE)
    return {f"{kind} {name}": float(value) for name, kind, value in found}


def test_a_backup_beside_a_server_shows_in_its_metrics(tmp_path: Path) -> None:
    with server(tmp_path / "data") as served:
        with penstock.connect(served.url) as client:
            client.append("shop", "order-1", [penstock.event("OrderPlaced")] * 3)
        with reading(tmp_path / "data") as store:
            manifest = backed_up(store, tmp_path / "place").manifest
        found = samples(served)
        assert found["backup position"] == manifest.head == 3
        created = datetime.fromisoformat(manifest.created).timestamp()
        assert found["backup timestamp_seconds"] == pytest.approx(created, abs=60)
        assert (tmp_path / "data" / file_name(BACKUP)).stat().st_mode & 0o777 == 0o600


def test_a_store_that_was_never_backed_up_has_no_watermarks() -> None:
    with server() as served:
        assert samples(served) == {}


def test_the_notes_of_another_timeline_do_not_count(tmp_path: Path) -> None:
    with writing(tmp_path / "data") as store:
        fill(store, 10)
        backed_up(store, tmp_path / "place")
    (note,) = [mark for mark in _marks(tmp_path / "data") if mark.kind == BACKUP]
    restored(tmp_path / "place", tmp_path / "data", replace=True)
    assert _marks(tmp_path / "data") == []
    with reading(tmp_path / "data") as store:
        # A copy of the old directory brings it back.
        store.note_watermark(note)
    with server(tmp_path / "data") as served:
        assert note in _marks(tmp_path / "data")
        assert samples(served) == {}


def _marks(directory: Path) -> list[Watermark]:
    with reading(directory) as store:
        return store.watermarks()


@pytest.mark.parametrize(
    "content",
    [b"", b"no json", b"[]", b"{}", b'{"kind": "backup"}', b"x" * (NOTE_BYTES_MAX + 1), b"[" * 4000, b"\xff\xfe"],
)
def test_a_note_that_is_none_does_no_harm(tmp_path: Path, content: bytes) -> None:
    with writing(tmp_path / "data") as store:
        (tmp_path / "data" / file_name(BACKUP)).write_bytes(content)
        assert store.watermarks() == []


@pytest.mark.parametrize("change", [{"kind": "other"}, {"position": -1}, {"position": "7"}, {"more": 1}])
def test_a_note_with_wrong_values_is_none(tmp_path: Path, change: dict[str, object]) -> None:
    with writing(tmp_path / "data") as store:
        identity = store.identity()
        note = {"kind": BACKUP, "store": identity.id, "timeline": 1, "position": 1, "unix_ms": 1}
        path = tmp_path / "data" / file_name(BACKUP)
        path.write_text(json.dumps(note))
        assert store.watermarks() == [Watermark(**note)]  # type: ignore[arg-type]
        path.write_text(json.dumps(note | change))
        assert store.watermarks() == []


def test_a_backup_succeeds_where_no_note_can_be_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with writing(tmp_path / "data") as store:
        fill(store, 10)

        def refuse(*_: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(type(store), "note_watermark", refuse)
        with caplog.at_level(logging.WARNING):
            assert backed_up(store, tmp_path / "place").manifest.head == store.head()
    assert "the server of this store is not told of this backup: " in caplog.text


def test_an_archiver_leaves_a_note(tmp_path: Path) -> None:
    url = store_url(tmp_path / "data")
    with penstock.connect(url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")] * 3)
    archive(url, tmp_path / "lake")
    (mark,) = _marks(tmp_path / "data")
    assert (mark.kind, mark.position) == (LAKE, 3)
    with server(tmp_path / "data") as served:
        assert samples(served)["lake position"] == 3
