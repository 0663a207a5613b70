"""Principals in backups, restores and moves: what was revoked stays revoked, and what was closed stays closed."""

import asyncio
import json
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import cbor2
import pytest

from penstock import connect
from penstock.backup import copy_store
from penstock.backup.manifest import decode_state, encode_state
from penstock.errors import BackupDamaged, NotAuthenticated, StoreError
from penstock.lake.archiver import Archiver
from penstock.model import AUDIT_CONTEXT, Limits
from penstock.settings import Settings
from penstock.store import Store, open_reader, store_url
from penstock.store.contract import ACCESS_TABLES, AccessState, RemoveCredential, RemovePrincipal, StorePrincipal
from penstock.testing import server
from penstock.testing.harness import ThreadedEngine
from tests.backup.support import Stores, back_up_directory, backed_up, let_in, no_stage, reading, restored, writing
from tests.cli.support import called as penstock
from tests.lake.support import quiet
from tests.postgres import Schemas
from tests.saved.kit import having, unpack
from tests.store.kit import append, do_one, findings, some, stream_of


def names(state: AccessState) -> tuple[list[str], list[str]]:
    return [one.name for one in state.principals], [one.id for one in state.credentials]


def access_of(url: str) -> AccessState:
    with closing(open_reader(url)) as store:
        assert findings(store) == []
        return store.access()


# --- what a restore brings --------------------------------------------------------------------------------------


def test_a_restore_into_an_empty_place_brings_the_principals_of_the_newest_backup(
    tmp_path: Path, stores: Stores
) -> None:
    with stores.writing("data") as store:
        backed_up(store, tmp_path / "place")
        let_in(store)
        backed_up(store, tmp_path / "place")
        do_one(store, RemovePrincipal("ann"))
        backed_up(store, tmp_path / "place")
        kept = store.access()
    for number in (1, 2, 3):
        report = restored(tmp_path / "place", stores.url(f"copy-{number}"), number=number)
        assert report.access_backup == 3
        assert access_of(stores.url(f"copy-{number}")) == kept
    assert names(kept) == (["bob"], ["of bob"])


