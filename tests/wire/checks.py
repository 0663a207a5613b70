"""What must hold of any message, however broken: used by the property tests and by the fuzzer."""

from dataclasses import replace
from typing import Any, Final

from hypothesis import settings

from penstock import errors, model
from penstock.errors import PenstockError
from penstock.model import (
    AcknowledgeQueue,
    AddCredential,
    AddMessages,
    Append,
    Appended,
    Authenticate,
    BeginBuild,
    ContextInfo,
    CreateIterator,
    CreateLog,
    Delivery,
    Done,
    DropCredential,
    DropIterator,
    DropLog,
    DropOutput,
    DropPrincipal,
    DropStages,
    Encoded,
    Erased,
    EraseStream,
    EraseSubject,
    ErasureInfo,
    EventPage,
    FetchedBatch,
    FetchSubscription,
    FindMessage,
    FindPosition,
    Found,
    GetStats,
    Installed,
    InstallOutput,
    IssuedToken,
    IssueToken,
    ItemPage,
    IteratorKind,
    IteratorSummary,
    ListContexts,
    ListCredentials,
    ListDeadLetters,
    ListErasures,
    ListIterators,
    ListLogs,
    ListPage,
    ListPrincipals,
    ListQueues,
    ListStreams,
    ListSubscriptions,
    LogSummary,
    MessagePage,
    Names,
    NextItems,
    Over,
    ProgressSubscription,
    Published,
    PublishStages,
    PutBack,
    PutPrincipal,
    QueueInfo,
    ReadAll,
    ReadEvent,
    ReadMessages,
    ReadRecords,
    ReadStream,
    RecordPage,
    Registered,
    RegisterSubscriptions,
    ReleaseQueue,
    Replayed,
    ReplayQueue,
    Reply,
    Request,
    ResetQueue,
    SetDeadLetterRule,
    SetSubscription,
    ShowIterator,
    ShowLog,
    StageEvents,
    StageOutput,
    StagesTaken,
    StreamInfo,
    SubscribeQueue,
    SubscriptionInfo,
    Transact,
    Transacted,
    WhoAmI,
)
from penstock.wire.codes import ERROR_CODES
from penstock.wire.res01.commands import TEXT_COMMANDS
from penstock.wire.res01.dialects import OWN_TAG, EventEncoder, Frames
from penstock.wire.res01.messages import Exchange, Unanswerable, decode, fields_of
from tests.wire.sample_parts import ByRequest
from tests.wire.samples import APPENDED, DELIVERY, EVENT, NOW, STATS
from tests.wire.samples_access import CREDENTIALS, ID, IDENTITY, PRINCIPALS, TOKEN
from tests.wire.samples_builds import START

ANSWERS: Final = {command.answer.code for command in TEXT_COMMANDS.values()} | {b"ER"}
KNOWN_CODES: Final = {b"%d" % code for code, _ in ERROR_CODES.values()} | {b"2", b"3"}
FAILURES: Final[tuple[PenstockError, ...]] = (
    errors.WriterBusy(3),
    errors.VersionConflict("shop", "order-1", 1, 4),
    errors.StorageFailure("the disk is gone"),
    errors.NotAllowed("somebody", "APPEND"),
    errors.Unexpected("\ud800"),
)

