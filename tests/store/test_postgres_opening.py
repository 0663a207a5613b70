"""Opening the shared store: URLs, schemas, rights, settings that would lose commits, several servers at once."""

import threading
import time
from contextlib import closing
from dataclasses import replace

import pytest

from penstock.errors import InvalidRequest, NotAStore, NotDurable, StoreError, StoreTooNew
from penstock.model import LOG_CONTEXT, ProducerMark
from penstock.store import open_reader, open_store
from penstock.store.contract import AddLog, DeleteLog, Erase, Progress, Register, Transaction
from penstock.store.postgres import PostgresReader, PostgresStore
from penstock.store.postgres.connection import Target
from penstock.store.postgres.schema import SCHEMA_VERSION
from tests.postgres import Postgres, postgres
from tests.store.kit import append, attempt, commit, do, do_one, everything, findings, some


def test_a_store_is_found_by_its_url(url: str) -> None:
    with closing(open_store(url, stream_cache_max=10, wal_bytes_max=0)) as store, closing(open_reader(url)) as reader:
        append(store, "orders", some(2))
        assert len(everything(reader)) == 2
        assert reader.free_bytes() is None
        assert reader.stats().schema == SCHEMA_VERSION


@pytest.mark.parametrize("url", ["postgresql://%%%", "postgresql:///x?options=-csearch_path%3DAbc", "postgres://a b/"])
def test_a_url_that_cannot_be_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="store URL"):
        open_reader(url)


def test_the_schema_is_penstock_unless_the_url_names_another() -> None:
    assert Target.of("postgresql:///db").schema == "penstock"
    assert Target.of("postgresql:///db?options=-csearch_path%3Dother").schema == "other"
    assert Target.of("postgresql:///db?options=-c%20search_path%3Dother,public").schema == "other"


def test_a_password_is_never_shown() -> None:
    for url in ("postgresql://me:secret@host:1/db", "postgresql://host/db?user=me&password=secret&port=1"):
        assert "secret" not in Target.of(url).shown
        assert "host" in Target.of(url).shown


def test_a_reader_makes_no_store(server: Postgres) -> None:
    with pytest.raises(NotAStore, match="no schema nowhere"):
        PostgresReader(server.url("nowhere"))
    assert server.execute("SELECT FROM pg_namespace WHERE nspname = 'nowhere'") == []


def test_a_newer_schema_is_refused(server: Postgres, url: str) -> None:
    PostgresStore(url).close()
    server.execute(f"UPDATE {Target.of(url).schema}.penstock_version SET version = {SCHEMA_VERSION + 7}")
    try:
        for kind in (PostgresStore, PostgresReader):
            with pytest.raises(StoreTooNew) as caught:
                kind(url)
            assert (caught.value.found, caught.value.known) == (SCHEMA_VERSION + 7, SCHEMA_VERSION)
    finally:
        server.execute(f"UPDATE {Target.of(url).schema}.penstock_version SET version = {SCHEMA_VERSION}")


def test_tables_of_another_program_are_left_as_they_are(server: Postgres) -> None:
    server.execute("CREATE SCHEMA strange; CREATE TABLE strange.records (x int)")
    for kind in (PostgresStore, PostgresReader):
        with pytest.raises(NotAStore, match="some other program"):
            kind(server.url("strange"))
    assert server.execute("SELECT count(*) FROM pg_class WHERE relnamespace = 'strange'::regnamespace") == [(1,)]


def test_a_schema_that_was_made_for_it_is_used(server: Postgres) -> None:
    """A role that may not make schemas gets one that somebody else has made."""
    server.execute("CREATE ROLE modest LOGIN; CREATE SCHEMA given AUTHORIZATION modest")
    url = server.url("given").replace("postgres@", "modest@")
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(1))
        do_one(store, AddLog("log"))
        append(store, "log", some(1), context=LOG_CONTEXT)
        do_one(store, DeleteLog("log"))
        while do_one(store, Erase(10)):
            pass
        assert findings(store) == []
    with pytest.raises(StoreError, match="lacks a right"):
        PostgresStore(url.replace("given", "other"))


