"""The audit: who changed rights, erased, reset, deleted or cut off what, as events of a separate context.

Only the server writes them. An entry is part of the transaction that it is about, so neither exists without the
other. A store without principals has no entries: it has no name for the sender.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, is_dataclass
from hashlib import sha256
from typing import Any

from penstock.model import ANY, AUDIT_CONTEXT, Principal, new_event
from penstock.model.columns import columns_of
from penstock.store.contract import Commit, Operation


class Audit:
    """Makes entries, if `is_closed` says that there are principals."""

    def __init__(self, is_closed: Callable[[], bool]) -> None:
        self._is_closed = is_closed

    def entry(
        self, principal: Principal, stream: str, what: str, facts: Mapping[str, Any], *, always: bool = False
    ) -> tuple[Operation, ...]:
        """The operation that records a change, to be written with it; `always`: also by the first principal."""
        return (audit_entry(principal.name, stream, what, facts),) if always or self._is_closed() else ()


def audit_entry(by: str, stream: str, what: str, facts: Mapping[str, Any]) -> Commit:
    body = json.dumps({"by": by, **facts}, default=_plain, ensure_ascii=False, separators=(",", ":"))
    return Commit(AUDIT_CONTEXT, stream, ANY, columns_of((new_event(what, body.encode()),)))


def _plain(value: object) -> object:
    """The limits of a principal, without those that it does not have."""
    assert is_dataclass(value)
    assert not isinstance(value, type)
    return {name: limit for name, limit in asdict(value).items() if limit is not None}


def digest(name: str) -> str:
    """Stands for a name that was erased."""
    return f"sha256:{sha256(name.encode(errors='replace')).hexdigest()}"
