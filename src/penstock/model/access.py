"""Access: the principal that a client is, what it may do, and where.

A *principal* has *grants*: rights and where they hold. A grant is written `RIGHTS:WHERE`:

    read,append:shop            in the context `shop`
    read:shop/order-*           of the streams of `shop` that begin with `order-`
    append:shop/order-1         of one stream
    read,append:log:visits      of one log; `log:v*` of those that begin with `v`
    read:*                      everywhere; so does `read`, without a place

In a context or stream, `%2F`, `%2A` and `%25` stand for a slash, a star and a percent sign.

A *credential* shows that a client is a principal: a token, a client certificate, or a key of CURVE.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Flag, auto
from functools import reduce
from operator import or_
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from penstock.errors import InvalidRequest

LOG_CONTEXT: Final = "remits"
"""Logs are streams of this context."""
AUDIT_CONTEXT: Final = "$audit"
"""Only the server writes to this context, and only the right `audit` shows it."""
GRANTS_MAX: Final = 100
"""Grants of one principal."""
LABEL_CHARACTERS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,100}")
_RESERVED: Final = dict.fromkeys(("anonymous", "nobody"), "clients without a principal") | {
    "files": "the owner of the store's files in the audit"
}
CURVE_KEY_CHARACTERS: Final = 40
_FINGERPRINT: Final = re.compile("sha256:[0-9a-f]{64}")
_LOG: Final = "log:"
_UNESCAPED: Final = "$!'()+,-.:;=@_~"
"""Characters that a grant shows as they are, in addition to letters and digits."""


class Right(Flag):
    READ = auto()
    APPEND = auto()
    CONSUME = auto()
    ADMIN = auto()
    AUDIT = auto()
    ALL = READ | APPEND | CONSUME | ADMIN | AUDIT

    @property
    def words(self) -> str:
        return ",".join(str(one.name).lower() for one in self)


VERBS: Final = {
    Right.READ: "read",
    Right.APPEND: "append",
    Right.CONSUME: "consume",
    Right.ADMIN: "administer",
    Right.AUDIT: "read the audit",
}
RIGHTS: Final = {str(one.name).lower(): one for one in Right} | {"all": Right.ALL}
UNSCOPED: Final = Right.AUDIT
"""Rights that a principal has everywhere or not at all."""


class Scope(NamedTuple):
    """Streams of one context, or of every context but that of the audit."""

    context: str | None = None
    stream: str = ""
    """The prefix of their names; the whole name if `is_exact`."""
    is_exact: bool = False

    def has_stream(self, context: str, stream: str) -> bool:
        if self.context != context and (self.context is not None or context == AUDIT_CONTEXT):
            return False
        return stream == self.stream if self.is_exact else stream.startswith(self.stream)

    def has_filter(self, context: str | None, prefix: str) -> bool:
        """Whether it has every stream that a filter can match."""
        if self.context != context and (self.context is not None or context == AUDIT_CONTEXT):
            return False
        return not self.is_exact and prefix.startswith(self.stream)

    def meets_filter(self, context: str | None, prefix: str) -> bool:
        """Whether it may have a stream that a filter matches."""
        if context is not None and self.context != context and (self.context is not None or context == AUDIT_CONTEXT):
            return False
        if self.is_exact:
            return self.stream.startswith(prefix)
        return self.stream.startswith(prefix) or prefix.startswith(self.stream)

    def meet(self, other: "Scope") -> "Scope | None":
        """The streams that both have, or None."""
        contexts = {self.context, other.context} - {None}
        if len(contexts) > 1 or (contexts == {AUDIT_CONTEXT} and self.context != other.context):
            return None
        longer, shorter = sorted((self, other), key=lambda one: (one.is_exact, len(one.stream)), reverse=True)
        if not longer.stream.startswith(shorter.stream) or (shorter.is_exact and longer.stream != shorter.stream):
            return None
        return Scope(next(iter(contexts), None), longer.stream, longer.is_exact)

    @property
    def words(self) -> str:
        """The place in plain words."""
        if self == EVERYWHERE:
            return "everywhere"
        name = "" if self.context == LOG_CONTEXT and self.stream else f" of the context {self.context}"
        kind = "log" if not name else "stream"
        if self.is_exact:
            return f"on the {kind} {self.stream}{name}"
        return f"on {kind}s{name} that begin with {self.stream}" if self.stream else f"in the context {self.context}"

    def __str__(self) -> str:
        if self.context is None:
            return "*"
        name, end = quote(self.stream, _UNESCAPED + "/"), "" if self.is_exact else "*"
        if self.context == LOG_CONTEXT and self.stream:
            return f"{_LOG}{name}{end}"
        context = quote(self.context, _UNESCAPED)
        if context.startswith(_LOG):
            # Unescaped it would read as the place of a log.
            context = context.replace(":", "%3A", 1)
        return context if not self.stream and not self.is_exact else f"{context}/{name}{end}"


EVERYWHERE: Final = Scope()
AUDIT: Final = Scope(AUDIT_CONTEXT)


class Grant(NamedTuple):
    rights: Right
    scope: Scope

    @classmethod
    def of(cls, text: str) -> "Grant":
        """A grant from its text. Raises InvalidRequest."""
        words, colon, where = text.partition(":")
        names = [word.strip().lower() for word in words.split(",")]
        if unknown := [name for name in names if name not in RIGHTS]:
            known = ", ".join(RIGHTS)
            raise InvalidRequest("grant", f"{text!r} has the right {unknown[0]!r}; there are {known}, as in read:shop")
        rights = reduce(or_, (RIGHTS[name] for name in names))
        scope = _scope_of(text, where) if colon else EVERYWHERE
        if rights & UNSCOPED and scope != EVERYWHERE:
            raise InvalidRequest("grant", f"{text!r} limits {UNSCOPED.words} to a place; write {UNSCOPED.words} alone")
        if scope.context == AUDIT_CONTEXT:
            raise InvalidRequest("grant", f"{text!r} names the context of the audit; the right audit shows it")
        return cls(rights, scope)

    @property
    def words(self) -> str:
        """The grant in plain words."""
        rights = "do everything" if self.rights == Right.ALL else " and ".join(VERBS[right] for right in self.rights)
        return f"{rights} {self.scope.words}"

    def __str__(self) -> str:
        rights = "all" if self.rights == Right.ALL else self.rights.words
        return f"{rights}:{self.scope}"


def _scope_of(text: str, where: str) -> Scope:
    if where == "*":
        return EVERYWHERE
    if where.startswith(_LOG):
        context, slash, name = LOG_CONTEXT, "/", where.removeprefix(_LOG)
    else:
        context, slash, name = where.partition("/")
    is_exact = bool(slash) and not name.endswith("*")
    name = name.removesuffix("*")
    if not context or "*" in context or "*" in name or (is_exact and not name):
        raise InvalidRequest(
            "grant", f"{text!r} names no place; write CONTEXT, CONTEXT/PREFIX*, CONTEXT/STREAM, log:NAME or *"
        )
    if re.search(r"%(?![0-9A-Fa-f]{2})", where):
        raise InvalidRequest("grant", f"{text!r} has a percent sign that is no escape; write %25 for it")
    return Scope(unquote(context), unquote(name), is_exact)


@dataclass(frozen=True, slots=True)
class View:
    """The part of a store that a principal may see or use with one right; workers get it with a request."""

    scopes: tuple[Scope, ...]
    owner: str = ""
    """Whose it is."""

    def has_stream(self, context: str, stream: str) -> bool:
        # As `Scope.has_stream`, in a fifth of the time: asked of every event and request of a restricted principal.
        for where, begin, is_exact in self.scopes:
            if (where == context or (where is None and context != AUDIT_CONTEXT)) and (
                stream == begin if is_exact else stream.startswith(begin)
            ):
                return True
        return False

    def has_filter(self, context: str | None, prefix: str) -> bool:
        """Whether all streams that a filter can match are in it."""
        return any(scope.has_filter(context, prefix) for scope in self.scopes)

    def meets_filter(self, context: str | None, prefix: str) -> bool:
        """Whether a stream that a filter matches may be in it."""
        return any(scope.meets_filter(context, prefix) for scope in self.scopes)

    def meet(self, other: "View") -> "View":
        """What is in both."""
        return View(tuple(both for one in self.scopes for two in other.scopes if (both := one.meet(two)) is not None))


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one principal; None is no limit."""

    connections_max: int | None = None
    requests_per_s_max: int | None = None
    bytes_per_s_max: int | None = None
    polls_max: int | None = None
    """Long polls at once."""
    staged_bytes_max: int | None = None


