"""Principals and credentials, as the reference says it: see `tests.store.reference`."""

from dataclasses import dataclass, field, replace

from penstock.errors import InvalidRequest, NotAuthenticated, PrincipalNotFound
from penstock.model import Credential, PrincipalInfo
from penstock.model.access import is_administrator
from penstock.store import contract
from penstock.store.contract import AccessState


@dataclass
class AccessTables:
    version: int = 0
    principals: dict[str, PrincipalInfo] = field(default_factory=dict)
    credentials: dict[str, Credential] = field(default_factory=dict)

    def __copy__(self) -> "AccessTables":
        return AccessTables(self.version, dict(self.principals), dict(self.credentials))


class AccessReference:
    """The operations on principals."""

    recorded: int

    @property
    def tables(self) -> AccessTables:
        """All that there is now."""
        raise NotImplementedError

    def access(self) -> AccessState:
        tables = self.tables
        return AccessState(
            tables.version,
            sorted(tables.principals.values(), key=lambda one: one.name),
            sorted(tables.credentials.values(), key=lambda one: one.id),
        )

    def _do_readaccess(self, _op: contract.ReadAccess) -> AccessState:
        return self.access()

    def _change(self) -> int:
        self.tables.version = max(self.recorded, self.tables.version + 1)
        return self.tables.version

    def _do_storeprincipal(self, op: contract.StorePrincipal) -> bool:
        known, now = self.tables.principals.get(op.name), self._change()
        created = known.created if known else now
        self.tables.principals[op.name] = PrincipalInfo(op.name, op.grants, op.limits, created, now)
        return known is None

    def _do_removeprincipal(self, op: contract.RemovePrincipal) -> bool:
        if self.tables.principals.pop(op.name, None) is None:
            return False
        for credential in [one for one in self.tables.credentials.values() if one.principal == op.name]:
            del self.tables.credentials[credential.id]
        self._change()
        return True

    def _do_storecredential(self, op: contract.StoreCredential) -> bool:
        given = op.credential
        known = self.tables.credentials.get(given.id)
        if given.principal not in self.tables.principals:
            raise PrincipalNotFound(given.principal)
        if known is not None and known.principal != given.principal:
            raise InvalidRequest("credential", "is another's")
        self.tables.credentials[given.id] = given
        self._change()
        return known is None

    def _do_removecredential(self, op: contract.RemoveCredential) -> bool:
        if self.tables.credentials.pop(op.id, None) is None:
            return False
        self._change()
        return True

    def _do_expirecredentials(self, op: contract.ExpireCredentials) -> bool:
        for one in list(self.tables.credentials.values()):
            is_later = one.expires is None or one.expires > op.until
            if (one.principal, one.kind) == (op.principal, op.kind) and one.id != op.except_id and is_later:
                self.tables.credentials[one.id] = replace(one, expires=op.until)
        self._change()
        return True

    def _do_requireadministrator(self, op: contract.RequireAdministrator) -> bool:
        known = self.tables.principals.get(op.principal or "")
        may = self.tables.version == 0 if op.principal is None else known is not None and is_administrator(known.grants)
        if op.credential is not None:
            shown = self.tables.credentials.get(op.credential.id)
            may &= shown is not None and (shown.principal, shown.proof) == (op.principal, op.credential.proof)
            may &= shown is not None and (shown.expires is None or shown.expires > self.recorded)
        if not may:
            raise NotAuthenticated("has ended")
        return True
