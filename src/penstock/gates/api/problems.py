"""Errors as problem details (RFC 9457): a status, a sentence, and the class and fields of the error."""

import json
import re
from dataclasses import fields
from typing import Any, Final

from penstock import errors
from penstock.cloudevents import NotACloudEvent
from penstock.errors import OverLimit, PenstockError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_S: Final = 1
"""When a client should retry a request that the server could serve later."""

STATUSES: Final[dict[type[PenstockError], int]] = {
    PenstockError: 500,
    errors.NotJson: 400,
    errors.NotAuthenticated: 401,
    errors.NotAllowed: 403,
    errors.DeadLetterNotFound: 404,
    errors.EventNotFound: 404,
    errors.IteratorNotFound: 404,
    errors.LogNotFound: 404,
    errors.PrincipalNotFound: 404,
    errors.QueueNotFound: 404,
    errors.SubscriptionNotFound: 404,
    errors.AllocationLost: 409,
    errors.MarkSuperseded: 409,
    errors.PartlyRepeated: 409,
    errors.QueueAmbiguous: 409,
    errors.QueueExists: 409,
    errors.QueueFilterMismatch: 409,
    errors.QueueMismatch: 409,
    errors.SubscriptionMismatch: 409,
    errors.SubscriptionMoved: 409,
    errors.VersionConflict: 409,
    errors.StoreChanged: 410,
    errors.LimitExceeded: 413,
    errors.FunctionFailed: 422,
    errors.InvalidRequest: 422,
    errors.KeyReused: 422,
    errors.NotCbor: 422,
    NotACloudEvent: 422,
    OverLimit: 429,
    errors.Busy: 503,
    errors.Closed: 503,
    errors.NotDurable: 503,
    errors.QueueContended: 503,
    errors.StorageFull: 503,
    errors.TimedOut: 503,
    errors.WorkerDied: 503,
}
"""The status of each class. A class that is not here has the status of its nearest base."""
LATER: Final = frozenset((429, 503))


class Problem(Exception):
    """An answer that is no success. `error` is why, or a sentence about what HTTP itself does not allow."""

    def __init__(self, status: int, error: PenstockError | str, **headers: str) -> None:
        super().__init__(str(error))
        self.status = status
        self.error = error
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @classmethod
    def of(cls, error: PenstockError) -> "Problem":
        status = next(STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
        made = cls(status, error)
        if status == 401:
            made.headers["www-authenticate"] = "Bearer"
        elif status in LATER:
            ms = error.retry_after_ms if isinstance(error, OverLimit) else 1000 * RETRY_S
            made.headers["retry-after"] = str(-(-ms // 1000))
        return made

    def content(self) -> bytes:
        error = self.error
        document: dict[str, Any] = {"type": "about:blank", "status": self.status, "detail": str(error)}
        if isinstance(error, PenstockError):
            name = type(error).__name__
            document |= {
                "type": f"urn:penstock:error:{name}",
                "title": re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name).capitalize(),
                "class": name,
                "fields": {field.name: getattr(error, field.name) for field in fields(error)},
                "retry": error.retry,
            }
        return json.dumps(document, ensure_ascii=False).encode(errors="replace") + b"\n"
