"""Principals and credentials: how the store keeps them.

`access` in `meta` is the time of the last change. It grows with every change, so servers can tell whether what they
know is old. The rows are few, and a server reads all of them.
"""

import json
from dataclasses import asdict
from typing import Final

from penstock.errors import InvalidRequest, LastAdministrator, LimitExceeded, NotAuthenticated, PrincipalNotFound
from penstock.model import Credential, Limits, PrincipalInfo
from penstock.model.access import is_administrator
from penstock.store import contract
from penstock.store.contract import AccessState, Arrival
from penstock.store.tables.database import Database

CHANGED: Final = "access"
"""The key in `meta` of the time (ticks) of the last change."""
ARRIVAL: Final = "arrival"
"""The key in `meta` of how the store came to its place, until it is in the audit."""
PRINCIPALS_MAX: Final = 10_000
CREDENTIALS_MAX: Final = 100_000


def read(db: Database) -> AccessState:
    principals = [
        PrincipalInfo(name, tuple(grants.split()), Limits(**json.loads(limits)), created, changed)
        for name, grants, limits, created, changed in db.rows("state_principals")
    ]
    credentials = [Credential(*row) for row in db.rows("state_credentials")]
    return AccessState(changed_at(db), principals, credentials)


def changed_at(db: Database) -> int:
    """0: there never was a principal."""
    return int(db.value("meta", {"key": CHANGED}))


def store_principal(db: Database, op: contract.StorePrincipal, now: int) -> bool:
    known = db.row("principal", {"name": op.name})
    if known is None and (count := db.value("principal_count")) >= PRINCIPALS_MAX:
        raise LimitExceeded("principals_max", count + 1, PRINCIPALS_MAX)
    if op.keeps_admin and not is_administrator(op.grants):
        _check_others(db, op.name)
    limits = json.dumps({name: value for name, value in asdict(op.limits).items() if value is not None})
    changed = _change(db, now)
    row = {"name": op.name, "grants": " ".join(op.grants), "limits": limits, "created": changed, "changed": changed}
    db.later("put_principal", row)
    return known is None


def remove_principal(db: Database, op: contract.RemovePrincipal, now: int) -> bool:
    if db.row("principal", {"name": op.name}) is None:
        return False
    if op.keeps_admin:
        _check_others(db, op.name)
    _change(db, now)
    db.later("delete_principal", {"name": op.name})
    db.later("delete_credentials", {"principal": op.name})
    return True


def store_credential(db: Database, op: contract.StoreCredential, now: int) -> bool:
    given = op.credential
    if db.row("principal", {"name": given.principal}) is None:
        raise PrincipalNotFound(given.principal)
    known = db.row("credential", {"id": given.id})
    if known is not None and known[0] != given.principal:
        raise InvalidRequest("credential", f"{given.id} is one of {known[0]} already; revoke it there first")
    if known is None and (count := db.value("credential_count")) >= CREDENTIALS_MAX:
        raise LimitExceeded("credentials_max", count + 1, CREDENTIALS_MAX)
    _change(db, now)
    db.later("put_credential", asdict(given))
    return known is None


def remove_credential(db: Database, op: contract.RemoveCredential, now: int) -> bool:
    if db.row("credential", {"id": op.id}) is None:
        return False
    _change(db, now)
    db.later("delete_credential", {"id": op.id})
    return True


def expire_credentials(db: Database, op: contract.ExpireCredentials, now: int) -> bool:
    _change(db, now)
    db.later(
        "expire_credentials", {"principal": op.principal, "kind": op.kind, "until": op.until, "except_id": op.except_id}
    )
    return True


def require_administrator(db: Database, op: contract.RequireAdministrator, now: int) -> bool:
    """Raise NotAuthenticated for a sender whose rights or credential ended while its change was on the way."""
    known = None if op.principal is None else db.row("principal", {"name": op.principal})
    may = changed_at(db) == 0 if op.principal is None else known is not None and is_administrator(known[0].split())
    if op.credential is not None:
        shown = db.row("credential", {"id": op.credential.id})
        may = (
            may
            and shown is not None
            and shown[:2] == (op.principal, op.credential.proof)
            and (shown[2] is None or shown[2] > now)
        )
    if not may:
        raise NotAuthenticated("the rights or the credential of this sender have just ended; nothing is changed")
    return True


def _check_others(db: Database, name: str) -> None:
    """Raise LastAdministrator if this principal is the only one that may change rights."""
    if [one.name for one in read(db).principals if is_administrator(one.grants)] == [name]:
        raise LastAdministrator(name)


def _change(db: Database, now: int) -> int:
    """Count a change; answers its time, which is after that of every other change."""
    changed = max(now, changed_at(db) + 1)
    db.later("set_meta", {"key": CHANGED, "value": str(changed)})
    return changed


# --- how the store came to its place ----------------------------------------------------------------------------


def arrival(db: Database) -> Arrival | None:
    kept = db.value("meta", {"key": ARRIVAL})
    return None if kept is None else Arrival(*json.loads(kept))


def note_arrival(db: Database, noted: Arrival) -> None:
    db.later("set_meta", {"key": ARRIVAL, "value": json.dumps(noted)})


def forget_arrival(db: Database) -> bool:
    # Of two servers that start together, one tells.
    if arrival(db) is None:
        raise InvalidRequest("arrival", "is known already")
    db.later("delete_meta", {"key": ARRIVAL})
    return True