NO_LIMITS: Final = Limits()


@dataclass(frozen=True, slots=True)
class Principal:
    name: str
    grants: tuple[Grant, ...]
    limits: Limits = NO_LIMITS
    version: int = 0
    """Changes with its grants: events that it staged under other grants are not published."""
    rights: Right = field(init=False)
    """Rights that it has somewhere."""
    free: Right = field(init=False)
    """Rights that it has everywhere, in the context of the audit as well."""
    may_all: bool = field(init=False)
    """Whether it has all rights everywhere, so that the engine need not check its requests."""
    views: dict[Right, View] = field(init=False, compare=False)
    decided: dict[tuple[int, str, str], View] = field(init=False, compare=False, repr=False)
    """Places (right, context, stream) that it has, by earlier checks, with the view that the engine then passes on."""

    def __post_init__(self) -> None:
        rights = reduce(or_, (grant.rights for grant in self.grants), Right(0))
        audit = (AUDIT,) if rights & Right.AUDIT else ()
        rights |= Right.READ if audit else Right(0)
        views = {
            right: View((*(grant.scope for grant in self.grants if grant.rights & right), *audit), self.name)
            for right in rights
        }
        everywhere = [right for right, view in views.items() if EVERYWHERE in view.scopes]
        # Without the right to the audit, something is hidden from those that read everywhere.
        hides = Right(0) if audit else Right.READ | Right.CONSUME
        object.__setattr__(self, "rights", rights)
        free = reduce(or_, everywhere, Right(0)) & ~hides
        object.__setattr__(self, "free", free)
        object.__setattr__(self, "may_all", free == Right.ALL)
        object.__setattr__(self, "views", views)
        object.__setattr__(self, "decided", {})

    def may(self, right: Right) -> bool:
        """Whether it has these rights everywhere."""
        # Asked of every request; `in` would build a flag each time, and `value` is looked up the long way.
        return not right._value_ & ~self.free._value_


