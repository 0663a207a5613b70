"""Access: which clients authenticate, and where each principal may do what.

Principals come from the store, or from a file if `access_file` names one. The engine keeps them in memory, so it reads
nothing to authenticate a client or to check a right. It learns of changes from its own writes, from other servers'
notices and, in case these do not arrive, from a look at the store or the file every half second.

A store that never had a principal is *open*: every client may do everything. Its first principal closes it for good.
"""

import asyncio
import hmac
import logging
import secrets
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.engine import jobs
from penstock.engine.access_file import AccessFile, FileAccess
from penstock.engine.audit import Audit
from penstock.engine.context import Caller, EngineContext, check_names
from penstock.engine.traffic import CURRENT
from penstock.errors import (
    InvalidRequest,
    NotAllowed,
    NotAuthenticated,
    OverLimit,
    PenstockError,
    PrincipalNotFound,
)
from penstock.model import ANONYMOUS, Credential, CredentialKind, Grant, Principal, Right, View, now_ticks
from penstock.model.access import check_credential, check_label, check_principal, is_administrator
from penstock.model.address import TOKEN_CHARACTERS_MAX
from penstock.model.requests import Place, Reach, Request
from penstock.model.times import TICKS_PER_SECOND
from penstock.settings import Settings
from penstock.store import Store, contract

log = logging.getLogger(__name__)

OWN_CHANGE_S: Final = 0.25
"""How long a sender that has changed its own rights goes on, to get its answer and to send what follows from it."""
CHECK_S: Final = 0.5
"""How often the engine looks for expired credentials, and for changes without a notice."""
TOKEN_BYTES: Final = 32
TOKEN_ID_BYTES: Final = 9
ROTATE_S_MAX: Final = 7 * 24 * 3600
DECIDED_MAX: Final = 1024
"""Decisions that the server remembers for a principal. A name has a kilobyte at most."""
RETRY_MS: Final = 1000
"""How long a client should wait after a refusal by a limit that is not per second, such as `polls_max`."""

NOBODY: Final = Principal("nobody", ())
"""Stands for all clients that have not authenticated at a server with principals."""
UNKNOWN: Final = "the token is not valid here: it is wrong, or it was revoked; ask an administrator for another"
NEEDED: Final = (
    "this server has principals, and this connection has not authenticated: connect with a token "
    "(penstock.connect(url, token=…), --token or PENSTOCK_TOKEN)"
)


class NewToken(NamedTuple):
    id: str
    token: str
    proof: str
    """The SHA-256 of the secret: the store or the file keeps only this."""


def new_token() -> NewToken:
    number, secret = secrets.token_hex(TOKEN_ID_BYTES), secrets.token_urlsafe(TOKEN_BYTES)
    return NewToken(number, f"{number}.{secret}", sha256(secret.encode()).hexdigest())


def authorize(principal: Principal, request: Request, needed: Right) -> View | None:
    """The part of the store that a request of this principal may use. Raises NotAllowed or NotAuthenticated.

    The engine calls it if the principal does not have the needed right everywhere.
    """
    if request.reach is Reach.STREAM:
        return _stream(principal, request.context, request.stream, needed)  # type: ignore[attr-defined]
    if request.reach is Reach.LOG:
        return _stream(principal, model.LOG_CONTEXT, request.log, needed)  # type: ignore[attr-defined]
    if principal is NOBODY:
        raise NotAuthenticated(NEEDED)
    if needed & ~principal.rights or request.reach is Reach.STORE:
        raise NotAllowed(principal.name, needed.words)
    reach, views = request.reach, principal.views
    if reach is Reach.EACH:
        for place in request.places():
            _check(principal, place.right or needed, place)
    elif reach is Reach.FILTER:
        context, prefix = request.context, getattr(request, "filter", "")  # type: ignore[attr-defined]
        prefix = "" if prefix == "*" else prefix
        if not views[needed].meets_filter(context, prefix):
            raise NotAllowed(principal.name, needed.words, shown(context, f"{prefix}*"))
    return views.get(Right.CONSUME if needed & Right.CONSUME else needed)