def test_a_restore_over_a_store_keeps_the_principals_that_it_has(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        let_in(store)
        backed_up(store, tmp_path / "place")
        do_one(store, RemovePrincipal("ann"))
        do_one(store, RemoveCredential("of bob"))
        do_one(store, StorePrincipal("eve", ("read:x",), Limits()))
        kept = store.access()
    assert restored(tmp_path / "place", stores.url("data"), replace=True).access_backup is None
    assert access_of(stores.url("data")) == kept
    assert names(kept) == (["bob", "eve"], [])


def test_a_store_whose_principals_are_all_revoked_stays_closed(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        backed_up(store, tmp_path / "open")
        let_in(store)
        backed_up(store, tmp_path / "place")
        for name in ("ann", "bob"):
            do_one(store, RemovePrincipal(name))
        kept = store.access()
        backed_up(store, tmp_path / "closed")
    assert kept.version > 0
    assert names(kept) == ([], [])
    restored(tmp_path / "closed", stores.url("copy"))
    assert access_of(stores.url("copy")) == kept
    for place in ("place", "open"):
        restored(tmp_path / place, stores.url("data"), replace=True)
        assert access_of(stores.url("data")) == kept


def test_an_open_store_that_is_replaced_does_not_open_what_was_closed(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        backed_up(store, tmp_path / "open")
        let_in(store)
        backed_up(store, tmp_path / "place")
        kept = store.access()
    assert restored(tmp_path / "open", stores.url("copy")).access_backup is None
    assert access_of(stores.url("copy")) == AccessState(0, [], [])
    assert restored(tmp_path / "place", stores.url("copy"), replace=True).access_backup == 1
    assert access_of(stores.url("copy")) == kept


def test_the_principals_of_another_store_are_not_taken_over(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        let_in(store)
        backed_up(store, tmp_path / "place")
        kept = store.access()
    with stores.writing("other") as other:
        do_one(other, StorePrincipal("theirs", ("all:*",), Limits()))
    assert restored(tmp_path / "place", stores.url("other"), replace=True).access_backup == 1
    assert access_of(stores.url("other")) == kept


def test_changes_after_a_restore_are_later_than_those_before(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        let_in(store)
        backed_up(store, tmp_path / "place")
        before = store.access().version
    restored(tmp_path / "place", stores.url("copy"))
    with stores.writing("copy") as copy:
        do_one(copy, StorePrincipal("eve", (), Limits()))
        assert copy.access().version > before


@pytest.mark.parametrize("name", [name for name in having("backup.tar.xz") if name < "0004"])
def test_a_backup_of_a_version_without_principals_is_restored_without_any(name: str, tmp_path: Path) -> None:
    place = unpack(name, "backup.tar.xz", tmp_path) / "backup"
    assert restored(place, tmp_path / "copy").access_backup is None
    assert access_of(store_url(tmp_path / "copy")) == AccessState(0, [], [])


# --- states that no store has written ---------------------------------------------------------------------------


def changed(state: bytes, change: Callable[[dict[str, Any]], object]) -> bytes:
    document = cbor2.loads(state)
    change(document["tables"])
    return cbor2.dumps(document)


BAD_ROWS: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("no time", lambda tables: tables["access"].update(rows=[])),
    ("no table", lambda tables: tables.pop("access")),
    ("time 0", lambda tables: tables["access"].update(rows=[[0]])),
    ("two times", lambda tables: tables["access"].update(rows=[[5], [6]])),
    ("a text as time", lambda tables: tables["access"].update(rows=[["5"]])),
    ("another column", lambda tables: tables["principals"].update(columns=["name"])),
    ("a name that is a number", lambda tables: tables["principals"]["rows"][0].__setitem__(0, 7)),
    ("grants that are a list", lambda tables: tables["principals"]["rows"][0].__setitem__(1, ["all:*"])),
    ("limits that are no JSON", lambda tables: tables["principals"]["rows"][0].__setitem__(2, "{")),
    ("limits that are a list", lambda tables: tables["principals"]["rows"][0].__setitem__(2, "[]")),
    ("an unknown limit", lambda tables: tables["principals"]["rows"][0].__setitem__(2, '{"x": 1}')),
    ("a limit of 0", lambda tables: tables["principals"]["rows"][0].__setitem__(2, '{"polls_max": 0}')),
    ("a limit that is true", lambda tables: tables["principals"]["rows"][0].__setitem__(2, '{"polls_max": true}')),
    ("no time of change", lambda tables: tables["principals"]["rows"][0].__setitem__(4, None)),
    ("a short credential", lambda tables: tables["credentials"]["rows"][0].pop()),
    ("an id that is a number", lambda tables: tables["credentials"]["rows"][0].__setitem__(0, 7)),
    ("a proof of bytes", lambda tables: tables["credentials"]["rows"][0].__setitem__(3, b"0")),
    ("an end that is a text", lambda tables: tables["credentials"]["rows"][0].__setitem__(6, "5")),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in BAD_ROWS])
def test_a_state_with_principals_that_cannot_be_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    with writing(tmp_path / "data") as store:
        let_in(store)
        state = encode_state(store.state())
        assert decode_state("place", "state", state) == store.state()
    with pytest.raises(BackupDamaged):
        decode_state("place", "state", changed(state, change))


def test_a_restore_with_a_credential_of_nobody_is_not_put_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with writing(tmp_path / "data") as store:
        let_in(store)
        backed_up(store, tmp_path / "place")
    decoded = decode_state

    def without_ann(*given: Any) -> Any:
        state = decoded(*given)
        rows = [row for row in state.tables["principals"] if row[0] != "ann"]
        return state._replace(tables={**state.tables, "principals": rows})

    monkeypatch.setattr("penstock.backup.reader.decode_state", without_ann)
    with pytest.raises(StoreError, match="credential curve:Ω: is one of ann, and there is no such principal"):
        restored(tmp_path / "place", tmp_path / "copy")
    assert not (tmp_path / "copy" / "penstock.db").exists()


def test_verify_finds_a_credential_of_nobody(stores: Stores) -> None:
    with stores.writing("data") as store:
        let_in(store)
        assert findings(store) == []
        _break(store, "DELETE FROM principals WHERE name = 'bob'")
        assert findings(store) == ["credential of bob: is one of bob, and there is no such principal"]


def _break(store: Store, statement: str) -> None:
    store.db.connection.execute(statement)  # type: ignore[attr-defined]


# --- from one backend to the other ------------------------------------------------------------------------------


def test_principals_move_to_postgres_and_back(tmp_path: Path, schemas: Schemas) -> None:
    with writing(tmp_path / "data") as store:
        let_in(store)
        kept = store.access()
    urls = store_url(tmp_path / "data"), schemas.url(), store_url(tmp_path / "back")
    for source, target in pairwise(urls):
        tables = copy_store(source, target, no_stage).tables
        assert [tables[name] for name in ACCESS_TABLES] == [1, 2, 3]
        assert access_of(target) == kept


def test_a_closed_store_without_principals_moves_as_closed(tmp_path: Path, schemas: Schemas) -> None:
    with writing(tmp_path / "data") as store:
        do_one(store, StorePrincipal("ann", (), Limits()))
        do_one(store, RemovePrincipal("ann"))
        kept = store.access()
    urls = store_url(tmp_path / "data"), schemas.url(), store_url(tmp_path / "back")
    for source, target in pairwise(urls):
        copy_store(source, target, no_stage)
        assert access_of(target) == kept
    assert kept.version > 0


# --- the audit --------------------------------------------------------------------------------------------------


def started(url: str) -> None:
    """A server starts on a store, and stops."""

    async def run() -> None:
        async with ThreadedEngine(url, Settings()):
            pass

    asyncio.run(run())


def told(url: str) -> list[tuple[str, dict[str, Any]]]:
    with closing(open_reader(url)) as store:
        return [(one.type, json.loads(one.body)) for one in stream_of(store, "store", AUDIT_CONTEXT)]


def test_the_next_server_tells_the_audit_of_a_restore_once(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        append(store, "s", some(2))
        let_in(store)
        backed_up(store, tmp_path / "place")
    restored(tmp_path / "place", stores.url("copy"))
    assert told(stores.url("copy")) == []
    for _ in range(2):
        started(stores.url("copy"))
    entry = ("store-restored", {"by": "files", "backup": 1, "timeline": 2, "head": 2})
    assert told(stores.url("copy")) == [entry]
    with stores.writing("copy") as copy:
        assert copy.arrival() is None
        backed_up(copy, tmp_path / "place-2")
    restored(tmp_path / "place-2", stores.url("copy"), replace=True)
    started(stores.url("copy"))
    assert told(stores.url("copy")) == [
        entry,
        ("store-restored", {"by": "files", "backup": 1, "timeline": 3, "head": 3}),
    ]


def test_an_open_store_has_no_audit_of_its_restore_until_it_is_closed(tmp_path: Path, stores: Stores) -> None:
    with stores.writing("data") as store:
        append(store, "s", some(2))
        backed_up(store, tmp_path / "place")
    restored(tmp_path / "place", stores.url("copy"))
    started(stores.url("copy"))
    assert told(stores.url("copy")) == []
    with stores.writing("copy") as copy:
        assert copy.head() == 2
        let_in(copy)
    started(stores.url("copy"))
    assert [what for what, _ in told(stores.url("copy"))] == ["store-restored"]


def test_the_next_server_tells_the_audit_of_a_move(tmp_path: Path, schemas: Schemas) -> None:
    with writing(tmp_path / "data") as store:
        let_in(store)
    url = schemas.url()
    copy_store(store_url(tmp_path / "data"), url, no_stage)
    started(url)
    ((what, facts),) = told(url)
    assert (what, facts["by"], facts["timeline"], facts["head"]) == ("store-moved", "files", 1, 0)
    assert str(tmp_path / "data") in facts["from"]


# --- the commands -----------------------------------------------------------------------------------------------


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PENSTOCK_DATA", "PENSTOCK_STORE", "PENSTOCK_CONFIG", "PENSTOCK_TOKEN", "PENSTOCK_URL"):
        monkeypatch.delenv(name, raising=False)


def token_of(*command: object) -> str:
    code, out, err = penstock("access", *command, "--json")
    assert code == 0, err
    return str(json.loads(out)["token"])


def comes_in(data: Path, token: str) -> bool:
    with server(data) as own:
        try:
            with connect(own.url, token=token) as client:
                list(client.read_all())
        except NotAuthenticated:
            return False
    return True


@pytest.mark.usefixtures("no_settings")
def test_a_restore_does_not_revive_a_revoked_token(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    root = token_of("init", "--data", data)
    ann, bob = (token_of("add", name, "read", "--data", data) for name in ("ann", "bob"))
    assert penstock("backup", place, "--data", data)[0] == 0
    assert comes_in(data, ann)
    assert penstock("access", "revoke", "ann", "--data", data)[0] == 0
    assert not comes_in(data, ann)
    code, _, err = penstock("restore", place, "--data", data, "--replace")
    assert (code, err) == (0, "")
    assert [comes_in(data, token) for token in (root, ann, bob)] == [True, False, True]
    # Without the store, the newest backup is all there is; the next one knows.
    elsewhere = tmp_path / "elsewhere"
    code, _, err = penstock("restore", place, "--data", elsewhere)
    assert (code, err.count("\n")) == (0, 1)
    assert "principals and tokens are those of backup 1: revoke again what was revoked after it" in err
    assert comes_in(elsewhere, ann)
    back_up_directory(data, tmp_path / "place-2")
    penstock("restore", tmp_path / "place-2", "--data", tmp_path / "newer", "--number", "1")
    assert not comes_in(tmp_path / "newer", ann)


@pytest.mark.usefixtures("no_settings")
def test_a_restore_over_a_damaged_store_says_whose_principals_it_has(tmp_path: Path) -> None:
    data, place = tmp_path / "data", tmp_path / "place"
    root = token_of("init", "--data", data)
    assert penstock("backup", place, "--data", data)[0] == 0
    assert penstock("backup", place, "--data", data)[0] == 0
    (data / "penstock.db").write_bytes(b"damaged" * 1000)
    code, _, err = penstock("restore", place, "--data", data, "--number", 1, "--replace")
    assert code == 0
    assert "principals and tokens are those of backup 2" in err
    assert "the store that was replaced is damaged" in err
    assert comes_in(data, root)


@pytest.mark.usefixtures("no_settings")
def test_a_store_from_a_lake_is_open_and_the_command_says_so(tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with writing(data) as store:
        append(store, "s", some(2))
    Archiver(None, store_url(data), str(lake)).catch_up(quiet)
    code, _, err = penstock("lake", "restore", "--lake", lake, "--data", tmp_path / "open")
    assert (code, err) == (0, "")
    token_of("init", "--data", data)
    Archiver(None, store_url(data), str(lake)).catch_up(quiet)
    code, _, err = penstock("lake", "restore", "--lake", lake, "--data", tmp_path / "copy")
    assert (code, err.count("\n")) == (0, 1)
    assert "the restored store is open to every client: run penstock access init" in err
    with reading(tmp_path / "copy") as copy:
        assert copy.access() == AccessState(0, [], [])
