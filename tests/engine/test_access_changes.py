"""Administrators change rights, their own too: they get the answer before their connection ends."""

import asyncio
from pathlib import Path

import pytest

from penstock.engine import Engine, access
from penstock.engine.access import NOBODY, Login
from penstock.engine.access_file import parsed
from penstock.errors import InvalidRequest, NotAuthenticated, OverLimit
from penstock.model import (
    ANONYMOUS,
    AUDIT_CONTEXT,
    AddCredential,
    Done,
    DropPrincipal,
    IssuedToken,
    IssueToken,
    Limits,
    Principal,
    PutPrincipal,
    ReadStream,
    Request,
    now_ticks,
)
from penstock.model.times import TICKS_PER_SECOND
from penstock.settings import Settings
from penstock.store import contract, store_url

SETTINGS = Settings(workers=1)


async def issued(engine: Engine, by: Principal, request: Request) -> str:
    token = await engine.execute(by, request)
    assert isinstance(token, IssuedToken)
    return token.token


async def test_who_rotates_its_own_token_gets_the_new_one_and_is_ended_then(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        ended, is_ended = list[Login](), asyncio.Event()

        def end(login: Login) -> None:
            ended.append(login)
            is_ended.set()

        mine = engine.access.by_token(await issued(engine, root, IssueToken("root")), end)
        made = await engine.execute(root, IssueToken("root", rotate=0), sender=mine)
        assert isinstance(made, IssuedToken)
        assert ended == []
        await asyncio.wait_for(is_ended.wait(), 30)
        assert ended == [mine]
        assert engine.access.by_token(made.token, end).principal == root


async def test_a_principal_that_another_revokes_is_ended_when_that_is_answered(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        await engine.execute(root, PutPrincipal("shop", ("read:shop",)))
        ended: list[Login] = []
        shop = engine.access.by_token(await issued(engine, root, IssueToken("shop")), ended.append)
        await engine.execute(root, DropPrincipal("shop"))
        assert ended == [shop]


async def test_who_is_revoked_cannot_stay_by_changing_its_own_rights(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        await engine.execute(root, PutPrincipal("other", ("all",)))
        ended, is_ended = list[Login](), asyncio.Event()

        def end(login: Login) -> None:
            ended.append(login)
            is_ended.set()

        other = engine.access.by_token(await issued(engine, root, IssueToken("other")), end)
        while not is_ended.is_set():
            # Each change begins a new time for its own connections, if it could.
            await engine.execute(other.principal, PutPrincipal("other", ("all",), force=True), sender=other)
            await asyncio.sleep(0.01)
        assert ended == [other]


async def test_after_a_leak_who_rotates_its_own_token_ends_the_connections_of_the_thief_at_once(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        leaked, ended = await issued(engine, root, IssueToken("root")), list[Login]()
        mine, thief = (engine.access.by_token(leaked, ended.append) for _ in range(2))
        await engine.execute(root, IssueToken("root", rotate=0), sender=mine)
        assert ended == [thief]
        with pytest.raises(NotAuthenticated):
            await engine.execute(thief.principal, IssueToken("root"), sender=thief)


async def test_a_sender_that_cannot_be_ended_is_nobody_and_does_not_keep_the_others(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        token, ended = await issued(engine, root, IssueToken("root")), list[Login]()

        def fail(login: Login) -> None:
            ended.append(login)
            raise AttributeError("its connection has not begun")

        senders = [engine.access.by_token(token, fail) for _ in range(3)]
        assert await engine.execute(root, PutPrincipal("root", ("admin",))) == Done()
        assert set(ended) == set(senders)
        assert {one.principal for one in senders} == {NOBODY}
        assert "a sender could not be ended" in caplog.text


@pytest.mark.parametrize("ends", ["credential", "rights", "principal"])
async def test_a_change_on_the_way_is_refused_if_another_server_has_ended_its_sender(ends: str, tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        await engine.execute(root, PutPrincipal("other", ("all",)))
        other = engine.access.by_token(await issued(engine, root, IssueToken("other")), lambda _: None)
        assert other.credential is not None
        change = {
            "credential": contract.RemoveCredential(other.credential.id),
            "rights": contract.StorePrincipal("other", ("read:*",), Limits()),
            "principal": contract.RemovePrincipal("other"),
        }[ends]
        # This server has not heard of it yet.
        await engine._context.apply(change)
        assert engine.access.principal("other") == other.principal
        before = await engine.execute(root, ReadStream(AUDIT_CONTEXT, "access"))
        for request in (IssueToken("root"), PutPrincipal("third", ("all",)), DropPrincipal("root", force=True)):
            with pytest.raises(NotAuthenticated, match="have just ended"):
                await engine.execute(other.principal, request, sender=other)
        assert await engine.execute(root, ReadStream(AUDIT_CONTEXT, "access")) == before


async def test_of_two_that_make_the_first_principal_at_once_one_does_and_gets_its_token(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        ended: list[Login] = []
        senders = [engine.access.arrive(None, ended.append) for _ in range(2)]
        made, refused = await asyncio.gather(
            *(
                engine.execute(ANONYMOUS, PutPrincipal(f"root-{number}", ("all",)), sender=one)
                for number, one in enumerate(senders)
            ),
            return_exceptions=True,
        )
        assert made == Done()
        assert isinstance(refused, NotAuthenticated)
        assert ended == senders[1:]
        token = await engine.execute(ANONYMOUS, IssueToken("root-0"), sender=senders[0])
        assert isinstance(token, IssuedToken)
        with pytest.raises(NotAuthenticated):
            await engine.execute(ANONYMOUS, IssueToken("root-0"), sender=senders[1])
        assert engine.access.principal("root-1") is None


async def test_a_credential_expires_on_time_although_the_principals_cannot_be_read(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        expires = now_ticks() + 3 * TICKS_PER_SECOND
        is_ended = asyncio.Event()
        engine.access.by_token(
            await issued(engine, root, IssueToken("root", expires=expires)), lambda _: is_ended.set()
        )
        never = asyncio.get_running_loop().create_future()
        assert engine.access._context is not None
        engine.access._context.pool.run_first = lambda *_: never  # type: ignore[method-assign]
        engine.access._is_in_doubt = True
        await asyncio.wait_for(is_ended.wait(), 30)
        assert now_ticks() >= expires


async def test_a_sender_with_the_last_connection_of_its_principal_can_show_another_token(tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        await engine.execute(root, PutPrincipal("shop", ("read:shop",), Limits(connections_max=1)))
        tokens = [await issued(engine, root, IssueToken("shop")) for _ in range(2)]
        before = engine.access.by_token(tokens[0], lambda _: None)
        with pytest.raises(OverLimit):
            engine.access.by_token(tokens[1], lambda _: None)
        assert engine.access.by_token(tokens[1], lambda _: None, before).principal.name == "shop"


@pytest.mark.parametrize(
    ("credential", "reason"),
    [
        (f"certificate:sha256:{'0F' * 32}", "a fingerprint is sha256: and 64 hexadecimal digits"),
        ("certificate:SHA256:00:ff", "a fingerprint is sha256: and 64 hexadecimal digits"),
        ("curve:short", "a public key of CURVE has 40 characters"),
    ],
)
async def test_a_credential_that_would_never_come_in_is_refused(credential: str, reason: str, tmp_path: Path) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        root = engine.access.principal("root")
        assert root is not None
        with pytest.raises(InvalidRequest, match=reason):
            await engine.execute(root, AddCredential("root", credential))
        for label in ("a\0b", "\x1b[2J", "two\nlines"):
            with pytest.raises(InvalidRequest, match="no control characters"):
                await engine.execute(root, IssueToken("root", label=label))
    kind, _, name = credential.partition(":")
    part = "curve_keys" if kind == "curve" else "certificates"
    with pytest.raises(InvalidRequest, match=reason):
        parsed({"principals": {"root": {"grants": ["all"], part: [name]}}})


async def test_what_is_too_long_for_a_token_is_refused_without_a_digest_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Engine(store_url(tmp_path), SETTINGS) as engine:
        await engine.execute(ANONYMOUS, PutPrincipal("root", ("all",)))
        monkeypatch.setattr(access, "sha256", None)
        with pytest.raises(NotAuthenticated, match="the token is not valid here"):
            engine.access.by_token("a." + "b" * 200, lambda _: None)


@pytest.mark.parametrize(
    ("ids", "reason"),
    [
        (("abc", "other", "abc"), "has the credential abc twice"),
        (("a.b",), "has the id 'a.b'; it is what comes before the point of a token"),
        (("certificate:ci.example",), "has the id 'certificate:ci.example'"),
    ],
)
def test_a_token_in_a_file_that_would_never_come_in_is_refused(ids: tuple[str, ...], reason: str) -> None:
    tokens = [{"id": one, "sha256": f"{number}" * 64} for number, one in enumerate(ids)]
    with pytest.raises(InvalidRequest, match=reason):
        parsed({"principals": {"ci": {"grants": ["all"], "tokens": tokens, "certificates": ["ci.example"]}}})