def _stream(principal: Principal, context: str, stream: str, needed: Right) -> View:
    """As `authorize`, for a request about one stream or log. Most requests are, and often about the same ones."""
    # Flags are slow to hash and to combine.
    decision = needed._value_, context, stream
    if (view := principal.decided.get(decision)) is not None:
        return view
    if principal is NOBODY:
        raise NotAuthenticated(NEEDED)
    if needed._value_ & ~principal.rights._value_:
        raise NotAllowed(principal.name, needed.words)
    view = principal.views[needed]
    if not view.has_stream(context, stream):
        raise NotAllowed(principal.name, needed.words, shown(context, stream))
    if len(principal.decided) >= DECIDED_MAX:
        principal.decided.clear()
    principal.decided[decision] = view
    return view


def own_mark(principal: Principal, request: Request) -> Request:
    """A request whose mark and keys belong to its principal alone, because that may not append everywhere.

    Otherwise a mark would show where another principal has written, and could keep that one from writing.
    """
    mark, keys = getattr(request, "mark", None), getattr(request, "keys", ())
    if mark is None and not keys:
        return request
    owner = f"~{principal.name}/"
    if keys:
        request = replace(request, keys=tuple(replace(key, owner=owner) for key in keys))  # type: ignore[type-var]
    return request if mark is None else replace(request, mark=replace(mark, owner=owner))  # type: ignore[type-var]


def _check(principal: Principal, right: Right, place: Place) -> None:
    view, (context, stream, is_filter, _) = principal.views[right], place
    prefix = "" if stream == "*" else stream
    if not (view.has_filter(context, prefix) if is_filter else view.has_stream(context, stream)):
        raise NotAllowed(principal.name, right.words, shown(context, prefix + "*" if is_filter else stream))


def shown(context: str | None, stream: str) -> str:
    return f"{'*' if context is None else context}/{stream}"


# --- connected senders -----------------------------------------------------------------------------------------


class Usage:
    """The requests, bytes, connections and polls of one principal on this server, and when it may send more."""

    __slots__ = ("busy", "bytes", "bytes_until", "connections", "over", "polls", "requests", "requests_until")

    def __init__(self) -> None:
        self.requests = self.bytes = self.busy = 0
        self.over: Counter[str] = Counter()
        """How often the principal was over each of its limits."""
        self.connections = self.polls = 0
        # Each request adds its share of a second to these times. They may be a second ahead of the clock.
        self.requests_until = self.bytes_until = 0.0


class Login:
    """A sender on a connection, and the principal that it is.

    `ended` is called when the principal was revoked or changed, or the credential has expired.
    """

    __slots__ = ("credential", "ended", "ends_at", "expires", "principal", "refusal", "usage")

    def __init__(
        self,
        principal: Principal,
        usage: Usage,
        credential: Credential | None = None,
        ended: Callable[["Login"], None] | None = None,
    ) -> None:
        self.principal = principal
        self.usage = usage
        self.credential = credential
        """The credential that it showed; None if its gate decides which principal it is."""
        self.expires = None if credential is None else credential.expires
        self.ended = ended
        self.ends_at: float | None = None
        """When it ends because it has changed its own rights (`time.monotonic`)."""
        self.refusal: OverLimit | None = None
        """The answer to all its requests but a token, while its principal may have no other connection."""

    def admit(self, size: int, requests: int = 1) -> OverLimit | None:
        """Count a message of so many bytes and requests. Returns the error if the principal must wait."""
        usage, limits = self.usage, self.principal.limits
        usage.requests += requests
        usage.bytes += size
        requests_max, bytes_max = limits.requests_per_s_max, limits.bytes_per_s_max
        if requests_max is None and bytes_max is None:
            return None
        now = time.monotonic()
        refusal = self._over(now, "requests_per_s_max", requests_max, usage.requests_until)
        refusal = refusal or self._over(now, "bytes_per_s_max", bytes_max, usage.bytes_until)
        if refusal is not None:
            return refusal
        if requests_max is not None:
            usage.requests_until = max(usage.requests_until, now) + requests / requests_max
        if bytes_max is not None:
            usage.bytes_until = max(usage.bytes_until, now) + size / bytes_max
        return None

    def begin_polls(self, polls: int) -> OverLimit | None:
        """Count the long polls of a message, until `end_polls`. Returns the error if the principal has too many."""
        maximum = self.principal.limits.polls_max
        if maximum is not None and self.usage.polls + polls > maximum:
            return self.refuse("polls_max", maximum)
        self.usage.polls += polls
        return None

    def end_polls(self, polls: int) -> None:
        self.usage.polls -= polls

    def _over(self, now: float, limit: str, maximum: int | None, until: float) -> OverLimit | None:
        if maximum is None or until <= now + 1:
            return None
        return self.refuse(limit, maximum, max(1, round(1000 * (until - now - 1))))

    def refuse(self, limit: str, maximum: int, retry_after_ms: int = RETRY_MS) -> OverLimit:
        self.usage.busy += 1
        self.usage.over[limit] += 1
        return OverLimit(0, self.principal.name, limit, maximum, retry_after_ms)