ANONYMOUS: Final = Principal("anonymous", (Grant(Right.ALL, EVERYWHERE),))
"""All clients, as long as a store has no principals; and programs that open the store's files without a server."""


def check_principal(name: str) -> str | None:
    """Why this is not a valid name of a principal, or None."""
    if not _NAME.fullmatch(name):
        return f"is {name[:60]!r}; a name has 1 to 100 letters, digits, dots, dashes, underscores and @"
    return None if (why := _RESERVED.get(name)) is None else f"is {name!r}, which stands for {why}"


def check_label(label: str) -> str | None:
    """Why a credential can have no such label, or None."""
    if len(label) > LABEL_CHARACTERS_MAX:
        return f"has {len(label)} characters; it may have {LABEL_CHARACTERS_MAX}"
    # It is shown in terminals, and PostgreSQL keeps no NUL.
    return None if label.isprintable() else f"is {label!r}; it may have no control characters"


def check_credential(kind: str, name: str) -> str | None:
    """Why no certificate or key can have such a name, so that it would never match; or None."""
    if kind == CredentialKind.CURVE and len(name) != CURVE_KEY_CHARACTERS:
        return f"is {name[:60]!r}; a public key of CURVE has {CURVE_KEY_CHARACTERS} characters of Z85"
    if name.lower().startswith("sha256:") and not _FINGERPRINT.fullmatch(name):
        return f"is {name[:80]!r}; a fingerprint is sha256: and 64 hexadecimal digits, small letters, without colons"
    return None


def grants_of(texts: Iterable[str]) -> tuple[Grant, ...]:
    """Grants from their texts. Raises InvalidRequest."""
    grants = tuple(map(Grant.of, texts))
    if len(grants) > GRANTS_MAX:
        raise InvalidRequest("grants", f"are {len(grants)}; a principal has at most {GRANTS_MAX}")
    return grants


def is_administrator(texts: Iterable[str]) -> bool:
    """Whether a principal with these grants may change rights. One whose grants are not understood has none."""
    try:
        return Principal("", tuple(map(Grant.of, texts))).may(Right.ADMIN)
    except InvalidRequest:
        return False


# --- as they are stored -----------------------------------------------------------------------------------------


class CredentialKind:
    TOKEN: Final = "token"  # noqa: S105 - the word, not a secret
    CERTIFICATE: Final = "certificate"
    CURVE: Final = "curve"
    ALL: Final = (TOKEN, CERTIFICATE, CURVE)


@dataclass(frozen=True, slots=True)
class Credential:
    """How a client shows that it is a principal. Times are ticks.

    A token's `id` is its public part, and `proof` the SHA-256 of its secret in hex. A certificate's or a key's `id` is
    `certificate:NAME`, `certificate:sha256:HEX` or `curve:KEY`, and its `proof` is empty.
    """

    id: str
    principal: str
    kind: str
    proof: str
    label: str
    created: int
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class PrincipalInfo:
    """A principal as it is stored, with the texts of its grants. `changed` (ticks) grows with each change of it."""

    name: str
    grants: tuple[str, ...]
    limits: Limits
    created: int
    changed: int
