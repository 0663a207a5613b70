"""Principals from a file, for operators who manage configuration in files.

    [principals.shop]
    grants = ["read,append:shop", "consume:shop/order-*"]
    tokens = [{id = "…", sha256 = "…", expires = 2027-01-01T00:00:00Z, label = "ci"}]
    certificates = ["shop.example.com", "sha256:…"]
    curve_keys = ["…"]
    limits = {requests_per_s_max = 1000}

`penstock access new-token` prints a token and the line for `tokens`.
"""

import os
import re
import shlex
import stat
import tomllib
from datetime import date, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from penstock.errors import InvalidRequest
from penstock.model import Credential, CredentialKind, Limits, PrincipalInfo, grants_of, ticks_of_datetime
from penstock.model.access import check_credential, check_principal

FILE_BYTES_MAX: Final = 16 << 20
PARTS: Final = frozenset(("grants", "tokens", "certificates", "curve_keys", "limits"))
TOKEN_PARTS: Final = frozenset(("id", "sha256", "expires", "label"))
_DIGEST: Final = re.compile("[0-9a-f]{64}")
_TOKEN_ID: Final = re.compile("[A-Za-z0-9_-]+")


class FileAccess(NamedTuple):
    principals: list[PrincipalInfo]
    credentials: list[Credential]


class AccessFile:
    """The file, and whether it has changed since it was read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None
        self.found = FileAccess([], [])

    def read(self) -> FileAccess:
        """The principals in the file. Raises InvalidRequest, which says where the mistake is."""
        self._seen = self._stamp()
        content = self._content()
        try:
            self.found = parsed(tomllib.loads(content.decode()))
        except (ValueError, RecursionError) as error:
            raise InvalidRequest("access_file", f"{self.path} is not TOML: {error}") from None
        except InvalidRequest as error:
            raise InvalidRequest("access_file", f"{self.path}: {error}") from None
        return self.found

    def changed(self) -> FileAccess | None:
        """The principals in the file, if it has changed. Raises as `read`, once for each change."""
        return None if self._stamp() == self._seen else self.read()

    def _content(self) -> bytes:
        try:
            with self.path.open("rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                content = file.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise InvalidRequest("access_file", f"{self.path} cannot be read: {error.strerror}") from error
        if mode & stat.S_IWOTH:
            fix = f"chmod o-w {shlex.quote(str(self.path))}"
            raise InvalidRequest(
                "access_file", f"every user can write {self.path}, and so become an administrator: {fix}"
            )
        if len(content) > FILE_BYTES_MAX:
            raise InvalidRequest("access_file", f"{self.path} has more than {FILE_BYTES_MAX} bytes")
        return content

    def _stamp(self) -> object:
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode


def parsed(document: dict[str, Any]) -> FileAccess:
    """Raises InvalidRequest."""
    found = FileAccess([], [])
    _only(document, frozenset(("principals",)), "the file")
    tables = _table(document.get("principals", {}), "principals")
    seen: dict[str, str] = {}
    for name, given in tables.items():
        if reason := check_principal(name):
            raise InvalidRequest(f"principal {name!r}", reason)
        where = f"principals.{name}"
        table = _table(given, where)
        _only(table, PARTS, where)
        limits = _table(table.get("limits", {}), f"{where}.limits")
        _only(limits, frozenset(Limits.__slots__), f"{where}.limits")
        for limit, maximum in limits.items():
            if type(maximum) is not int or maximum < 1:
                raise InvalidRequest(f"{where}.limits.{limit}", "must be a whole number from 1 on")
        grants = tuple(map(str, grants_of(_texts(table, "grants", where))))
        found.principals.append(PrincipalInfo(name, grants, Limits(**limits), 0, 0))
        for credential in _credentials(name, where, table):
            if (other := seen.get(credential.id)) is not None:
                whose = " twice" if other == name else f", which {other} has already"
                raise InvalidRequest(where, f"has the credential {credential.id}{whose}")
            seen[credential.id] = name
            found.credentials.append(credential)
    return found


def _credentials(name: str, where: str, table: dict[str, Any]) -> list[Credential]:
    made = []
    tokens = table.get("tokens", [])
    if not isinstance(tokens, list):
        raise InvalidRequest(f"{where}.tokens", "must be a list of tables")
    for given in tokens:
        token = _table(given, f"{where}.tokens")
        _only(token, TOKEN_PARTS, f"{where}.tokens")
        number, proof, expires = token.get("id"), token.get("sha256"), token.get("expires")
        if not isinstance(number, str) or not number or not isinstance(proof, str) or not _DIGEST.fullmatch(proof):
            raise InvalidRequest(f"{where}.tokens", "must each have id and sha256, 64 hexadecimal digits")
        if not _TOKEN_ID.fullmatch(number):
            raise InvalidRequest(
                f"{where}.tokens",
                f"has the id {number!r}; it is what comes before the point of a token: letters, digits, - and _",
            )
        if expires is not None and not isinstance(expires, datetime):
            kind = "has no time of day" if isinstance(expires, date) else "is no time"
            raise InvalidRequest(f"{where}.tokens", f"has an expires that {kind}; write 2027-01-01T00:00:00Z")
        if expires is not None and expires.tzinfo is None:
            raise InvalidRequest(f"{where}.tokens", "has an expires without a time zone; write 2027-01-01T00:00:00Z")
        until = None if expires is None else ticks_of_datetime(expires)
        made.append(Credential(number, name, CredentialKind.TOKEN, proof, str(token.get("label", "")), 0, until))
    for part, kind in (("certificates", CredentialKind.CERTIFICATE), ("curve_keys", CredentialKind.CURVE)):
        texts = _texts(table, part, where)
        if reason := next(filter(None, (check_credential(kind, text) for text in texts)), None):
            raise InvalidRequest(f"{where}.{part}", reason)
        made += [Credential(f"{kind}:{text}", name, kind, "", "", 0) for text in texts]
    return made


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidRequest(where, "must be a table")
    return value


def _texts(table: dict[str, Any], part: str, where: str) -> list[str]:
    found = table.get(part, [])
    if not isinstance(found, list) or not all(isinstance(text, str) and text for text in found):
        raise InvalidRequest(f"{where}.{part}", "must be a list of texts")
    return found


def _only(table: dict[str, Any], known: frozenset[str], where: str) -> None:
    if unknown := sorted(table.keys() - known):
        raise InvalidRequest(where, f"has {unknown[0]!r}; there are {', '.join(sorted(known))}")