_REPLIES: Final[dict[type[Request], Reply]] = ByRequest(
    {
        Append: APPENDED,
        ReadEvent: EventPage([EVENT], 2, True),
        ReadStream: EventPage([EVENT, EVENT], 3, False),
        ReadRecords: RecordPage("8f3a", 1, [b"record"], 8, True),
        FetchSubscription: FetchedBatch(4, [EVENT]),
        ProgressSubscription: Done(),
        SetSubscription: Done(),
        model.DeleteSubscription: Done(),
        SubscribeQueue: DELIVERY,
        AcknowledgeQueue: Delivery("shop", "mail", "worker-1", NOW, None, []),
        ReleaseQueue: Done(),
        ResetQueue: Done(),
        SetDeadLetterRule: Done(),
        PutBack: Done(),
        ReplayQueue: Replayed(2, 1, 5),
        model.SettleQueue: Done(),
        model.PreviewQueue: model.QueuePreview(8, 10_000, False, 4200, 3, 1),
        model.ExtendQueue: model.Extended(NOW),
        model.PauseQueue: Done(),
        model.RenameQueue: Done(),
        model.DeleteQueue: Done(),
        model.SetRetryPolicy: Done(),
        model.SetQueueFilter: Done(),
        model.ListLetters: ListPage([], True),
        model.PutBackLetters: model.PutBackCount(3),
        ListContexts: ListPage([ContextInfo("shop", 7, 5, 2, 77)], True),
        ListStreams: ListPage([StreamInfo("order-1", 1)], True),
        ListQueues: ListPage([QueueInfo(1, "shop", "mail", "", 8, 0, 3, 1, 2, 0, None, True, 0)], True),
        ListSubscriptions: ListPage([SubscriptionInfo(4, "mailer", "shop", "", 8, None, 7, False, 900)], True),
        ListDeadLetters: ListPage([], True),
        GetStats: STATS,
        ReadAll: EventPage([EVENT], 8, False),
        FindPosition: Found(None),
        CreateLog: Done(),
        DropLog: Done(),
        ShowLog: LogSummary("orders", NOW, 2, 77, ["large"]),
        ListLogs: Names(["orders"]),
        AddMessages: Done(),
        CreateIterator: Done(),
        DropIterator: Done(),
        ShowIterator: IteratorSummary(
            "large", "orders", Over.LOG, IteratorKind.FILTER, "return msg > 4", True, NOW, 7, 0
        ),
        ListIterators: Names([]),
        NextItems: ItemPage([b"\x05", b""]),
        EraseStream: Erased(4, 0, True),
        EraseSubject: Erased(3, 70001, False),
        StageEvents: StagesTaken(8 << 20),
        PublishStages: Published(12, 3, 250),
        DropStages: Done(),
        BeginBuild: START,
        ReadMessages: MessagePage([b"\x05", None, b""]),
        FindMessage: Found(18),
        StageOutput: Done(),
        InstallOutput: Installed(700, 690, 700),
        DropOutput: Done(),
        ListErasures: ListPage([ErasureInfo(1, "shop", "order-1", 4, NOW, None, 0)], True),
        Authenticate: IDENTITY,
        WhoAmI: IDENTITY,
        PutPrincipal: Done(),
        DropPrincipal: Done(),
        IssueToken: IssuedToken(ID, TOKEN),
        AddCredential: Done(),
        DropCredential: Done(),
        ListPrincipals: PRINCIPALS,
        ListCredentials: CREDENTIALS,
    }
)

few_examples: Final = settings(max_examples=settings().max_examples // 5)
"""For a property that is tested once for each of many kinds of request or error."""


def reply_to(request: Request) -> Reply:
    """A reply of the kind that the engine gives."""
    if isinstance(request, RegisterSubscriptions):
        return Registered(tuple(range(1, len(request.subscriptions) + 1)))
    if isinstance(request, Transact):
        return Transacted((Appended(APPENDED.commit, 1, 1, 1, True),) * len(request.commits))
    return _REPLIES[type(request)]


def encoded(reply: Reply, present: EventEncoder) -> Reply:
    """The reply as it comes out of a worker process: its events are frames already."""
    if isinstance(reply, EventPage | FetchedBatch | Delivery):
        return replace(reply, events=[], encoded=Encoded(len(reply.events), present(reply.events)))
    if isinstance(reply, ItemPage):
        items: list[Any] = reply.items
        return ItemPage([], Encoded(len(items), present(items)))
    return reply


def check(frames: list[bytes], *, legacy: bool = False) -> list[bytes] | None:
    """Decode a message and answer it in every way. Gives the answers' commands, or None if it cannot be answered."""
    try:
        exchange = decode(frames, legacy=legacy)
    except Unanswerable:
        assert b"" not in frames
        return None
    replies = [reply_to(request) for request in exchange.requests]
    answers = exchange.answers(replies)
    assert answers == exchange.answers([encoded(reply, exchange.present) for reply in replies])
    _check_answers(frames, exchange, answers)
    for failure in FAILURES:
        _check_answers(frames, exchange, exchange.answers([failure] * len(replies)))
    border = frames.index(b"")
    return [answer[border + 3] for answer in answers]


def _check_answers(frames: list[bytes], exchange: Exchange, answers: list[list[bytes]]) -> None:
    assert len(answers) == (len(exchange.requests) if isinstance(_first(exchange), FetchSubscription) else 1)
    border = frames.index(b"")
    tag, request_id = _head(frames, border)
    for answer in answers:
        assert all(type(frame) is bytes for frame in answer)
        assert answer[: border + 3] == [*frames[: border + 1], tag, request_id]
        name, *details = answer[border + 3 :]
        assert name in ANSWERS
        if name == b"ER":
            code, sentence = details
            assert code in KNOWN_CODES
            assert sentence.decode()


def _first(exchange: Exchange) -> Request | None:
    return next(iter(exchange.requests), None)


def _head(frames: list[bytes], border: int) -> tuple[bytes, bytes]:
    """The tag that an answer must carry, and the RequestId."""
    head = frames[border + 1 : border + 4]
    return (head[0] if head else b"Res01"), (head[2] if len(head) == 3 else b"")


def message_of(request: Request, request_id: bytes) -> Frames:
    """A request as a message, without routing frames and the empty frame."""
    command, *payload = fields_of(request)
    return [OWN_TAG, command, request_id, *payload]


def in_columns(request: Request) -> Request:
    """A request as a server gets it: the events of its commits are columns."""
    if isinstance(request, Transact):
        return replace(request, commits=tuple(replace(each, events=each.columns()) for each in request.commits))
    return replace(request, events=request.columns()) if isinstance(request, Append) else request
