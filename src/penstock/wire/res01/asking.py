"""The client's side of Res01: requests to messages, answers to replies. In the text dialect.

A client uses the commands that tell everything (`full`) where the seeds' own leave something out. One table says for
each request what it is sent as and what answers it.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from penstock import model
from penstock.errors import AnswerMalformed, InvalidRequest, PenstockError
from penstock.model import Reply, Request
from penstock.wire.res01 import reading, writing
from penstock.wire.res01.decoding import TEXT_TAG
from penstock.wire.res01.exchange import Frames
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.refusals import error_of
from penstock.wire.res01.scalars import TEXT_SCALARS, shown

ERROR: Final = b"ER"


class Asking(NamedTuple):
    """How a kind of request is asked, and how its answer is read."""

    command: bytes
    write: Callable[[Any], Frames]
    answer: bytes
    read: Callable[[Fields], Reply | PenstockError]


def fields_of(request: Request) -> Frames:
    """The Command and the payload of a request. What this wire cannot carry is InvalidRequest."""
    asking = ASKED.get(type(request))
    if asking is None:
        raise InvalidRequest(type(request).__name__, "cannot be asked over Res01")
    try:
        return [asking.command, *asking.write(request)]
    except UnicodeEncodeError as error:
        raise InvalidRequest("text", f"is not valid Unicode: {error.object[:40]!r}") from None


def message_of(request: Request, request_id: bytes) -> Frames:
    """A request as a message, but for routing frames and the empty frame behind them."""
    command, *payload = fields_of(request)
    return [TEXT_TAG, command, request_id, *payload]


def reply_of(request: Request, answer: Frames) -> Reply | PenstockError:
    """What the frames behind an answer's tag and RequestId say. Nothing that arrives makes this raise.

    An ER is the error it tells of; an answer that is not what the protocol says is AnswerMalformed.
    """
    try:
        return _read(request, Fields(answer, 0, TEXT_SCALARS))
    except InvalidRequest as error:
        return AnswerMalformed(str(error))


def _read(request: Request, fields: Fields) -> Reply | PenstockError:
    asking, command = ASKED[type(request)], fields.frame("Command")
    if command == asking.answer:
        reply = asking.read(fields)
    elif command == ERROR:
        reply = error_of(fields.number("Code"), fields.frame("Message").decode(errors="replace"), request)
    else:
        raise InvalidRequest("Command", f"is {shown(command)} in answer to {shown(asking.command)}")
    fields.end()
    return reply


ASKED: Final[dict[type[Request], Asking]] = {
    model.Append: Asking(b"AF", writing.append, b"CF", reading.appended),
    model.Transact: Asking(b"TX", writing.transact, b"TR", reading.transacted),
    model.ReadStream: Asking(b"QF", writing.read_stream, b"PF", reading.event_page),
    model.ReadEvent: Asking(b"GF", writing.read_event, b"PF", reading.event_page),
    model.ReadAll: Asking(b"RF", writing.read_all, b"PF", reading.event_page),
    model.ReadRecords: Asking(b"RA", writing.read_records, b"RD", reading.record_page),
    model.FindPosition: Asking(b"TP", writing.find_position, b"PT", reading.found),
    model.RegisterSubscriptions: Asking(b"RS", writing.register, b"SR", reading.registered),
    model.FetchSubscription: Asking(b"FF", writing.fetch, b"BF", reading.batch),
    model.ProgressSubscription: Asking(b"PS", writing.progress, b"SP", reading.progressed),
    model.SetSubscription: Asking(b"SS", writing.set_subscription, b"ST", reading.was_set),
    model.ListSubscriptions: Asking(b"LU", writing.listing, b"UL", reading.subscriptions),
    model.SubscribeQueue: Asking(b"SF", writing.subscribe_queue, b"DF", reading.delivery),
    model.AcknowledgeQueue: Asking(b"KF", writing.acknowledge, b"DF", reading.delivery),
    model.ReleaseQueue: Asking(b"RK", writing.release_queue, b"QT", reading.changed),
    model.ResetQueue: Asking(b"RT", writing.reset_queue, b"QT", reading.changed),
    model.SetDeadLetterRule: Asking(b"DR", writing.set_dead_letter_rule, b"QT", reading.changed),
    model.ListDeadLetters: Asking(b"DL", writing.list_dead_letters, b"LD", reading.dead_letters),
    model.PutBack: Asking(b"DP", writing.put_back, b"QT", reading.changed),
    model.ReplayQueue: Asking(b"RP", writing.replay_queue, b"PR", reading.replayed),
    model.ListQueues: Asking(b"LQ", writing.listing, b"QL", reading.queues),
    model.ListContexts: Asking(b"LC", writing.listing, b"CL", reading.contexts),
    model.ListStreams: Asking(b"LS", writing.list_streams, b"SL", reading.streams),
    model.GetStats: Asking(b"GS", writing.nothing, b"SG", reading.stats),
    model.CreateLog: Asking(b"NL", writing.log, b"OK", reading.done),
    model.DropLog: Asking(b"XL", writing.drop_log, b"OK", reading.done),
    model.ShowLog: Asking(b"GL", writing.log, b"LG", reading.log_summary),
    model.ListLogs: Asking(b"LL", writing.nothing, b"LN", reading.names),
    model.AddMessages: Asking(b"ML", writing.add_messages, b"OK", reading.done),
    model.CreateIterator: Asking(b"NI", writing.create_iterator, b"OK", reading.done),
    model.DropIterator: Asking(b"XI", writing.drop_iterator, b"OK", reading.done),
    model.ShowIterator: Asking(b"GI", writing.show_iterator, b"IG", reading.iterator_summary),
    model.ListIterators: Asking(b"LI", writing.list_iterators, b"LN", reading.names),
    model.NextItems: Asking(b"NX", writing.next_items, b"IP", reading.item_page),
    model.EraseStream: Asking(b"ES", writing.erase_stream, b"SE", reading.erased),
    model.EraseSubject: Asking(b"EJ", writing.erase_subject, b"SE", reading.erased),
    model.StageEvents: Asking(b"ZS", writing.stage_events, b"ZT", reading.stages_taken),
    model.PublishStages: Asking(b"ZP", writing.publish_stages, b"ZR", reading.published),
    model.DropStages: Asking(b"ZD", writing.drop_stages, b"OK", reading.done),
    model.BeginBuild: Asking(b"BB", writing.begin_build, b"BG", reading.build_start),
    model.ReadMessages: Asking(b"BM", writing.read_messages, b"MB", reading.message_page),
    model.FindMessage: Asking(b"BP", writing.find_message, b"PT", reading.found),
    model.StageOutput: Asking(b"BO", writing.stage_output, b"OK", reading.done),
    model.InstallOutput: Asking(b"BI", writing.install_output, b"BR", reading.installed),
    model.DropOutput: Asking(b"BD", writing.drop_output, b"OK", reading.done),
    model.ListErasures: Asking(b"EL", writing.listing, b"LE", reading.erasures),
}
