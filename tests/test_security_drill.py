"""The drill of docs/security.md: credentials are made, rotated and revoked, and a lost administrator comes back."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx
import pytest

import penstock
from penstock.errors import NotAllowed, NotAuthenticated, PenstockError
from penstock.model.times import datetime_of
from tests.cli.support import Done, run, variables
from tests.gates.serving import Served, until
from tests.postgres import Schemas
from tests.shared.serving import SharedServer

ENDED_S_MAX: Final = 3.0
"""A second, and what a busy machine adds."""
EVENT: Final = penstock.event("Placed", {"amount": 42})


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_TOKEN", raising=False)


def given(url: str | None, token: str) -> dict[str, str]:
    """The environment of a command."""
    return variables(url, PENSTOCK_TOKEN=token)


def access(*words: object, url: str | None = None, token: str = "") -> Done:
    done = run("access", *words, env=given(url, token))
    assert done.code == 0, done.err
    return done


def token_of(done: Done) -> str:
    """The token is all that goes to standard output."""
    (line,) = done.out.splitlines()
    assert line not in done.err
    return line


def works(url: str, token: str) -> bool:
    """Whether a token lets a client in; its own client, as one that starts now."""
    try:
        with penstock.connect(url, token=token) as client:
            client.append("shop", "order-1", [EVENT])
    except NotAuthenticated:
        return False
    return True


def waiting(server: Served, token: str) -> float:
    """How many long polls wait."""
    headers = {"authorization": f"Bearer {token}"}
    text = httpx.get(f"http://{server.http}/metrics", headers=headers, timeout=30).text
    (value,) = re.findall(r"^penstock_waiting_polls (\S+)$", text, re.MULTILINE)
    return float(value)


class Poll:
    """A client in a thread that waits for events which never come."""

    def __init__(self, url: str, token: str) -> None:
        self.error: BaseException | None = None
        self.ended: float | None = None
        self.client = penstock.connect(url, token=token)
        self.thread = threading.Thread(target=self._wait)
        self.thread.start()

    def _wait(self) -> None:
        try:
            while True:
                self.client.read_page(1, context="shop", filter="none", wait=60)
        except PenstockError as error:
            self.error = error
        self.ended = time.monotonic()

    def end_after(self, started: float) -> None:
        """It has ended with the right error, soon after a time."""
        self.thread.join(30)
        assert isinstance(self.error, NotAuthenticated), self.error
        assert self.ended is not None
        assert self.ended - started < ENDED_S_MAX
        self.client.close()


@pytest.fixture
def polls() -> Iterator[Callable[[str, str], Poll]]:
    made: list[Poll] = []

    def begin(url: str, token: str) -> Poll:
        made.append(Poll(url, token))
        return made[-1]

    yield begin
    for poll in made:
        poll.client.close()
        poll.thread.join(30)


def test_the_drill(tmp_path: Path, polls: Callable[[str, str], Poll]) -> None:
    data = tmp_path / "data"
    admin = token_of(access("init", "--data", data))
    with Served(data, "--workers", "1") as server:
        url = f"penstock://{server.mq}"
        shop = token_of(access("add", "shop", "read,append:shop", "--label", "first", url=url, token=admin))
        assert works(url, shop)
        with penstock.connect(url, token=shop) as client, pytest.raises(NotAllowed):
            client.append("billing", "invoice-1", [EVENT])

        # Rotated: the old token works until the grace is over, the new one from now on.
        rotated = access("rotate", "shop", "--grace", "4s", "--label", "second", url=url, token=admin)
        new = token_of(rotated)
        assert "its other tokens end at" in rotated.err
        polling = polls(url, shop)
        assert works(url, shop)
        assert works(url, new)
        with penstock.connect(url, token=admin) as client:
            (end,) = [one.expires for one in client.access.credentials("shop") if one.label == "first"]
        assert end is not None
        until(lambda: not works(url, shop))
        assert datetime.now(UTC) >= datetime_of(end)
        polling.end_after(time.monotonic())
        assert works(url, new)
        assert "(expired)" in access("show", "shop", url=url, token=admin).out

        # After a leak there is no grace.
        newer = token_of(access("rotate", "shop", "--grace", "0", url=url, token=admin))
        assert not works(url, new)
        assert works(url, newer)

        # Revoked: what waits ends within a second.
        polling = polls(url, newer)
        until(lambda: waiting(server, admin) == 1)
        access("revoke", "shop", url=url, token=admin)
        polling.end_after(time.monotonic())
        assert not works(url, newer)
        assert "shop" not in access("list", url=url, token=admin).out

        # The administrator's token is lost, and a server has the store.
        refused = run("access", "init", "--data", data)
        assert refused.code == 1
        assert "stop it and run this again, or connect to it with --url" in refused.err

    again = token_of(access("init", "--data", data))
    with Served(data, "--workers", "1") as server:
        url = f"penstock://{server.mq}"
        assert access("whoami", "--json", url=url, token=again).out.count('"admin"') == 1
        # The old one was only lost, so it goes on until it is rotated.
        kept = token_of(access("rotate", "admin", "--grace", "0", url=url, token=again))
        assert not works(url, admin)
        assert not works(url, again)
        audit = run("read", "$audit", "access", "--json", env=given(url, kept)).lines
        assert [(entry["type"], entry["body"]["by"]) for entry in audit] == [
            ("principal-changed", "anonymous"),
            ("token-issued", "anonymous"),
            ("principal-changed", "admin"),
            ("token-issued", "admin"),
            ("token-issued", "admin"),
            ("token-issued", "admin"),
            ("principal-revoked", "admin"),
            ("token-issued", "anonymous"),
            ("token-issued", "admin"),
        ]


def test_two_servers_of_a_postgresql_agree(tmp_path: Path, schemas: Schemas, polls: Callable[[str, str], Poll]) -> None:
    store = schemas.url()
    with SharedServer(tmp_path / "one.log", store) as one, SharedServer(tmp_path / "two.log", store) as two:
        # The servers run meanwhile, and close at once.
        admin = token_of(access("init", "--store", store))
        for server in (one, two):
            until(lambda server=server: _is_closed(server.url))  # type: ignore[misc]
        shop = token_of(access("add", "shop", "read,append:shop", url=one.url, token=admin))
        until(lambda: works(two.url, shop))
        polling = polls(two.url, shop)
        assert works(one.url, shop)
        access("revoke", "shop", url=one.url, token=admin)
        polling.end_after(time.monotonic())
        assert not works(two.url, shop)
        # A lost administrator comes back beside running servers.
        again = token_of(access("init", "--store", store))
        until(lambda: "admin" in run("access", "whoami", env=given(two.url, again)).out)


def test_a_leaked_token_makes_no_other_one_on_a_second_server_once_it_is_rotated(
    tmp_path: Path, schemas: Schemas
) -> None:
    store = schemas.url()
    with SharedServer(tmp_path / "one.log", store) as one, SharedServer(tmp_path / "two.log", store) as two:
        leaked = token_of(access("init", "--store", store))
        for server in (one, two):
            until(lambda server=server: _is_closed(server.url))  # type: ignore[misc]
        made: list[str] = []

        def steal() -> None:
            with penstock.connect(two.url, token=leaked) as thief, suppress(PenstockError):
                while True:
                    made.append(thief.access.issue_token("admin").id)

        stealing = threading.Thread(target=steal)
        stealing.start()
        until(lambda: len(made) > 10)
        with penstock.connect(one.url, token=leaked) as client:
            kept = client.access.issue_token("admin", rotate=0)
        stealing.join(30)
        assert not stealing.is_alive()
        with penstock.connect(one.url, token=kept.token) as client:
            assert [one.id for one in client.access.credentials("admin") if one.expires is None] == [kept.id]


def _is_closed(url: str) -> bool:
    with penstock.connect(url, token="") as client:
        return client.whoami().is_closed
