"""The one table from exceptions to Res01's error codes."""

from typing import Final

from penstock import errors

UNEXPECTED: Final = -1
MALFORMED: Final = 1
UNSUPPORTED_PROTOCOL: Final = 2
UNSUPPORTED_COMMAND: Final = 3
WRITER_BUSY: Final = 4
WRITER_TIMEOUT: Final = 5
CONFLICT: Final = 6
STORAGE: Final = 7
NOT_FOUND: Final = 8
READER_TIMEOUT: Final = 9
READER_BUSY: Final = 10
QUEUE_FILTER: Final = 11
NOT_ALLOWED: Final = 12

CODES: Final[dict[type[errors.PenstockError], int]] = {
    errors.AllocationLost: STORAGE,
    errors.AnswerMalformed: UNEXPECTED,
    errors.BackupDamaged: UNEXPECTED,
    errors.BadUrl: UNEXPECTED,
    errors.Busy: READER_BUSY,
    errors.CannotConnect: UNEXPECTED,
    errors.CannotListen: UNEXPECTED,
    errors.ClientClosed: UNEXPECTED,
    errors.Closed: STORAGE,
    errors.ConnectionLost: UNEXPECTED,
    errors.DamagedRecord: STORAGE,
    errors.DeadLetterNotFound: STORAGE,
    errors.DeadlinePassed: UNEXPECTED,
    errors.DoesNotFit: STORAGE,
    errors.EventNotFound: NOT_FOUND,
    errors.FunctionFailed: STORAGE,
    errors.FunctionTimedOut: STORAGE,
    errors.InvalidRequest: MALFORMED,
    errors.IteratorCycle: STORAGE,
    errors.IteratorExists: STORAGE,
    errors.IteratorNotFound: STORAGE,
    errors.LakeDamaged: UNEXPECTED,
    errors.LakeInUse: UNEXPECTED,
    errors.LimitExceeded: MALFORMED,
    errors.LogNotFound: STORAGE,
    errors.MarkSuperseded: STORAGE,
    errors.NotAStore: STORAGE,
    errors.NotAppended: UNEXPECTED,
    errors.NotJson: UNEXPECTED,
    errors.NotCbor: STORAGE,
    errors.NotDurable: STORAGE,
    errors.NotAllowed: NOT_ALLOWED,
    errors.NotLoopback: UNEXPECTED,
    errors.OutputMoved: STORAGE,
    errors.PenstockError: UNEXPECTED,
    errors.PlaceRefused: UNEXPECTED,
    errors.QueueAmbiguous: STORAGE,
    errors.QueueContended: READER_BUSY,
    errors.QueueFilterMismatch: QUEUE_FILTER,
    errors.QueueNotFound: STORAGE,
    errors.ReadFailure: STORAGE,
    errors.ReaderBusy: READER_BUSY,
    errors.ReaderTimeout: READER_TIMEOUT,
    errors.Refused: UNEXPECTED,
    errors.ResultUnreadable: STORAGE,
    errors.StageLost: STORAGE,
    errors.StorageFailure: STORAGE,
    errors.StorageFull: STORAGE,
    errors.StoreChanged: UNEXPECTED,
    errors.StoreError: STORAGE,
    errors.StoreInUse: STORAGE,
    errors.StoreTooNew: STORAGE,
    errors.StoreUnfinished: STORAGE,
    errors.SubscriptionMoved: STORAGE,
    errors.SubscriptionNotFound: STORAGE,
    errors.TimedOut: READER_TIMEOUT,
    errors.Unexpected: UNEXPECTED,
    errors.VersionConflict: CONFLICT,
    errors.WorkerDied: READER_TIMEOUT,
    errors.WriterBusy: WRITER_BUSY,
    errors.WriterTimeout: WRITER_TIMEOUT,
}


RETRIES: Final[dict[int, errors.Retry]] = {
    MALFORMED: errors.Retry.NEVER,
    UNSUPPORTED_PROTOCOL: errors.Retry.NEVER,
    UNSUPPORTED_COMMAND: errors.Retry.NEVER,
    WRITER_BUSY: errors.Retry.SAFE,
    WRITER_TIMEOUT: errors.Retry.SAFE,
    CONFLICT: errors.Retry.NEVER,
    NOT_FOUND: errors.Retry.SAFE,
    READER_TIMEOUT: errors.Retry.SAFE,
    READER_BUSY: errors.Retry.SAFE,
    QUEUE_FILTER: errors.Retry.NEVER,
    NOT_ALLOWED: errors.Retry.NEVER,
}
"""Whether to try again when only the code is understood; of the codes that are not here, nobody knows."""


def code_of(error: errors.PenstockError) -> int:
    """The code of an error."""
    if isinstance(error, errors.Refused):
        return error.code
    # One that the table lacks has the code of its nearest base, at the last that of PenstockError.
    return next(CODES[kind] for kind in type(error).__mro__ if kind in CODES)