def test_several_servers_may_start_at_once(server: Postgres) -> None:
    def opened() -> None:
        store = PostgresStore(server.url("together"))
        identities.append(store.identity().id)
        append(store, "orders", some(1))
        store.close()

    identities: list[str] = []
    threads = [threading.Thread(target=opened) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(identities) == 6
    assert len(set(identities)) == 1
    with closing(PostgresReader(server.url("together"))) as reader:
        assert [one.position for one in everything(reader)] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("name", ["fsync", "full_page_writes", "synchronous_commit"])
def test_a_database_that_would_lose_commits_is_refused_by_the_settings_name(name: str) -> None:
    with postgres(f"{name}=off") as careless:
        with pytest.raises(StoreError, match=f"{name} = off"):
            PostgresStore(careless.url())
        assert careless.execute("SELECT FROM pg_namespace WHERE nspname = 'penstock'") == []


def test_a_session_that_would_lose_commits_is_refused_too(server: Postgres) -> None:
    with pytest.raises(StoreError, match="synchronous_commit = off"):
        PostgresStore(server.url(options="-csynchronous_commit=off"))


def test_another_encoding_is_refused(server: Postgres) -> None:
    server.execute("CREATE DATABASE plain ENCODING 'SQL_ASCII' TEMPLATE template0")
    with pytest.raises(StoreError, match="encoding SQL_ASCII"):
        PostgresStore(server.url(database="plain"))


def test_a_locale_changes_no_order(server: Postgres, url: str) -> None:
    with closing(PostgresStore(url)) as store:
        names = ["a", "B", "Z", "é", "z", "_", "ä", "\U0001f600", "￿", "aa"]
        for name in names:
            append(store, name, some(1))
        assert [stream.name for stream in store.streams("shop", "", "", 100)] == sorted(names)


@pytest.mark.parametrize("name", ["fsync", "full_page_writes"])
def test_a_setting_that_is_switched_off_later_stops_all_writes_until_it_is_on_again(
    server: Postgres, name: str
) -> None:
    url = server.url(f"switched_{name}")
    with closing(PostgresStore(url)) as store:
        append(store, "orders", some(1))
        try:
            server.set(name, "off")
            with pytest.raises(NotDurable, match=f"{name} = off.*Nothing was written"):
                append_until_refused(store)
            with pytest.raises(NotDurable, match=f"{name} = off"):
                store.recover()
            with pytest.raises(NotDurable, match=f"{name} = off"):
                append(store, "orders", some(1))
        finally:
            server.set(name, "on")
        recover_soon(store)
        head = store.head()
        append(store, "orders", some(1))
        assert [one.sequence for one in everything(store)] == list(range(1, head + 2))


def test_what_was_written_is_known_while_nothing_may_be_written(server: Postgres) -> None:
    """By a mark or by its events, before and after an attempt to recover, and on a new connection."""
    events, mark = some(2), ProducerMark("p", 1)
    with closing(PostgresStore(server.url("known"))) as store:
        first = append(store, "a", events, expected=1)
        marked = append(store, "b", events, mark=mark)
        do_one(store, Register("me", "shop", "", 1))
        left = Transaction((commit("a", events, expected=1), Progress(1, 1, 2, strict=True)))
        try:
            server.set("fsync", "off")
            with pytest.raises(NotDurable):
                append_until_refused(store)
            head = store.head()
            for _ in range(2):
                assert append(store, "a", events, expected=1) == replace(first, repeated=True)
                assert append(store, "b", events, mark=mark) == replace(marked, repeated=True)
                # Its events are there, and its progress is not: this transaction was never carried out.
                assert [type(outcome) for outcome in store.write([left, left])] == [NotDurable, NotDurable]
                assert isinstance(attempt(store, commit("b", events), mark=ProducerMark("p", 2)), NotDurable)
                with pytest.raises(NotDurable):
                    store.recover()
            assert store.head() == head
        finally:
            server.set("fsync", "on")
        recover_soon(store)
        found = store.find_subscription("me", "shop", "")
        assert found is not None
        assert found.position == 1
        do(store, *left.operations)
        assert append(store, "b", events, mark=ProducerMark("p", 2)).position == head + 1


def append_until_refused(store: PostgresStore) -> None:
    """A reload reaches a session a moment after it was asked for."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        append(store, "orders", some(1))


def recover_soon(store: PostgresStore) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            return store.recover()
        except StoreError:
            assert time.monotonic() < deadline


def test_a_reload_does_not_loosen_what_a_commit_of_an_open_session_means(server: Postgres, url: str) -> None:
    with closing(PostgresStore(url)) as store:
        try:
            server.set("synchronous_commit", "off")
            asked = "SELECT reset_val, setting FROM pg_settings WHERE name = 'synchronous_commit'"
            deadline = time.monotonic() + 30
            while (shown := store.db.connection.execute(asked).fetchone()) == ("on", "on"):
                assert time.monotonic() < deadline, "the reload did not reach the session"
        finally:
            server.set("synchronous_commit", "on")
        assert shown == ("off", "on")
