"""Principals and credentials: what becomes of each change, and that each counts."""

from dataclasses import replace

import pytest

from penstock.errors import (
    InvalidRequest,
    LastAdministrator,
    LimitExceeded,
    NotAuthenticated,
    OverLimit,
    PenstockError,
    PrincipalNotFound,
    VersionConflict,
)
from penstock.model import Credential, CredentialKind, Limits, PrincipalInfo
from penstock.store import Store
from penstock.store.contract import (
    AccessState,
    ExpireCredentials,
    ExpireStages,
    Operation,
    ReadAccess,
    RemoveCredential,
    RemovePrincipal,
    RequireAdministrator,
    Stage,
    StoreCredential,
    StorePrincipal,
    Transaction,
    Unstage,
)
from penstock.store.stages import jobs_of, size_of
from penstock.store.tables import access
from tests.store.contract.case import StoreCase
from tests.store.contract.staging import MIB, unit
from tests.store.kit import Clock, attempt, commit, do, do_one, event, everything, some, stream_of

NOTHING = AccessState(0, [], [])


def let_in(store: Store, *names: str, grants: tuple[str, ...] = ("read:shop",)) -> None:
    for name in names:
        assert do_one(store, StorePrincipal(name, grants, Limits())) is True


def token(name: str, principal: str, expires: int | None = None, label: str = "") -> Credential:
    return Credential(name, principal, CredentialKind.TOKEN, "0" * 64, label, 5, expires)


def principals(store: Store) -> dict[str, PrincipalInfo]:
    return {one.name: one for one in store.access().principals}


def credentials(store: Store) -> dict[str, Credential]:
    return {one.id: one for one in store.access().credentials}


