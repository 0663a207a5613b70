"""Principals and their credentials, for administrators."""

from collections.abc import Iterable
from datetime import datetime

from penstock import model
from penstock.client.calls import Calls
from penstock.errors import InvalidRequest
from penstock.model import NO_LIMITS, Done, Limits, grants_of, ticks_of_time


class AsyncAccess:
    """The principals of a store, their grants and credentials. All calls need the right `admin` everywhere."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def put(self, name: str, grants: Iterable[str], *, limits: Limits = NO_LIMITS, force: bool = False) -> None:
        """Make a principal, or replace the grants and limits of one. Its credentials stay.

        A grant is `RIGHTS:WHERE`, as in `read,append:shop`. Raises LastAdministrator if no principal would have the
        right `admin` everywhere any more, unless `force`.
        """
        if isinstance(grants, str):
            raise InvalidRequest("grants", f"are {grants!r}: put them into a list")
        texts = tuple(map(str, grants_of(grants)))
        await self._calls.ask(model.PutPrincipal(name, texts, limits, force), Done)

    async def revoke(self, name: str, *, force: bool = False) -> None:
        """Delete a principal with all its credentials; its connections end. Raises PrincipalNotFound.

        The last one with the right `admin` everywhere is LastAdministrator, unless `force`.
        """
        await self._calls.ask(model.DropPrincipal(name, force), Done)

    async def issue_token(
        self, principal: str, *, label: str = "", expires: datetime | None = None, rotate: float | None = None
    ) -> model.IssuedToken:
        """Make a token. The server cannot show it again. With `rotate`, other tokens of it end after so many seconds.

        The client does not retry it: a token whose answer was lost stays, and its principal may be given another.
        """
        ends = None if rotate is None else int(rotate)
        return await self._calls.ask(model.IssueToken(principal, label, _ticks(expires), ends), model.IssuedToken)

    async def add_credential(
        self, principal: str, credential: str, *, label: str = "", expires: datetime | None = None
    ) -> None:
        """Let a client certificate or a key of CURVE stand for a principal.

        `credential` is `certificate:NAME`, `certificate:sha256:HEX` or `curve:KEY`.
        """
        await self._calls.ask(model.AddCredential(principal, credential, label, _ticks(expires)), Done)

    async def revoke_credential(self, credential: str) -> None:
        """Revoke one credential, by its id: a token's is its part before the dot."""
        await self._calls.ask(model.DropCredential(credential), Done)

    async def principals(self) -> list[model.PrincipalInfo]:
        """All principals by name."""
        return await self._calls.list_all(model.ListPrincipals(), "name")

    async def credentials(self, principal: str | None = None) -> list[model.Credential]:
        """The credentials of a principal, or all, without what proves them. Raises PrincipalNotFound."""
        return await self._calls.list_all(model.ListCredentials(principal), "id")


def _ticks(time: datetime | None) -> int | None:
    return None if time is None else ticks_of_time(time, "expires")
