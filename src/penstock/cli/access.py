"""`penstock access`: which clients may connect, and their rights."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from penstock.cli.connection import LOCAL, address_of, connected, default_url, named_address
from penstock.cli.options import UNITS, AsJson, Config, Data, StoreData, StoreUrl, Url, argument, need_name, option
from penstock.cli.output import (
    counted,
    fail,
    print_document,
    print_fields,
    print_line,
    print_result,
    print_rows,
    print_table,
    refuse,
    remark,
)
from penstock.errors import PenstockError, PrincipalNotFound, StoreInUse
from penstock.model import Grant, IssuedToken, Limits, Principal, PrincipalInfo, Right, grants_of
from penstock.model.access import LOG_CONTEXT, RIGHTS, VERBS, check_label, is_administrator
from penstock.model.requests import Reach
from penstock.model.times import datetime_of
from penstock.settings import resolve

if TYPE_CHECKING:
    from penstock.client import Client

FIRST: Final = "admin"
"""The name of the first principal."""
DURATION: Final = re.compile(r"(\d{1,9})([smhd])")
NONE: Final = "none"

access_app = typer.Typer(no_args_is_help=True)


def duration(text: str) -> timedelta:
    """Read how long something takes: 30s, 10m, 2h, 7d, or 0."""
    if text == "0":
        return timedelta()
    if (found := DURATION.fullmatch(text)) is None:
        raise typer.BadParameter(f"{text!r} is no duration; write 0, 30s, 10m, 2h or 7d")
    try:
        return timedelta(**{UNITS[found[2]]: int(found[1])})
    except OverflowError:
        raise typer.BadParameter(f"{text!r} is too long") from None


def expiry(text: str) -> datetime | None:
    """Read when something ends: in so long, at a time, or never."""
    if text == "never":
        return None
    now = datetime.now(UTC)
    try:
        if DURATION.fullmatch(text):
            return now + duration(text)
        found = datetime.fromisoformat(text)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise typer.BadParameter(f"{text!r} is no time; write 30d, 2027-01-01 or never") from None
    if found <= now:
        raise typer.BadParameter(f"{text!r} is in the past")
    return found


Name = Annotated[str, argument("NAME", "the principal")]
Grants = Annotated[
    list[str], argument("GRANT", "RIGHTS:WHERE, such as read,append:shop, consume:shop/order-*, read:log:visits, all")
]
MoreGrants = Annotated[list[str] | None, argument("GRANT", "what it may do from now on (default: as before)")]
Label = Annotated[str, option("--label", "what the token is for", "TEXT")]
Expires = Annotated[
    datetime | None, option("--expires", "when the token ends: 30d, 2027-01-01 or never", "WHEN", parser=expiry)
]
Certificates = Annotated[
    list[str] | None,
    option("--certificate", "a client certificate that shows who it is; can be repeated", "NAME|sha256:HEX"),
]
CurveKeys = Annotated[
    list[str] | None, option("--curve-key", "a public key of CURVE that shows who it is; can be repeated", "KEY")
]
LimitsGiven = Annotated[
    list[str] | None,
    option("--limit", "a limit, such as requests_per_s_max=1000, or =none; can be repeated", "LIMIT=N"),
]
Force = Annotated[bool, option("--force", "even if only the owner of the store's files can change rights afterwards")]


# --- how commands reach the principals --------------------------------------------------------------------------


@contextmanager
def administered(
    url: str | None, data: Path | None, config: Path | None = None, *, create: bool = False
) -> Iterator["Client"]:
    """A client that changes principals. If a file decides who they are, what is in the store counts for nothing."""
    is_local = address_of(url, data).startswith(LOCAL)
    if is_local and (file := resolve({}, os.environ, config).settings.access_file) is not None:
        fail(
            f"the file {file} decides who may come in, because access_file names it: change that file "
            "(penstock access new-token makes a token for it)"
        )
    with connected(url, data, create=create) as client:
        yield client


def known(client: "Client", name: str) -> PrincipalInfo:
    for one in client.access.principals():
        if one.name == name:
            return one
    raise PrincipalNotFound(name)


# --- commands ---------------------------------------------------------------------------------------------------


@access_app.command("init")
def init_command(
    name: Annotated[str, option("--name", "the administrator", "NAME")] = FIRST,
    label: Label = "",
    expires: Expires = None,
    data: StoreData = None,
    store: StoreUrl = None,
    url: Url = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Make the first administrator, and print its token. From then on clients need a credential.

    With --data or --store it works on the store itself, also if there are principals already: the owner of the files
    gets a new token for an administrator after losing the last one. The servers of a PostgreSQL go on meanwhile.
    """
    need_name(name, "a principal")
    if reason := check_label(label):
        # Found later, it would leave a store that is closed for all.
        refuse(f"--label {reason}")
    address = named_address(url, data, store, config) or default_url()
    try:
        with administered(address, None, config, create=True) as client:
            found = next((one for one in client.access.principals() if one.name == name), None)
            if found is None:
                client.access.put(name, ["all"])
            elif not is_administrator(found.grants):
                fail(f"{name} exists and is no administrator ({' '.join(found.grants)}); choose another with --name")
            token = client.access.issue_token(name, label=label or "penstock access init", expires=expires)
    except StoreInUse as error:
        fail(f"{error}; stop it and run this again, or connect to it with --url and the token of an administrator")
    made = f"{name} is an administrator from now on" if found is None else f"another token of {name}"
    _print_token(name, token, made, as_json=as_json, made=found is None)


