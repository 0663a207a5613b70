"""The one table from exceptions to Remits' error codes, and the names of the codes."""

from typing import Final

from penstock import errors

LOG_NOT_FOUND: Final = 0
ITERATOR_EXISTS: Final = 1
ITERATOR_NOT_FOUND: Final = 2
NOT_CBOR: Final = 3
LUA_FAILED: Final = 4
LUA_RESULT: Final = 5
UNKNOWN_REQUEST: Final = 7
UNKNOWN_KIND: Final = 8
UNREADABLE_BYTES: Final = 9
REQUESTS_ONLY: Final = 10
UNREADABLE_PAYLOAD: Final = 11
NOT_BINARY: Final = 18
LIMIT: Final = 32
BUSY: Final = 33
LUA_TIMEOUT: Final = 34
NOT_ALLOWED: Final = 35
INTERNAL: Final = 255

NAMES: Final[dict[int, str]] = {
    LOG_NOT_FOUND: "LogDoesNotExist",
    ITERATOR_EXISTS: "ItrExistsWithSameName",
    ITERATOR_NOT_FOUND: "ItrDoesNotExist",
    NOT_CBOR: "MsgNotValidCbor",
    LUA_FAILED: "ErrRunningLua",
    LUA_RESULT: "ErrReadingLuaResponse",
    6: "ConnectionClosed",
    UNKNOWN_REQUEST: "UnknownRequestCode",
    UNKNOWN_KIND: "UnknownFrameKind",
    UNREADABLE_BYTES: "FailedToReadBytes",
    REQUESTS_ONLY: "ServerOnlyAcceptsRequests",
    UNREADABLE_PAYLOAD: "CouldNotReadPayload",
    12: "LogNameNotUtf8",
    13: "ItrNameNotUtf8",
    14: "ItrTypeNotUtf8",
    15: "ItrFuncNotUtf8",
    16: "ItrTypeInvalid",
    17: "MsgIdNotNumber",
    NOT_BINARY: "MsgFieldNotOfTypeBinary",
    LIMIT: "LimitExceeded",
    BUSY: "ServerBusy",
    LUA_TIMEOUT: "IteratorTimeout",
    NOT_ALLOWED: "NotAllowed",
    INTERNAL: "InternalError",
}
"""Every code of the protocol; those without a constant above are never sent from here."""

CODES: Final[dict[type[errors.PenstockError], int]] = {
    errors.AllocationLost: INTERNAL,
    errors.AnswerMalformed: INTERNAL,
    errors.BackupDamaged: INTERNAL,
    errors.BadUrl: INTERNAL,
    errors.Busy: BUSY,
    errors.CannotConnect: INTERNAL,
    errors.CannotListen: INTERNAL,
    errors.ClientClosed: INTERNAL,
    errors.Closed: INTERNAL,
    errors.ConnectionLost: INTERNAL,
    errors.DamagedRecord: INTERNAL,
    errors.DeadLetterNotFound: INTERNAL,
    errors.DeadlinePassed: INTERNAL,
    errors.DoesNotFit: LIMIT,
    errors.EventNotFound: INTERNAL,
    errors.FunctionFailed: LUA_FAILED,
    errors.FunctionTimedOut: LUA_TIMEOUT,
    errors.InvalidRequest: UNREADABLE_PAYLOAD,
    errors.IteratorCycle: UNREADABLE_PAYLOAD,
    errors.IteratorExists: ITERATOR_EXISTS,
    errors.IteratorNotFound: ITERATOR_NOT_FOUND,
    errors.LakeDamaged: INTERNAL,
    errors.LakeInUse: INTERNAL,
    errors.LimitExceeded: LIMIT,
    errors.LogNotFound: LOG_NOT_FOUND,
    errors.MarkSuperseded: INTERNAL,
    errors.NotAStore: INTERNAL,
    errors.NotAllowed: NOT_ALLOWED,
    errors.NotAppended: INTERNAL,
    errors.NotCbor: NOT_CBOR,
    errors.NotDurable: INTERNAL,
    errors.NotJson: INTERNAL,
    errors.NotLoopback: INTERNAL,
    errors.OutputMoved: INTERNAL,
    errors.PenstockError: INTERNAL,
    errors.PlaceRefused: INTERNAL,
    errors.QueueAmbiguous: INTERNAL,
    errors.QueueContended: BUSY,
    errors.QueueFilterMismatch: INTERNAL,
    errors.QueueNotFound: INTERNAL,
    errors.ReadFailure: INTERNAL,
    errors.ReaderBusy: BUSY,
    errors.ReaderTimeout: BUSY,
    errors.Refused: INTERNAL,
    errors.ResultUnreadable: LUA_RESULT,
    errors.StageLost: INTERNAL,
    errors.StorageFailure: INTERNAL,
    errors.StorageFull: INTERNAL,
    errors.StoreChanged: INTERNAL,
    errors.StoreError: INTERNAL,
    errors.StoreInUse: INTERNAL,
    errors.StoreTooNew: INTERNAL,
    errors.StoreUnfinished: INTERNAL,
    errors.SubscriptionMoved: INTERNAL,
    errors.SubscriptionNotFound: INTERNAL,
    errors.TimedOut: BUSY,
    errors.Unexpected: INTERNAL,
    errors.VersionConflict: INTERNAL,
    errors.WorkerDied: BUSY,
    errors.WriterBusy: BUSY,
    errors.WriterTimeout: BUSY,
}


class Refused(Exception):
    """What a client sent is wrong, and nobody needs to be asked: the code that says so, and why."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


def code_of(error: errors.PenstockError) -> int:
    """The code of an error."""
    # One that the table lacks has the code of its nearest base, at the last that of PenstockError.
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