class AccessContract(StoreCase):
    def test_a_new_store_has_no_principals(self, store: Store, reader: Store) -> None:
        assert store.access() == reader.access() == NOTHING

    def test_a_principal_is_found_as_it_was_stored(self, store: Store, reader: Store, clock: Clock) -> None:
        grants = ("read,append:shop/order-%2A*", "read:Ω'\"", "all:*")
        limits = Limits(1, 2, 1 << 62, None, 5)
        assert do_one(store, StorePrincipal("ann@example.com", grants, limits)) is True
        found = PrincipalInfo("ann@example.com", grants, limits, clock.ticks, clock.ticks)
        assert store.access() == reader.access() == AccessState(clock.ticks, [found], [])

    def test_the_same_name_again_replaces_grants_and_limits_and_keeps_when_it_was_created(
        self, store: Store, clock: Clock
    ) -> None:
        do_one(store, StorePrincipal("ann", ("read:shop", "append:shop"), Limits(polls_max=3)))
        before = principals(store)["ann"]
        clock.advance(10)
        assert do_one(store, StorePrincipal("ann", ("read:other",), Limits())) is False
        assert principals(store)["ann"] == PrincipalInfo("ann", ("read:other",), Limits(), before.created, clock.ticks)

    def test_a_principal_may_have_no_grants(self, store: Store) -> None:
        let_in(store, "ann", grants=())
        assert principals(store)["ann"].grants == ()

    def test_the_last_administrator_stays_if_that_is_wanted(self, store: Store) -> None:
        let_in(store, "ann", "bob", grants=("all:*",))
        # None of these may change rights: not everywhere, not that right, and not understood.
        let_in(store, "eve", grants=("admin:shop", "read:*"))
        let_in(store, "new", grants=("admin:*", "later:*"))
        demoted = StorePrincipal("ann", ("read:*",), Limits(), keeps_admin=True)
        assert do_one(store, RemovePrincipal("bob", keeps_admin=True)) is True
        for change in (RemovePrincipal("ann", keeps_admin=True), demoted):
            found = attempt(store, change)
            assert isinstance(found, LastAdministrator)
            assert found.principal == "ann"
        assert principals(store)["ann"].grants == ("all:*",)
        assert do_one(store, RemovePrincipal("eve", keeps_admin=True)) is True
        # One that stays an administrator may change, and so may the last if nobody minds.
        assert do_one(store, replace(demoted, grants=("admin:*",))) is False
        assert do_one(store, replace(demoted, keeps_admin=False)) is False
        assert do_one(store, RemovePrincipal("ann", keeps_admin=True)) is True

    def test_two_administrators_that_remove_each_other_at_once_leave_one(self, store: Store) -> None:
        let_in(store, "ann", "bob", grants=("all:*",))
        removals = [Transaction((RemovePrincipal(name, keeps_admin=True),)) for name in ("ann", "bob")]
        first, second = store.write(removals)
        assert first == [True]
        assert isinstance(second, LastAdministrator)
        assert list(principals(store)) == ["bob"]

    def test_a_change_is_refused_once_who_makes_it_is_no_administrator_or_has_lost_its_credential(
        self, store: Store, clock: Clock
    ) -> None:
        def may(principal: str | None, credential: Credential | None = None) -> bool:
            before = store.access()
            require = RequireAdministrator(principal, credential)
            (found,) = store.write([Transaction((require, RemoveCredential("none")))])
            assert store.access() == before
            if isinstance(found, NotAuthenticated):
                return False
            assert found == [True, False]
            return True

        assert may(None)
        assert not may("ann")
        let_in(store, "ann", "bob", grants=("all:*",))
        let_in(store, "eve", grants=("admin:shop",))
        assert [may(None), may("ann"), may("eve"), may("nobody's")] == [False, True, False, False]
        shown = token("t", "ann", clock.ticks + 10)
        do_one(store, StoreCredential(shown))
        others = token("u", "ann"), replace(shown, proof="1" * 64), replace(shown, principal="bob")
        assert [may("ann", one) for one in (shown, *others)] == [True, False, False, True]
        assert not may("bob", shown)
        # Its end may have moved since it was shown.
        assert may("ann", replace(shown, expires=None))
        do_one(store, ExpireCredentials("ann", CredentialKind.TOKEN, clock.ticks, ""))
        assert not may("ann", shown)
        do_one(store, StoreCredential(shown))
        do_one(store, StorePrincipal("ann", ("read:*",), Limits()))
        assert not may("ann", shown)
        do(store, RemovePrincipal("ann"), RemovePrincipal("bob"))
        assert [may("ann", shown), may("bob"), may(None)] == [False, False, False]

    def test_a_transaction_answers_the_principals_as_it_leaves_them(self, store: Store) -> None:
        assert do_one(store, ReadAccess()) == NOTHING
        stored = StorePrincipal("ann", ("all:*",), Limits()), StoreCredential(token("t", "ann")), ReadAccess()
        changes = [stored, (RemovePrincipal("ann"), RequireAdministrator("ann"), ReadAccess()), (ReadAccess(),)]
        first, refused, last = store.write([Transaction(change) for change in changes])
        assert isinstance(first, list)
        assert isinstance(refused, NotAuthenticated)
        assert last == [first[-1]] == [store.access()]
        assert list(credentials(store)) == ["t"]

    def test_names_differ_by_case_and_come_in_the_order_of_their_bytes(self, store: Store) -> None:
        let_in(store, "b", "a.b", "B", "a", "_", "a-b", "a@b")
        found = [one.name for one in store.access().principals]
        assert found == sorted(found) == ["B", "_", "a", "a-b", "a.b", "a@b", "b"]

    def test_a_credential_is_found_as_it_was_stored(self, store: Store, reader: Store) -> None:
        let_in(store, "ann")
        certificate = Credential(
            "certificate:Ω.example", "ann", CredentialKind.CERTIFICATE, "", "a 'label'", 1, 1 << 60
        )
        for given in (token("t", "ann"), certificate):
            assert do_one(store, StoreCredential(given)) is True
        assert store.access().credentials == reader.access().credentials == [certificate, token("t", "ann")]

    def test_the_same_credential_again_is_replaced(self, store: Store) -> None:
        let_in(store, "ann")
        do_one(store, StoreCredential(token("t", "ann", 7)))
        again = replace(token("t", "ann", None, "new"), proof="1" * 64, created=9)
        assert do_one(store, StoreCredential(again)) is False
        assert credentials(store) == {"t": again}

    def test_nobody_has_a_credential_without_a_principal(self, store: Store) -> None:
        before = store.access()
        outcome = attempt(store, StoreCredential(token("t", "ann")))
        assert isinstance(outcome, PrincipalNotFound)
        assert "ann" in str(outcome)
        assert store.access() == before

    def test_a_credential_of_another_principal_is_not_taken_over(self, store: Store) -> None:
        let_in(store, "ann", "bob")
        do_one(store, StoreCredential(token("t", "ann")))
        before = store.access()
        outcome = attempt(store, StoreCredential(token("t", "bob")))
        assert isinstance(outcome, InvalidRequest)
        assert "ann" in str(outcome)
        assert store.access() == before
        do(store, RemoveCredential("t"), StoreCredential(token("t", "bob")))
        assert credentials(store)["t"].principal == "bob"

    def test_a_principal_goes_with_its_credentials_and_nobody_elses(self, store: Store) -> None:
        let_in(store, "ann", "bob", "anna")
        for number, name in enumerate(("ann", "bob", "ann", "anna")):
            do_one(store, StoreCredential(token(f"{number}", name)))
        assert do_one(store, RemovePrincipal("ann")) is True
        assert principals(store).keys() == {"bob", "anna"}
        assert credentials(store).keys() == {"1", "3"}

    def test_a_principal_that_comes_back_is_another_one(self, store: Store) -> None:
        let_in(store, "ann")
        do_one(store, StoreCredential(token("t", "ann")))
        before = principals(store)["ann"]
        do(store, RemovePrincipal("ann"), StorePrincipal("ann", before.grants, before.limits))
        assert credentials(store) == {}
        after = principals(store)["ann"]
        assert after.created > before.created
        assert after.changed > before.changed

    def test_a_credential_is_removed_alone(self, store: Store) -> None:
        let_in(store, "ann")
        for name in ("t", "u"):
            do_one(store, StoreCredential(token(name, "ann")))
        assert do_one(store, RemoveCredential("t")) is True
        assert credentials(store).keys() == {"u"}

    def test_what_is_not_there_is_not_removed_and_nothing_changes(self, store: Store) -> None:
        let_in(store, "ann")
        before = store.access()
        assert do(store, RemovePrincipal("bob"), RemoveCredential("t"), RemovePrincipal("ANN")) == [False, False, False]
        assert store.access() == before

    def test_a_store_whose_principals_are_all_revoked_is_not_as_it_was_before(self, store: Store) -> None:
        let_in(store, "ann")
        do_one(store, RemovePrincipal("ann"))
        version, *rest = store.access()
        assert (version > 0, rest) == (True, [[], []])

    def test_credentials_of_a_kind_end_but_for_one_and_none_later_than_before(self, store: Store) -> None:
        let_in(store, "ann", "bob")
        ends = {"never": None, "late": 100, "just": 50, "early": 10, "kept": 100}
        for name, expires in ends.items():
            do_one(store, StoreCredential(token(name, "ann", expires)))
        do_one(store, StoreCredential(token("bob's", "bob", 100)))
        curve = Credential("curve:k", "ann", CredentialKind.CURVE, "", "", 5)
        do_one(store, StoreCredential(curve))
        assert do_one(store, ExpireCredentials("ann", CredentialKind.TOKEN, 50, "kept")) is True
        found = {name: one.expires for name, one in credentials(store).items()}
        assert found == {"never": 50, "late": 50, "just": 50, "early": 10, "kept": 100, "bob's": 100, "curve:k": None}
        do_one(store, ExpireCredentials("ann", CredentialKind.TOKEN, 80, ""))
        assert {name: one.expires for name, one in credentials(store).items()} == {**found, "kept": 80}

    def test_a_new_token_and_the_end_of_the_others_are_one_transaction(self, store: Store) -> None:
        let_in(store, "ann")
        do_one(store, StoreCredential(token("old", "ann")))
        rotate = StoreCredential(token("new", "ann")), ExpireCredentials("ann", CredentialKind.TOKEN, 50, "new")
        assert do(store, *rotate) == [True, True]
        assert {name: one.expires for name, one in credentials(store).items()} == {"old": 50, "new": None}

    @pytest.mark.parametrize("ms", [0, -60_000, 60_000])
    def test_each_change_is_later_than_those_before_even_if_the_clock_is_not(
        self, store: Store, clock: Clock, ms: int
    ) -> None:
        changes: list[Operation] = [
            StorePrincipal("ann", ("read:a",), Limits()),
            StorePrincipal("bob", ("read:a",), Limits()),
            StorePrincipal("ann", ("read:b",), Limits()),
            StoreCredential(token("t", "ann")),
            ExpireCredentials("ann", CredentialKind.TOKEN, 50, ""),
            RemoveCredential("t"),
            RemovePrincipal("bob"),
        ]
        versions = [0]
        for change in changes:
            do_one(store, change)
            versions.append(store.access().version)
            clock.advance(ms)
            # What a store remembers of its clock does not matter.
            store.recover()
        assert versions == sorted(set(versions))
        assert principals(store)["ann"].created < principals(store)["ann"].changed == versions[3]

    def test_changes_of_one_batch_and_of_one_transaction_have_times_of_their_own(self, store: Store) -> None:
        def named(name: str) -> StorePrincipal:
            return StorePrincipal(name, (), Limits())

        store.write([Transaction((named("a"), named("b"))), Transaction((named("c"),))])
        changed = [one.changed for one in store.access().principals]
        assert changed == sorted(set(changed))
        assert store.access().version == changed[-1]

    def test_a_change_and_its_entry_are_written_together_or_not_at_all(self, store: Store) -> None:
        let_in(store, "ann")
        before = store.access()
        entry = commit("access", [event(type="principal-changed")], context="$audit")
        failing = [
            (StorePrincipal("bob", (), Limits()), entry, StoreCredential(token("t", "nobody's"))),
            (entry, RemovePrincipal("ann"), commit("access", some(1), 9, "$audit")),
            (StoreCredential(token("t", "ann")), commit("access", some(1), 9, "$audit")),
        ]
        errors = [PrincipalNotFound, VersionConflict, VersionConflict]
        for operations, error in zip(failing, errors, strict=True):
            assert isinstance(attempt(store, *operations), error)
        assert store.access() == before
        assert everything(store) == []
        do(store, StorePrincipal("bob", (), Limits()), entry)
        assert principals(store).keys() == {"ann", "bob"}
        assert [one.type for one in stream_of(store, "access", "$audit")] == ["principal-changed"]

    def test_a_failed_change_leaves_its_neighbours_in_the_batch_alone(self, store: Store) -> None:
        outcomes = store.write(
            [
                Transaction((StorePrincipal("ann", (), Limits()), commit("a", some(1)))),
                Transaction((StoreCredential(token("t", "nobody's")), commit("a", some(1)))),
                Transaction((StoreCredential(token("u", "ann")),)),
                Transaction((commit("a", some(1)),)),
            ]
        )
        assert [isinstance(outcome, PenstockError) for outcome in outcomes] == [False, True, False, False]
        assert credentials(store).keys() == {"u"}
        assert store.head() == 2

    def test_there_are_only_so_many_principals(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access, "PRINCIPALS_MAX", 2)
        let_in(store, "a", "b")
        outcome = attempt(store, StorePrincipal("c", (), Limits()))
        assert isinstance(outcome, LimitExceeded)
        assert "principals_max" in str(outcome)
        assert do_one(store, StorePrincipal("a", ("read:x",), Limits())) is False
        assert do(store, RemovePrincipal("a"), StorePrincipal("c", (), Limits())) == [True, True]
        assert isinstance(attempt(store, RemovePrincipal("x"), StorePrincipal("d", (), Limits())), LimitExceeded)
        assert principals(store).keys() == {"b", "c"}

    def test_there_are_only_so_many_credentials(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(access, "CREDENTIALS_MAX", 2)
        let_in(store, "ann")
        for name in ("a", "b"):
            do_one(store, StoreCredential(token(name, "ann")))
        outcome = attempt(store, StoreCredential(token("c", "ann")))
        assert isinstance(outcome, LimitExceeded)
        assert "credentials_max" in str(outcome)
        assert do_one(store, StoreCredential(token("a", "ann", 7))) is False
        assert do(store, RemoveCredential("a"), StoreCredential(token("c", "ann"))) == [True, True]
        assert credentials(store).keys() == {"b", "c"}

    def test_principals_outlive_opening_again(self, store: Store) -> None:
        let_in(store, "ann")
        do_one(store, StoreCredential(token("t", "ann")))
        before = store.access()
        store.recover()
        assert store.access() == before

    # -- what a principal may stage

    def test_all_jobs_of_an_owner_together_stage_only_so_much(self, store: Store, clock: Clock) -> None:
        units = (unit("a", some(1)),)
        size = size_of(units[0])

        def stage(job: str, owner: str, number: int = 0, most: int | None = 2 * size) -> object:
            own = Stage(jobs_of(owner) + job, 0, "x", number, units, MIB, 1000, owner, most)
            outcome = attempt(store, own)
            return outcome[0] if isinstance(outcome, list) else type(outcome)

        assert stage("1/one", "ann") is True
        assert stage("1/one", "anna") is True
        assert stage("2/two", "ann") is True
        assert stage("2/two", "ann") is False, "what is there already counts once"
        assert stage("2/two", "ann", 1) is OverLimit
        assert stage("2/three", "ann") is OverLimit
        assert stage("1/two", "anna") is True
        assert stage("1/one", "ann%") is True
        assert stage("1/one", "ANN") is True
        assert stage("2/three", "ann", most=None) is True
        assert stage("2/four", "ann") is OverLimit
        do(store, *(Unstage(jobs_of("ann") + job) for job in ("1/one", "2/three")))
        assert stage("2/four", "ann") is True
        clock.advance(1000)
        do_one(store, ExpireStages(clock.ticks, 100))
        assert stage("2/four", "ann") is True

    def test_an_owner_that_stages_too_much_is_told_when_to_retry(self, store: Store) -> None:
        outcome = attempt(store, Stage(jobs_of("ann") + "j", 0, "x", 0, (unit("a", some(1)),), MIB, 1000, "ann", 1))
        assert isinstance(outcome, OverLimit)
        assert (outcome.principal, outcome.limit, outcome.maximum) == ("ann", "staged_bytes_max", 1)
        assert outcome.retry_after_ms > 0
