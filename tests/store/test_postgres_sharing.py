"""What servers that share a store tell each other: notices of commits, and leases."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Final
from uuid import uuid4

import pytest

from penstock.errors import InvalidRequest, PrincipalNotFound, StoreError
from penstock.model import LOG_CONTEXT, Credential, CredentialKind, Limits
from penstock.store.contract import (
    EVERYTHING,
    AddIterator,
    AddLog,
    Allocate,
    ExpireCredentials,
    HideStream,
    Notice,
    Operation,
    Progress,
    Proposal,
    Register,
    Release,
    RemoveCredential,
    RemovePrincipal,
    StoreCredential,
    StorePrincipal,
    Transaction,
)
from penstock.store.postgres import PostgresListener, PostgresStore
from penstock.store.postgres.connection import Target
from penstock.store.postgres.notifications import PAYLOAD_BYTES_MAX, notice_of, payload
from penstock.store.sqlite import SqliteStore
from tests.postgres import Postgres
from tests.store.contract.queues import declare
from tests.store.kit import Clock, append, attempt, commit, do, do_one, some

PATIENCE_S: Final = 30.0


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def heard(listener: PostgresListener, commits: int) -> list[Notice]:
    """What so many commits have told."""
    notices: list[Notice] = []
    until(lambda: len(notices.__iadd__(listener.wait(1.0))) >= commits)
    assert listener.wait(0) == []
    return notices


def test_an_embedded_store_has_nobody_to_listen_to(tmp_path: object) -> None:
    with closing(SqliteStore(str(tmp_path))) as store:
        assert store.listener() is None


def test_a_commit_is_heard_with_its_streams_by_all_and_known_as_ones_own(url: str) -> None:
    with (
        closing(PostgresStore(url)) as one,
        closing(PostgresStore(url)) as two,
        closing(one.listener()) as mine,
        closing(two.listener()) as theirs,
    ):
        append(one, "ä/1", some(2), context="käufer")
        two.write([Transaction((commit("a", some(1)), commit("b", some(1)))), Transaction((commit("a", some(9), 7),))])
        first = Notice(True, 2, (("käufer", "ä/1"),), False, ())
        second = Notice(False, 4, (("shop", "a"), ("shop", "b")), False, ())
        assert heard(mine, 2) == [first, second]
        assert [notice.is_own for notice in heard(theirs, 2)] == [False, True]


def test_a_commit_is_heard_when_it_can_be_read(url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(PostgresStore(url)) as reader, closing(reader.listener()) as ear:
        for _ in range(20):
            append(store, "orders", some(1))
            (notice,) = heard(ear, 1)
            assert reader.head() == notice.head == reader.stream_head("shop", "orders")


def test_what_concerns_nobody_who_waits_is_not_told_and_what_does_is(url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(store.listener()) as ear:
        append(store, "orders", some(3))
        do_one(store, Register("me", "shop", "", 1))
        do_one(store, Progress(1, 1, 2))
        queue = declare(store)
        do_one(store, Allocate(queue.id, "me", 9999, Proposal(Proposal.FRESH, 1, 2, 1, 1, 1)))
        do_one(store, Release(queue.id, "me", 1, 1))
        do(store, AddLog("log"), AddIterator("it", "log", "map", "return msg", True))
        append(store, "log", some(1), context=LOG_CONTEXT)
        do_one(store, HideStream("shop", "orders"))
        assert [(notice.streams, notice.has_changed_logs, notice.queues) for notice in heard(ear, 5)] == [
            ((("shop", "orders"),), False, ()),
            ((), False, (queue.id,)),
            ((), True, ()),
            (((LOG_CONTEXT, "log"),), False, ()),
            ((), True, ()),
        ]


def test_changes_of_principals_are_told_and_nothing_else_is_said_to_have_changed(url: str) -> None:
    credential = Credential("t", "ann", CredentialKind.TOKEN, "", "", 0)
    changes: list[Operation] = [
        StorePrincipal("ann", ("read:*",), Limits()),
        StoreCredential(credential),
        ExpireCredentials("ann", CredentialKind.TOKEN, 5, ""),
        RemoveCredential("t"),
        RemovePrincipal("ann"),
    ]
    with (
        closing(PostgresStore(url)) as one,
        closing(PostgresStore(url)) as two,
        closing(one.listener()) as mine,
        closing(two.listener()) as theirs,
    ):
        for change in changes:
            do_one(one, change)
            assert heard(mine, 1) == [Notice(True, 0, (), False, (), has_changed_access=True)]
            assert heard(theirs, 1) == [Notice(False, 0, (), False, (), has_changed_access=True)]
            assert two.access() == one.access(), "what was told can be read"
        do(one, StorePrincipal("bob", (), Limits()), commit("access", some(1), context="$audit"))
        assert heard(theirs, 1) == [Notice(False, 1, (("$audit", "access"),), False, (), has_changed_access=True)]
        append(one, "orders", some(1))
        assert [notice.has_changed_access for notice in heard(theirs, 1)] == [False]


def test_two_servers_count_changes_of_principals_as_one_would(url: str) -> None:
    clock = Clock()
    with closing(PostgresStore(url, clock=clock)) as one, closing(PostgresStore(url, clock=clock)) as two:
        versions = [0]
        for number in range(6):
            clock.advance(-1000)
            do_one((one, two)[number % 2], StorePrincipal(f"p{number}", (), Limits()))
            versions.append(one.access().version)
        assert versions == sorted(set(versions))
        assert isinstance(attempt(two, StoreCredential(Credential("t", "p9", "token", "", "", 0))), PrincipalNotFound)
        do_one(one, StorePrincipal("p9", (), Limits()))
        do_one(two, StoreCredential(Credential("t", "p9", "token", "", "", 0)))
        assert isinstance(attempt(one, StoreCredential(Credential("t", "p1", "token", "", "", 0))), InvalidRequest)


def test_a_batch_that_fails_tells_nothing(url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(store.listener()) as ear:
        store.write([Transaction((commit("a", some(1), 7),))])
        append(store, "b", some(1))
        assert [notice.streams for notice in heard(ear, 1)] == [(("shop", "b"),)]


def test_too_many_streams_to_name_are_all_of_them(url: str) -> None:
    names = [f"stream-{number}-{'x' * 100}" for number in range(100)]
    assert len(payload(uuid4(), 1, [("shop", name) for name in names], {}, ()).encode()) <= PAYLOAD_BYTES_MAX
    with closing(PostgresStore(url)) as store, closing(store.listener()) as ear:
        store.write([Transaction((commit(name, some(1)),)) for name in names])
        assert heard(ear, 1) == [Notice(True, 100, None, False, None)]


@pytest.mark.parametrize("text", ["", "?", "{}", "[]", '{"by": 1}', '{"by":"00","head":1,"streams":[1],"queues":[]}'])
def test_what_cannot_be_understood_may_be_anything(text: str) -> None:
    assert notice_of(text, uuid4()) == EVERYTHING


def test_stores_in_other_schemas_are_not_heard(server: Postgres, url: str) -> None:
    with (
        closing(PostgresStore(url)) as store,
        closing(PostgresStore(server.url("elsewhere"))) as other,
        closing(store.listener()) as ear,
    ):
        append(other, "orders", some(1))
        append(store, "orders", some(1))
        assert [notice.is_own for notice in heard(ear, 1)] == [True]


def test_a_listener_whose_connection_was_ended_says_so_once_and_goes_on(server: Postgres, url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(store.listener()) as ear:
        assert ear._db is not None
        server.execute(f"SELECT pg_terminate_backend({ear._db.connection.info.backend_pid}, 5000)")
        append(store, "orders", some(1))
        assert heard(ear, 1) == [EVERYTHING]
        append(store, "orders", some(1))
        assert [notice.head for notice in heard(ear, 1)] == [2]


def test_a_listener_that_connects_again_for_a_lease_still_hears(server: Postgres, url: str) -> None:
    with closing(PostgresStore(url)) as store, closing(store.listener()) as ear:
        assert ear._db is not None
        assert ear.lease("work", 60_000)
        server.execute(f"SELECT pg_terminate_backend({ear._db.connection.info.backend_pid}, 5000)")
        assert ear.lease("work", 60_000)
        assert ear.wait(10.0) == [EVERYTHING]
        append(store, "orders", some(1))
        assert [notice.head for notice in heard(ear, 1)] == [1]


# --- leases ---------------------------------------------------------------------------------------------------


def test_a_lease_has_one_holder_until_it_ends(url: str) -> None:
    with (
        closing(PostgresStore(url)) as one,
        closing(PostgresStore(url)) as two,
        closing(one.listener()) as mine,
        closing(two.listener()) as theirs,
    ):
        assert mine.lease("build it", 60_000)
        assert not theirs.lease("build it", 60_000)
        assert mine.lease("build it", 60_000), "whoever has it can go on"
        assert theirs.lease("build another", 60_000)
        theirs.end_lease("build it")
        assert not theirs.lease("build it", 60_000), "only its holder ends it"
        mine.end_lease("build it")
        assert theirs.lease("build it", 60_000)


def test_a_lease_runs_out_by_itself_and_is_taken_over(url: str) -> None:
    with (
        closing(PostgresStore(url)) as one,
        closing(PostgresStore(url)) as two,
        closing(one.listener()) as mine,
        closing(two.listener()) as theirs,
    ):
        assert mine.lease("seal", 50)
        until(lambda: theirs.lease("seal", 60_000))
        assert not mine.lease("seal", 60_000)


def test_a_listener_that_is_closed_ends_its_leases(url: str) -> None:
    with closing(PostgresStore(url)) as one, closing(PostgresStore(url)) as two, closing(two.listener()) as theirs:
        mine = one.listener()
        assert mine.lease("seal", 60_000)
        assert mine.lease("erase", 60_000)
        mine.close()
        assert theirs.lease("seal", 60_000)
        assert theirs.lease("erase", 60_000)


def test_a_lease_that_cannot_be_asked_for_is_not_had(server: Postgres, url: str) -> None:
    with closing(PostgresStore(url)) as store:
        ear = store.listener()
        server.execute(f"ALTER TABLE {Target.of(url).schema}.leases RENAME TO away")
        try:
            with pytest.raises(StoreError):
                ear.lease("seal", 1000)
        finally:
            server.execute(f"ALTER TABLE {Target.of(url).schema}.away RENAME TO leases")
        assert ear.lease("seal", 1000)
        ear.close()
