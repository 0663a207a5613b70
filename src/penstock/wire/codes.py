"""Error codes: one table from the exceptions to the codes of each wire. A test asks for an entry of every exception."""

from enum import IntEnum
from typing import Final

from penstock import errors
from penstock.errors import Retry


class Res01Code(IntEnum):
    UNEXPECTED = -1
    MALFORMED = 1
    UNSUPPORTED_PROTOCOL = 2
    UNSUPPORTED_COMMAND = 3
    WRITER_BUSY = 4
    WRITER_TIMEOUT = 5
    CONFLICT = 6
    STORAGE = 7
    NOT_FOUND = 8
    READER_TIMEOUT = 9
    READER_BUSY = 10
    QUEUE_FILTER = 11
    NOT_ALLOWED = 12


class RemitsCode(IntEnum):
    """The codes of Remits' Error frames, by the names that the protocol gives them."""

    LogDoesNotExist = 0
    ItrExistsWithSameName = 1
    ItrDoesNotExist = 2
    MsgNotValidCbor = 3
    ErrRunningLua = 4
    ErrReadingLuaResponse = 5
    ConnectionClosed = 6
    UnknownRequestCode = 7
    UnknownFrameKind = 8
    FailedToReadBytes = 9
    ServerOnlyAcceptsRequests = 10
    CouldNotReadPayload = 11
    LogNameNotUtf8 = 12
    ItrNameNotUtf8 = 13
    ItrTypeNotUtf8 = 14
    ItrFuncNotUtf8 = 15
    ItrTypeInvalid = 16
    MsgIdNotNumber = 17
    MsgFieldNotOfTypeBinary = 18
    LimitExceeded = 32
    ServerBusy = 33
    IteratorTimeout = 34
    NotAllowed = 35
    InternalError = 255


NEVER_SENT: Final = {RemitsCode(code) for code in (6, 12, 13, 14, 15, 16, 17)}
"""Codes of the protocol that Penstock does not send."""

_R, _M = Res01Code, RemitsCode