class Known(NamedTuple):
    """All principals and credentials, as they are now."""

    version: int
    principals: dict[str, Principal]
    credentials: dict[str, Credential]

    @classmethod
    def of(cls, state: contract.AccessState) -> "Known":
        principals = {}
        for info in state.principals:
            try:
                grants = tuple(map(Grant.of, info.grants))
            except InvalidRequest as error:
                # A later version wrote them, or they are damaged: without grants the principal may do nothing.
                log.warning("the grants of principal %s are not understood, so it has none: %s", info.name, error)
                grants = ()
            principals[info.name] = Principal(info.name, grants, info.limits, info.changed)
        return cls(state.version, principals, {one.id: one for one in state.credentials})


class Access:
    """All principals of a server, and the senders that are logged in."""

    def __init__(self, settings: Settings) -> None:
        self._file = None if settings.access_file is None else AccessFile(settings.access_file)
        self._known = Known(0, {}, {})
        self.usage: defaultdict[str, Usage] = defaultdict(Usage)
        """By the principal's name. Only administrators make names, so their number is bounded."""
        self.used: dict[str, int] = {}
        """When each credential was last shown to this server (ticks), by its id."""
        self._logins: dict[str, set[Login]] = {}
        self._context: EngineContext | None = None
        self._is_in_doubt = False
        """Whether the store may have a change that the server answered with an error."""
        self._watching: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None

    def start(self, context: EngineContext, state: contract.AccessState) -> None:
        """Take the principals of the store, or of the file. Raises InvalidRequest if it cannot read the file."""
        self._context = context
        self._known = Known.of(state if self._file is None else _state_of(self._file.read()))
        self._watching = asyncio.get_running_loop().create_task(self._watch())

    def stop(self) -> None:
        for task in (self._watching, self._looking):
            if task is not None:
                task.cancel()

    @property
    def is_closed(self) -> bool:
        """Whether there are principals, so that all other clients may do nothing."""
        return self._known.version > 0

    @property
    def is_from_file(self) -> bool:
        return self._file is not None

    def principal(self, name: str) -> Principal | None:
        return self._known.principals.get(name)

    def has_credential(self, name: str) -> bool:
        return name in self._known.credentials

    # -- authentication

    def arrive(self, fixed: str | None, ended: Callable[[Login], None], ids: Iterable[str] = ()) -> Login:
        """A sender that has shown no token: the principal of a verified certificate or key, else that of its gate.

        `ids` are those that the certificate or key may have here. If the principal has too many connections, the
        sender is NOBODY, and `refusal` says why.
        """
        if not self.is_closed:
            return self._enter(Login(ANONYMOUS, self.usage[ANONYMOUS.name], ended=ended))
        try:
            if (shown := self._known_of(ids)) is not None:
                return self._by(shown, ended)
            if fixed is not None and (found := self.principal(fixed)) is not None:
                return self._enter_limited(Login(found, self.usage[found.name], ended=ended))
        except OverLimit as error:
            login = self._nobody(ended)
            login.refusal = error
            return login
        return self._nobody(ended)

    def _nobody(self, ended: Callable[[Login], None]) -> Login:
        return self._enter(Login(NOBODY, self.usage[NOBODY.name], ended=ended))

    def by_token(self, token: str, ended: Callable[[Login], None], before: Login | None = None) -> Login:
        """A sender that shows a token, which an open server ignores. It takes the place of `before`.

        Raises NotAuthenticated, or OverLimit if the principal has too many connections.
        """
        return self._by(self._credential(token), ended, before) if self.is_closed else self.arrive(None, ended)

    def for_one_request(
        self,
        token: str | None,
        fixed: str | None,
        ids: Iterable[str] = (),
        ended: Callable[[Login], None] | None = None,
    ) -> Login:
        """The sender of a request that belongs to no session, as over HTTP: by a token, else by one of the credentials.

        With `ended`, which is called when it ends, it counts as a connection until it leaves. Raises NotAuthenticated,
        or OverLimit if the principal has too many connections.
        """
        credential = None
        if self.is_closed:
            credential = self._known_of(ids) if token is None else self._credential(token)
            fixed = fixed if credential is None else credential.principal
        known = NOBODY if fixed is None else self.principal(fixed) or NOBODY
        found = known if self.is_closed else ANONYMOUS
        if (trace := CURRENT.get()) is not None:
            trace.principal = found.name
        login = Login(found, self.usage[found.name], credential, ended)
        return login if ended is None else self._enter_limited(login)

    def by_credential(self, shown: Credential, ended: Callable[[Login], None] | None = None) -> Login:
        """The sender of a request whose session began with a credential, as it is now; with `ended` as above.

        Raises NotAuthenticated once the credential or its principal is revoked, or has expired.
        """
        found = self._known.credentials.get(shown.id)
        if found is None or found.proof != shown.proof or (found.expires is not None and found.expires <= now_ticks()):
            raise NotAuthenticated(UNKNOWN)
        principal = self._known.principals.get(found.principal)
        if principal is None:
            raise NotAuthenticated(UNKNOWN)
        self.used[found.id] = now_ticks()
        if (trace := CURRENT.get()) is not None:
            trace.principal = principal.name
        login = Login(principal, self.usage[principal.name], found, ended)
        return login if ended is None else self._enter_limited(login)

    def _credential(self, token: str) -> Credential:
        if len(token) > TOKEN_CHARACTERS_MAX:
            # A client without a token may send megabytes: do not spend a digest on them.
            raise NotAuthenticated(UNKNOWN)
        name, _, secret = token.partition(".")
        found = self._known.credentials.get(name)
        proof = sha256(secret.encode(errors="replace")).hexdigest()
        if found is None or found.kind != CredentialKind.TOKEN or not hmac.compare_digest(proof, found.proof):
            raise NotAuthenticated(UNKNOWN)
        if found.expires is not None and found.expires <= now_ticks():
            raise NotAuthenticated(
                f"the token {found.id} has expired; an administrator makes another with penstock access rotate"
            )
        self.used[found.id] = now_ticks()
        return found

    def knows(self, ids: Iterable[str]) -> bool:
        """Whether a certificate or key stands for a principal."""
        return self._known_of(ids) is not None

    def _known_of(self, ids: Iterable[str]) -> Credential | None:
        for name in ids:
            found = self._known.credentials.get(name)
            if found is None or found.kind == CredentialKind.TOKEN or found.principal not in self._known.principals:
                continue
            if found.expires is None or found.expires > now_ticks():
                self.used[found.id] = now_ticks()
                return found
        return None

    def _by(self, credential: Credential, ended: Callable[[Login], None], before: Login | None = None) -> Login:
        principal = self._known.principals.get(credential.principal)
        if principal is None:
            raise NotAuthenticated(UNKNOWN)
        return self._enter_limited(Login(principal, self.usage[principal.name], credential, ended), before)

    def _enter_limited(self, login: Login, before: Login | None = None) -> Login:
        maximum = login.principal.limits.connections_max
        others = login.usage.connections - (before is not None and before.usage is login.usage)
        if maximum is not None and others >= maximum:
            raise login.refuse("connections_max", maximum)
        return self._enter(login)

    def _enter(self, login: Login) -> Login:
        self._logins.setdefault(login.principal.name, set()).add(login)
        login.usage.connections += 1
        return login

    def leave(self, login: Login) -> None:
        """The sender is gone, or another principal now."""
        logins = self._logins.get(login.principal.name, set())
        if login in logins:
            logins.discard(login)
            login.usage.connections -= 1
            if not logins:
                del self._logins[login.principal.name]

    def identity(self, login: Login) -> model.Identity:
        return self.identity_of(login.principal, login.expires)

    def identity_of(self, principal: Principal, expires: int | None = None) -> model.Identity:
        grants = tuple(map(str, principal.grants))
        return model.Identity(principal.name, grants, expires, self.is_closed, principal.may(Right.READ))

    # -- changes

    def file_state(self) -> contract.AccessState | None:
        return None if self._file is None else _state_of(self._file.found)

    async def change(self, transaction: tuple[contract.Operation, ...], sender: Login | None) -> None:
        """Write a change. It holds when it is on disk: the writer returns the principals with it.

        The workers do not read them: a principal could keep the workers busy, to delay its own revocation.
        """
        assert self._context is not None
        try:
            *_, found = await self._context.write(contract.Transaction((*transaction, contract.ReadAccess())))
        except PenstockError:
            # The change may be on disk in spite of the error.
            self._is_in_doubt = True
            raise
        self._take(found, sender)

    async def reload(self) -> None:
        """Read the principals again, since another server has changed them."""
        assert self._context is not None
        if self._file is None:
            self._take(await self._context.apply(contract.ReadAccess()))

    def _take(self, found: Any, sparing: Login | None = None) -> None:
        """End the senders whose credentials or rights have changed.

        The sender `sparing` ends a moment later, so that it gets the answer to its change.
        """
        assert isinstance(found, contract.AccessState)
        if found.version > self._known.version:
            self._replace(Known.of(found), sparing)

    def _replace(self, known: Known, sparing: Login | None = None) -> None:
        for name, usage in self.usage.items():
            before, now = self._known.principals.get(name), known.principals.get(name)
            if before is None or now is None or before.limits != now.limits:
                # The old limits decided how long it has to wait.
                usage.requests_until = usage.bytes_until = 0.0
        self._known = known
        self.used = {name: used for name, used in self.used.items() if name in known.credentials}
        self._end_stale(sparing)

    def _end_stale(self, sparing: Login | None = None) -> None:
        now, clock = now_ticks(), time.monotonic()
        for login in [login for logins in self._logins.values() for login in logins]:
            if self._is_current(login, now):
                continue
            if login is sparing and login.ends_at is None:
                # Once only: a sender that changes its rights again and again ends, too.
                login.ends_at = clock + OWN_CHANGE_S
            if login.ends_at is None or login.ends_at <= clock:
                self.leave(login)
                # Its requests that have not begun yet do not begin any more.
                login.principal = NOBODY
                if login.ended is not None:
                    try:
                        login.ended(login)
                    except Exception:
                        # This sender has no rights in any case, and the others must end, too.
                        log.exception("a sender could not be ended")

    def _is_current(self, login: Login, now: int) -> bool:
        if login.principal is ANONYMOUS:
            return not self.is_closed
        if login.principal is NOBODY:
            return self.is_closed
        if self._known.principals.get(login.principal.name) != login.principal:
            return False
        shown = login.credential
        if shown is None:
            return True
        found = self._known.credentials.get(shown.id)
        return (
            found is not None
            # A file can give another token the same id.
            and (found.principal, found.proof) == (shown.principal, shown.proof)
            and (found.expires is None or found.expires > now)
        )

    async def _watch(self) -> None:
        """End senders whose credentials have expired, on time, also while a read of the principals fails or hangs."""
        while True:
            await asyncio.sleep(CHECK_S)
            self._end_stale()
            if self._looking is None or self._looking.done():
                self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        """Learn of changes without a notice."""
        assert self._context is not None
        try:
            if self._file is not None:
                if (changed := self._file.changed()) is not None:
                    log.info("%s has changed: %d principals", self._file.path, len(changed.principals))
                    self._replace(Known.of(_state_of(changed, self._known.version + 1)))
            elif self._context.others.is_shared or self._is_in_doubt:
                self._is_in_doubt = False
                found = await self._context.pool.run_first(jobs.changed_access, self._known.version)
                if found is not None:
                    self._take(found)
        except PenstockError as error:
            self._is_in_doubt = True
            log.warning("the principals could not be read again; those of before hold: %s", error)
        except Exception:
            log.exception("the principals could not be read again; those of before hold")