@access_app.command("add")
def add_command(
    name: Name,
    grants: Grants,
    label: Label = "",
    expires: Expires = None,
    no_token: Annotated[bool, option("--no-token", "make no token")] = False,
    certificate: Certificates = None,
    curve_key: CurveKeys = None,
    limit: LimitsGiven = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a principal, and print its token. No command can show that again."""
    limits = _limits(Limits(), limit)
    grants_of(grants)
    token = None
    with administered(url, data) as client:
        if any(one.name == name for one in client.access.principals()):
            fail(
                f"{name} exists already: change it with penstock access set {name} GRANT, "
                f"or make another token with penstock access rotate {name} --keep"
            )
        client.access.put(name, grants, limits=limits)
        try:
            _add_credentials(client, name, certificate, curve_key, label)
            if not no_token:
                token = client.access.issue_token(name, label=label, expires=expires)
        except PenstockError:
            # The same command, corrected, must not find half of a principal.
            with suppress(PenstockError):
                client.access.revoke(name)
            raise
    line = f"{name} may {_sentence(grants_of(grants))}"
    if token is None:
        print_result({"principal": name, "made": True}, line, as_json=as_json)
    else:
        _print_token(name, token, line, as_json=as_json, made=True)


@access_app.command("set")
def set_command(
    name: Name,
    grants: MoreGrants = None,
    certificate: Certificates = None,
    curve_key: CurveKeys = None,
    limit: LimitsGiven = None,
    force: Force = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Change a principal: the grants given replace all it had, limits those of the same names.

    Its tokens stay. Its connections end, so that nothing goes on with the rights of before; clients connect again.
    """
    if not (grants or certificate or curve_key or limit):
        refuse("say what to change: grants, --limit, --certificate or --curve-key")
    with administered(url, data) as client:
        found = known(client, name)
        texts, limits = grants or found.grants, _limits(found.limits, limit)
        # First, as long as the one that asks may do that.
        _add_credentials(client, name, certificate, curve_key, "")
        if grants or limit:
            client.access.put(name, texts, limits=limits, force=force)
    print_result(
        {"principal": name, "grants": list(map(str, grants_of(texts))), "limits": _limits_document(limits)},
        f"{name} may {_sentence(grants_of(texts))}",
        as_json=as_json,
    )


@access_app.command("list")
def list_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """List the principals with their grants."""
    with connected(url, data) as client:
        found, credentials = client.access.principals(), client.access.credentials()
    counts = {one.name: sum(each.principal == one.name for each in credentials) for one in found}
    documents = ({**_document(one), "credentials": counts[one.name]} for one in found)
    rows = [(one.name, " ".join(one.grants) or "-", counts[one.name], _shown(one.changed)) for one in found]
    empty = "no principals: every client may do everything; penstock access init makes the first"
    print_rows(documents, ("principal", "grants", "#credentials", "changed"), rows, empty=empty, as_json=as_json)


@access_app.command("show")
def show_command(name: Name, url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show a principal: what its grants mean, its limits, and its credentials, without their secrets."""
    with connected(url, data) as client:
        found, credentials = known(client, name), client.access.credentials(name)
    if as_json:
        shown = [
            {
                **{part: value for part, value in asdict(one).items() if part not in ("principal", "proof")},
                "created": _iso(one.created),
                "expires": _iso(one.expires),
            }
            for one in credentials
        ]
        print_document({**_document(found), "credentials": shown})
        return
    fields = {
        "principal": found.name,
        "may": "\n".join(map(_meaning, found.grants)) or "nothing",
        "limits": ", ".join(f"{key}={value}" for key, value in _limits_document(found.limits).items()) or NONE,
        "created": _shown(found.created),
        "changed": _shown(found.changed),
    }
    print_fields(fields)
    now = datetime.now(UTC)
    rows = [
        (one.kind, one.id, one.label or "-", _shown(one.created), _shown_end(one.expires, now)) for one in credentials
    ]
    columns = ("kind", "id", "label", "created", "expires")
    print_table(columns, rows, empty=f"no credentials: penstock access rotate {name} makes a token")


@access_app.command("revoke")
def revoke_command(
    name: Annotated[str | None, argument("NAME", "the principal, with all its credentials")] = None,
    credential: Annotated[
        str | None, option("--credential", "only this credential: its id, as access show lists it", "ID")
    ] = None,
    force: Force = False,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Revoke a principal, or one credential. Its connections end within a second, on every server."""
    if (name is None) == (credential is None):
        refuse("say what to revoke: either the NAME of a principal, or --credential ID")
    with administered(url, data) as client:
        if name is not None:
            client.access.revoke(name, force=force)
        else:
            assert credential is not None
            # A whole token has its id before the dot.
            client.access.revoke_credential(credential if ":" in credential else credential.partition(".")[0])
    what = "principal" if name is not None else "credential"
    shown = name if credential is None or ":" in credential else credential.partition(".")[0]
    print_result({what: shown or credential, "revoked": True}, f"{what} {shown or credential} revoked", as_json=as_json)


@access_app.command("rotate")
def rotate_command(
    name: Name,
    grace: Annotated[str, option("--grace", "how long its other tokens go on: 30m, 2d, or 0", "TIME")] = "1h",
    keep: Annotated[bool, option("--keep", "leave its other tokens as they are")] = False,
    label: Label = "",
    expires: Expires = None,
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Make a new token of a principal, and let the others end after a while. Certificates and keys stay.

    Give the new token to the program meanwhile. After a leak, use --grace 0.
    """
    goes_on = duration(grace)
    with administered(url, data) as client:
        rotate = None if keep else goes_on.total_seconds()
        token = client.access.issue_token(name, label=label, expires=expires, rotate=rotate)
    ends = datetime.now(UTC) + goes_on
    others = "its other tokens stay" if keep else f"its other tokens end at {ends:%Y-%m-%d %H:%M:%SZ}"
    _print_token(name, token, f"a new token of {name}; {others}", as_json=as_json)


@access_app.command("check")
def check_command(
    name: Name,
    what: Annotated[
        str, argument("WHAT", "read, append, consume, admin or audit; or a Res01 command, such as QS (docs/protocols)")
    ],
    where: Annotated[
        str, argument("WHERE", "CONTEXT, CONTEXT/STREAM, CONTEXT/PREFIX*, log:NAME, or * for everywhere")
    ] = "*",
    url: Url = None,
    data: Data = None,
    as_json: AsJson = False,
) -> None:
    """Explain whether a principal may do something somewhere, and which grant decides.

    The exit code is 1 if it may not. For a queue, a subscription or an iterator, WHERE is what it reads.
    """
    from penstock.engine.access_check import PLACED, explain  # noqa: PLC0415

    rights, reach = _asked(what)
    scope = Grant.of(f"read:{where}").scope
    if reach in _EXAMPLES and not (scope.is_exact and (reach is Reach.STREAM or scope.context == LOG_CONTEXT)):
        refuse(f"{what} is about {reach}: name it, as in check {name} {what} {_EXAMPLES[reach]}")
    with connected(url, data) as client:
        principal = Principal(name, grants_of(known(client, name).grants))
    found = [explain(principal, right, reach, scope) for right in rights]
    refused = next((one for one in found if one.refusal is not None), None)
    grants = list(dict.fromkeys(str(grant) for one in found for grant in one.grants))
    place = f" {scope.words}" if reach in PLACED else ""
    doing = f"{' and '.join(VERBS[one] for one in rights)}{place}" if reach is Reach.EACH else f"use {what}{place}"
    if refused is not None:
        part = f"; {', '.join(map(str, refused.grants))} allows only a part of it" if refused.grants else ""
        line = f"no: {name} may not {doing}: {_needs(refused.refusal)}{part}"
    else:
        by = f", by {', '.join(grants)}" if grants else ""
        part = "; it sees only what its grants show" if any(one.is_part for one in found) else ""
        line = f"yes: {name} may {doing}{by}{part}"
    document = {
        "principal": name,
        "allowed": refused is None,
        "part": any(one.is_part for one in found),
        "grants": grants,
        "missing": None if refused is None else {"right": refused.refusal.right, "place": refused.refusal.place},  # type: ignore[union-attr]
    }
    print_result(document, line, as_json=as_json)
    raise typer.Exit(0 if refused is None else 1)


@access_app.command("whoami")
def whoami_command(url: Url = None, data: Data = None, as_json: AsJson = False) -> None:
    """Show which principal this client is at a server, with its grants."""
    with connected(url, data) as client:
        found = client.whoami()
    expires = _iso(found.expires)
    document = {"principal": found.principal, "grants": list(found.grants), "expires": expires}
    if as_json:
        print_document({**document, "has_principals": found.is_closed})
        return
    fields = {"principal": found.principal, "may": "\n".join(map(_meaning, found.grants)) or "nothing"}
    print_fields(fields | ({"expires": expires} if expires else {}))
    if not found.is_closed:
        remark("this server has no principals, so every client may do everything")


@access_app.command("new-token")
def new_token_command(label: Label = "", expires: Expires = None, as_json: AsJson = False) -> None:
    """Make a token for the file that access_file names, without any server: the token, and the line for the file."""
    from penstock.engine.access import new_token  # noqa: PLC0415

    made = new_token()
    parts = {"id": _toml(made.id), "sha256": _toml(made.proof)}
    if expires is not None:
        parts["expires"] = expires.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    if label:
        parts["label"] = _toml(label)
    line = f"{{{', '.join(f'{key} = {value}' for key, value in parts.items())}}}"
    if as_json:
        print_document({"token": made.token, "line": line})
        return
    print_fields({"token": made.token, "line": line})
    remark(
        "put the line into tokens = […] of a principal, and give the token to the program; no command can show it again"
    )


@access_app.command("curve-keygen")
def curve_keygen_command(
    out: Annotated[Path, option("--out", "the file for the secret key, which must not exist yet", "FILE")] = Path(
        "curve.key"
    ),
    as_json: AsJson = False,
) -> None:
    """Make a key pair for CURVE, of a server or of a client, and print the public key."""
    from urllib.parse import quote  # noqa: PLC0415

    from penstock.files import created  # noqa: PLC0415
    from penstock.wire.curve import key_text, new_secret_key, public_key  # noqa: PLC0415

    secret = new_secret_key()
    public = key_text(public_key(secret))
    try:
        with created(out, "xb") as file:
            file.write(f"{key_text(secret)}\n".encode())
    except FileExistsError:
        fail(f"{out} exists already; name another file with --out")
    except OSError as error:
        fail(f"{out} cannot be written: {(error.strerror or str(error)).lower()}")
    if as_json:
        print_document({"public_key": public, "secret_key_file": str(out), "in_url": quote(public, safe="")})
        return
    print_line(public)
    remark(f"the secret key is in {out}; the line above is the public key")
    remark(
        f"for a server: --curve-secret-key {out}; URLs of its clients get ?curve_server_key={quote(public, safe='')}"
    )
    remark(f"for a client: &curve_key_file={out} in its URL; penstock access add NAME GRANT --curve-key KEY knows it")


@access_app.command("check-file")
def check_file_command(
    file: Annotated[Path, argument("FILE", "the file that access_file names, or will name")], as_json: AsJson = False
) -> None:
    """Check a file with principals, as the server would when it reads it."""
    from penstock.engine.access_file import AccessFile  # noqa: PLC0415

    found = AccessFile(file).read()
    counts = {one.name: sum(each.principal == one.name for each in found.credentials) for one in found.principals}
    if as_json:
        print_document(
            {"principals": [{**_document(one), "credentials": counts[one.name]} for one in found.principals]}
        )
        return
    rows = [(one.name, " ".join(one.grants) or "-", counts[one.name]) for one in found.principals]
    print_table(("principal", "grants", "#credentials"), rows, empty="no principals: no client can come in")
    print_line(f"{file} is right: {counted(len(rows), 'principal')}, {counted(len(found.credentials), 'credential')}")


# --- texts ------------------------------------------------------------------------------------------------------

_EXAMPLES: Final = {Reach.STREAM: "shop/order-1", Reach.LOG: "log:visits"}


def _asked(what: str) -> tuple[list[Right], Reach]:
    """The rights in question, and what a request needs them for."""
    names = what.lower().split(",")
    if all(one in RIGHTS for one in names):
        return list(dict.fromkeys(right for one in names for right in RIGHTS[one])), Reach.EACH
    from penstock.wire.res01.commands import OWN_COMMANDS  # noqa: PLC0415

    command = OWN_COMMANDS.get(what.upper().encode())
    if command is None:
        refuse(
            f"{what} is no right and no command: there are {', '.join(RIGHTS)}, and the commands of Res01, such as QS"
        )
    return [command.request.right], command.request.reach


def _needs(refusal: Any) -> str:
    where = f" on {refusal.place}" if refusal.place else " everywhere"
    return f"it needs the right {refusal.right}{where}"


def _sentence(grants: Iterable[Grant]) -> str:
    return "; ".join(grant.words for grant in grants) or "do nothing"


def _meaning(text: str) -> str:
    return f"{text}: {Grant.of(text).words}"


def _limits(before: Limits, given: list[str] | None) -> Limits:
    """Limits with those that the command line names."""
    changed: dict[str, int | None] = {}
    for text in given or ():
        name, separator, value = text.partition("=")
        if name not in Limits.__slots__ or not separator:
            refuse(f"--limit is {text!r}: it must be LIMIT=N, and there are {', '.join(Limits.__slots__)}")
        if value != NONE and not (value.isascii() and value.isdigit() and int(value) > 0):
            refuse(f"--limit is {text!r}: the limit must be a whole number from 1 on, or none")
        changed[name] = None if value == NONE else int(value)
    return replace(before, **changed)


def _limits_document(limits: Limits) -> dict[str, int]:
    return {name: value for name, value in asdict(limits).items() if value is not None}


def _document(one: PrincipalInfo) -> dict[str, Any]:
    return {
        "principal": one.name,
        "grants": list(one.grants),
        "limits": _limits_document(one.limits),
        "created": _iso(one.created),
        "changed": _iso(one.changed),
    }


def _add_credentials(
    client: "Client", name: str, certificates: list[str] | None, keys: list[str] | None, label: str
) -> None:
    for credential in (
        *(f"certificate:{text}" for text in certificates or ()),
        *(f"curve:{text}" for text in keys or ()),
    ):
        client.access.add_credential(name, credential, label=label)


def _print_token(name: str, token: IssuedToken, line: str, *, as_json: bool, made: bool | None = None) -> None:
    if as_json:
        expires = _iso(token.expires)
        about = {"principal": name, "token": token.token, "credential": token.id, "expires": expires}
        print_document(about if made is None else {**about, "made": made})
        return
    remark(f"{line}. Its token, shown only this once:")
    print_line(token.token)


def _iso(ticks: int | None) -> str | None:
    return datetime_of(ticks).isoformat(timespec="seconds") if ticks else None


def _shown(ticks: int) -> str:
    # What comes from a file has no times.
    return f"{datetime_of(ticks):%Y-%m-%d %H:%M:%SZ}" if ticks else "-"


def _shown_end(ticks: int | None, now: datetime) -> str:
    if ticks is None:
        return "never"
    return f"{_shown(ticks)} (expired)" if datetime_of(ticks) <= now else _shown(ticks)


def _toml(text: str) -> str:
    """A text in TOML, with escapes for what a terminal hides or a string cannot have."""
    letters = (one if one.isprintable() and one not in '"\\' else f"\\U{ord(one):08x}" for one in text)
    return f'"{"".join(letters)}"'