ERROR_CODES: Final[dict[type[errors.PenstockError], tuple[Res01Code, RemitsCode]]] = {
    errors.AllocationLost: (_R.STORAGE, _M.InternalError),
    errors.AnswerMalformed: (_R.UNEXPECTED, _M.InternalError),
    errors.BackupDamaged: (_R.UNEXPECTED, _M.InternalError),
    errors.BadUrl: (_R.UNEXPECTED, _M.InternalError),
    errors.Busy: (_R.READER_BUSY, _M.ServerBusy),
    errors.CannotConnect: (_R.UNEXPECTED, _M.InternalError),
    errors.CannotListen: (_R.UNEXPECTED, _M.InternalError),
    errors.ClientClosed: (_R.UNEXPECTED, _M.InternalError),
    errors.Closed: (_R.STORAGE, _M.InternalError),
    errors.ConnectionLost: (_R.UNEXPECTED, _M.InternalError),
    errors.DamagedRecord: (_R.STORAGE, _M.InternalError),
    errors.DeadLetterNotFound: (_R.STORAGE, _M.InternalError),
    errors.DeadlinePassed: (_R.UNEXPECTED, _M.InternalError),
    errors.DoesNotFit: (_R.STORAGE, _M.LimitExceeded),
    errors.EventNotFound: (_R.NOT_FOUND, _M.InternalError),
    errors.FunctionFailed: (_R.STORAGE, _M.ErrRunningLua),
    errors.FunctionTimedOut: (_R.STORAGE, _M.IteratorTimeout),
    errors.InvalidRequest: (_R.MALFORMED, _M.CouldNotReadPayload),
    errors.IteratorCycle: (_R.STORAGE, _M.CouldNotReadPayload),
    errors.IteratorExists: (_R.STORAGE, _M.ItrExistsWithSameName),
    errors.IteratorNotFound: (_R.STORAGE, _M.ItrDoesNotExist),
    errors.KeyReused: (_R.STORAGE, _M.InternalError),
    errors.LakeDamaged: (_R.UNEXPECTED, _M.InternalError),
    errors.LakeInUse: (_R.UNEXPECTED, _M.InternalError),
    errors.LastAdministrator: (_R.STORAGE, _M.InternalError),
    errors.LimitExceeded: (_R.MALFORMED, _M.LimitExceeded),
    errors.LogNotFound: (_R.STORAGE, _M.LogDoesNotExist),
    errors.MarkSuperseded: (_R.STORAGE, _M.InternalError),
    errors.NotAStore: (_R.STORAGE, _M.InternalError),
    errors.NotAppended: (_R.UNEXPECTED, _M.InternalError),
    errors.NotJson: (_R.UNEXPECTED, _M.InternalError),
    errors.NotCbor: (_R.STORAGE, _M.MsgNotValidCbor),
    errors.NotDurable: (_R.STORAGE, _M.InternalError),
    errors.NotAllowed: (_R.NOT_ALLOWED, _M.NotAllowed),
    errors.NotAuthenticated: (_R.NOT_ALLOWED, _M.NotAllowed),
    errors.NotLoopback: (_R.UNEXPECTED, _M.InternalError),
    errors.OverLimit: (_R.READER_BUSY, _M.ServerBusy),
    errors.OutputMoved: (_R.STORAGE, _M.InternalError),
    errors.PartlyRepeated: (_R.STORAGE, _M.InternalError),
    errors.PenstockError: (_R.UNEXPECTED, _M.InternalError),
    errors.PlaceRefused: (_R.UNEXPECTED, _M.InternalError),
    errors.PrincipalNotFound: (_R.STORAGE, _M.InternalError),
    errors.QueueAmbiguous: (_R.STORAGE, _M.InternalError),
    errors.QueueContended: (_R.READER_BUSY, _M.ServerBusy),
    errors.QueueExists: (_R.STORAGE, _M.InternalError),
    errors.QueueFilterMismatch: (_R.QUEUE_FILTER, _M.InternalError),
    errors.QueueMismatch: (_R.STORAGE, _M.InternalError),
    errors.QueueNotFound: (_R.STORAGE, _M.InternalError),
    errors.ReadFailure: (_R.STORAGE, _M.InternalError),
    errors.ReaderBusy: (_R.READER_BUSY, _M.ServerBusy),
    errors.ReaderTimeout: (_R.READER_TIMEOUT, _M.ServerBusy),
    errors.Refused: (_R.UNEXPECTED, _M.InternalError),
    errors.ResultUnreadable: (_R.STORAGE, _M.ErrReadingLuaResponse),
    errors.StageLost: (_R.STORAGE, _M.InternalError),
    errors.StorageFailure: (_R.STORAGE, _M.InternalError),
    errors.StorageFull: (_R.STORAGE, _M.InternalError),
    errors.StoreChanged: (_R.UNEXPECTED, _M.InternalError),
    errors.StoreError: (_R.STORAGE, _M.InternalError),
    errors.StoreInUse: (_R.STORAGE, _M.InternalError),
    errors.StoreTooNew: (_R.STORAGE, _M.InternalError),
    errors.StoreUnfinished: (_R.STORAGE, _M.InternalError),
    errors.SubscriptionMismatch: (_R.STORAGE, _M.InternalError),
    errors.SubscriptionMoved: (_R.STORAGE, _M.InternalError),
    errors.SubscriptionNotFound: (_R.STORAGE, _M.InternalError),
    errors.TimedOut: (_R.READER_TIMEOUT, _M.ServerBusy),
    errors.TlsFailed: (_R.UNEXPECTED, _M.InternalError),
    errors.Unexpected: (_R.UNEXPECTED, _M.InternalError),
    errors.VersionConflict: (_R.CONFLICT, _M.InternalError),
    errors.WorkerDied: (_R.READER_TIMEOUT, _M.ServerBusy),
    errors.WriterBusy: (_R.WRITER_BUSY, _M.ServerBusy),
    errors.WriterTimeout: (_R.WRITER_TIMEOUT, _M.ServerBusy),
}

RETRIES: Final[dict[int, Retry]] = {
    **dict.fromkeys((_R.MALFORMED, _R.UNSUPPORTED_PROTOCOL, _R.UNSUPPORTED_COMMAND), Retry.NEVER),
    **dict.fromkeys((_R.CONFLICT, _R.QUEUE_FILTER, _R.NOT_ALLOWED), Retry.NEVER),
    **dict.fromkeys((_R.WRITER_BUSY, _R.WRITER_TIMEOUT, _R.NOT_FOUND), Retry.SAFE),
    **dict.fromkeys((_R.READER_BUSY, _R.READER_TIMEOUT), Retry.SAFE),
}
"""Whether a client may retry when it knows only the Res01 code. For codes that are not here the outcome is unknown."""


def codes_of(error: errors.PenstockError) -> tuple[int, int]:
    """The codes of an error on Res01 and on Remits. A class that the table lacks has those of its nearest base."""
    res01, remits = next(ERROR_CODES[kind] for kind in type(error).__mro__ if kind in ERROR_CODES)
    return error.code if isinstance(error, errors.Refused) else res01, remits