def _state_of(file: FileAccess, version: int = 1) -> contract.AccessState:
    return contract.AccessState(version, file.principals, file.credentials)


# --- requests of administrators ---------------------------------------------------------------------------------


class AccessRequests:
    """Changes of principals. Each is written with its entry in the audit, and holds here before its answer."""

    def __init__(self, context: EngineContext, access: Access, audit: Audit) -> None:
        self._context = context
        self._access = access
        self._audit = audit

    async def put(self, request: model.PutPrincipal, caller: Caller) -> model.Done:
        _check_principal(request.name)
        grants = model.grants_of(request.grants)
        texts = tuple(map(str, grants))
        if not self._access.is_closed and not is_administrator(texts):
            raise InvalidRequest(
                "principal",
                f"{request.name} would be the first, and could make no other: the first one needs the right admin "
                "everywhere; penstock access init makes it",
            )
        for name in model.Limits.__slots__:
            maximum = getattr(request.limits, name)
            if maximum is not None and maximum < 1:
                raise InvalidRequest(name, f"is {maximum}; it must be at least 1, or not there")
        facts = {"principal": request.name, "grants": list(texts), "limits": request.limits}
        made = contract.StorePrincipal(request.name, texts, request.limits, keeps_admin=not request.force)
        await self._write(caller, "principal-changed", facts, made)
        return model.Done()

    async def drop(self, request: model.DropPrincipal, caller: Caller) -> model.Done:
        # For a known principal ask no worker: its own requests may keep the workers busy.
        if self._access.principal(request.name) is None and all(
            one.name != request.name for one in (await self._state()).principals
        ):
            raise PrincipalNotFound(request.name)
        removed = contract.RemovePrincipal(request.name, keeps_admin=not request.force)
        await self._write(caller, "principal-revoked", {"principal": request.name}, removed)
        return model.Done()

    async def issue(self, request: model.IssueToken, caller: Caller) -> model.IssuedToken:
        self._check_credential(request.principal, request.label, request.expires)
        if request.rotate is not None and not 0 <= request.rotate <= ROTATE_S_MAX:
            raise InvalidRequest("rotate", f"is {request.rotate} seconds; it must be from 0 to {ROTATE_S_MAX}")
        (number, token, proof), now = new_token(), now_ticks()
        made = Credential(number, request.principal, CredentialKind.TOKEN, proof, request.label, now, request.expires)
        operations: list[contract.Operation] = [contract.StoreCredential(made)]
        facts: dict[str, object] = {"principal": request.principal, "credential": number, "label": request.label}
        if request.rotate is not None:
            until = now + request.rotate * TICKS_PER_SECOND
            operations.append(contract.ExpireCredentials(request.principal, CredentialKind.TOKEN, until, number))
            facts["others_end_after_s"] = request.rotate
        await self._write(caller, "token-issued", facts, *operations)
        return model.IssuedToken(number, token, request.expires)

    async def add(self, request: model.AddCredential, caller: Caller) -> model.Done:
        self._check_credential(request.principal, request.label, request.expires)
        kind, _, name = request.id.partition(":")
        if kind not in (CredentialKind.CERTIFICATE, CredentialKind.CURVE) or not name:
            raise InvalidRequest(
                "credential", f"is {request.id!r}; it must be certificate:NAME, certificate:sha256:HEX or curve:KEY"
            )
        check_names(credential=request.id)
        if reason := check_credential(kind, name):
            raise InvalidRequest("credential", reason)
        made = Credential(request.id, request.principal, kind, "", request.label, now_ticks(), request.expires)
        facts = {"principal": request.principal, "credential": request.id, "label": request.label}
        await self._write(caller, "credential-added", facts, contract.StoreCredential(made))
        return model.Done()

    async def remove(self, request: model.DropCredential, caller: Caller) -> model.Done:
        if not self._access.has_credential(request.id) and all(
            one.id != request.id for one in (await self._state()).credentials
        ):
            raise InvalidRequest("credential", f"{request.id!r} is not known; penstock access show NAME lists them")
        await self._write(
            caller, "credential-revoked", {"credential": request.id}, contract.RemoveCredential(request.id)
        )
        return model.Done()

    async def principals(self, request: model.ListPrincipals, limit: int) -> model.ListPage[model.PrincipalInfo]:
        state = await self._state()
        found = [one for one in state.principals if one.name > request.after]
        return model.ListPage(found[:limit], len(found) <= limit)

    async def credentials(self, request: model.ListCredentials, limit: int) -> model.ListPage[Credential]:
        state = await self._state()
        if request.principal is not None and all(one.name != request.principal for one in state.principals):
            raise PrincipalNotFound(request.principal)
        found = [
            one for one in state.credentials if one.id > request.after and request.principal in (None, one.principal)
        ]
        return model.ListPage(found[:limit], len(found) <= limit)

    async def who_am_i(self, _request: model.WhoAmI, caller: Caller) -> model.Identity:
        return self._access.identity_of(caller.principal)

    async def _state(self) -> contract.AccessState:
        state = self._access.file_state()
        if state is None:
            state = await self._context.pool.run(jobs.ask_store, Store.access)
        return contract.AccessState(
            state.version,
            sorted(state.principals, key=lambda one: one.name),
            sorted(state.credentials, key=lambda one: one.id),
        )

    async def _write(
        self, caller: Caller, what: str, facts: Mapping[str, object], *operations: contract.Operation
    ) -> None:
        if self._access.is_from_file:
            raise InvalidRequest(
                "access", "is decided by the file of the setting access_file; change that file instead"
            )
        entry = self._audit.entry(caller.principal, "access", what, facts, always=True)
        await self._access.change((*_still_allowed(caller), *operations, *entry), caller.sender)

    def _check_credential(self, principal: str, label: str, expires: int | None) -> None:
        _check_principal(principal)
        if reason := check_label(label):
            raise InvalidRequest("label", reason)
        if expires is not None and expires <= now_ticks():
            raise InvalidRequest("expires", "is in the past")


def _still_allowed(caller: Caller) -> tuple[contract.Operation, ...]:
    """What the writer checks before a change. A sender that another change has ended meanwhile may not undo that."""
    principal, sender = caller.principal, caller.sender
    if sender is None:
        return ()
    if principal is not ANONYMOUS:
        return (contract.RequireAdministrator(principal.name, sender.credential),)
    # The sender that made the first principal may still make its token.
    return () if sender.ends_at is not None else (contract.RequireAdministrator(None),)


def _check_principal(name: str) -> None:
    if reason := check_principal(name):
        raise InvalidRequest("principal", reason)
