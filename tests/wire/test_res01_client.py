"""The client's side of Res01: what it asks is what the server understands, and what it reads is what was answered."""

import struct
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from penstock import model
from penstock.errors import AnswerMalformed, EventNotFound, InvalidRequest, PenstockError, SubscriptionNotFound
from penstock.model import Append, NewEvent, ProducerMark, ReadAll, Reply, Request, Transact
from penstock.wire.res01.commands import OURS, TEXT_COMMANDS, Hello
from penstock.wire.res01.dialects import full_events, full_frames
from penstock.wire.res01.messages import decode, fields_of, reply_of
from tests.wire.checks import encoded, few_examples, in_columns, message_of, reply_to
from tests.wire.res01_strategies import REPLIES, REQUESTS, event_lists
from tests.wire.sample_parts import ByRequest
from tests.wire.samples import EVENT, NEW_EVENT, NOTHING, REQUEST_ID, SAMPLES, TEXT, TICKS, sample

KINDS: Final = sorted(REQUESTS, key=lambda kind: kind.__name__)
EXAMPLES: Final[dict[type[Request], Request]] = ByRequest(
    {type(request): request for each in SAMPLES if each.dialect == TEXT for request in each.requests}
)
every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def answered(request: Request, reply: Reply | PenstockError, *, by_worker: bool = False) -> list[bytes]:
    """What the server answers, behind tag and RequestId."""
    exchange = decode([b"", *message_of(request, REQUEST_ID)])
    if by_worker and not isinstance(reply, PenstockError):
        reply = encoded(reply, exchange.present)
    (answer,) = exchange.answers([reply])
    assert answer[:3] == [b"", b"PEN1", REQUEST_ID]
    return answer[3:]


# --- there and back -------------------------------------------------------------------------------------------


def test_every_request_can_be_asked() -> None:
    requests = {kind for kind in vars(model).values() if isinstance(kind, type) and issubclass(kind, Request)}
    tables = {
        "EXTENSIONS in src/penstock/wire/res01/commands.py": set(OURS) - {Hello},
        "SAMPLES in tests/wire/samples.py": set(EXAMPLES) - {Hello},
        "REQUESTS in tests/wire/res01_strategies.py": set(REQUESTS),
        "REPLIES in tests/wire/res01_strategies.py": set(REPLIES),
    }
    for where, kinds in tables.items():
        assert kinds == requests - {Request}, f"{where}: see `Add a Res01 command` in CONTRIBUTING.md"


def test_of_several_commands_for_a_request_the_client_takes_the_one_that_tells_most() -> None:
    others = {command.code for command in TEXT_COMMANDS.values()} - {command.code for command in OURS.values()}
    queues = {b"SQ", b"AQ", b"RQ", b"SW", b"AW", b"SF", b"SD", b"LQ", b"LU"} | {b"RS", b"SS"}
    assert others == {b"AC", b"AF", b"TX", b"QS", b"QF", b"FE", b"GE", b"FW", b"FF", *queues}


@every_kind
@few_examples
@given(data=st.data())
def test_the_server_understands_what_a_client_asks(kind: type[Request], data: st.DataObject) -> None:
    request = data.draw(REQUESTS[kind])
    message = message_of(request, REQUEST_ID)
    assert message == [b"PEN1", fields_of(request)[0], REQUEST_ID, *fields_of(request)[1:]]
    assert decode([b"", *message]).requests == (in_columns(request),)


@every_kind
@few_examples
@given(data=st.data(), by_worker=st.booleans())
def test_the_client_reads_what_the_server_answers(kind: type[Request], data: st.DataObject, by_worker: bool) -> None:
    request, reply = EXAMPLES[kind], data.draw(REPLIES[kind])
    assert reply_of(request, answered(request, reply, by_worker=by_worker)) == reply


@every_kind
def test_an_error_in_place_of_an_answer_is_that_error(kind: type[Request]) -> None:
    error = EventNotFound("shop", "order-1", 4)
    read = reply_of(EXAMPLES[kind], answered(EXAMPLES[kind], error))
    assert isinstance(read, EventNotFound)
    assert vars(read) == vars(error)


# --- whole events ---------------------------------------------------------------------------------------------


@given(event_lists)
def test_whole_events_come_back_whole(events: list[model.Event]) -> None:
    assert full_events(full_frames(events)) == events


@pytest.mark.parametrize("count", [0, 1, 2, 12, 13, 200])
def test_events_of_one_stream_share_their_names(count: int) -> None:
    history = [structs.replace(EVENT, position=at, sequence=at, body=b"%d" % at) for at in range(1, count + 1)]
    read = full_events(full_frames(history))
    assert read == history
    assert len({id(event.stream) for event in read}) == min(count, 1)


@pytest.mark.parametrize(
    ("at", "wrong", "reason"),
    [
        (0, b"short", "EventId of event 1 has 5 bytes; a guid has 16"),
        (1, b"\xff", "StreamId of event 1 is not UTF-8 (byte 0)"),
        (3, b"one", "Sequence of event 1 is not a number: 'one'"),
        (3, b"-", "Sequence of event 1 is not a number: '-'"),
        (8, b"9" * 50, f"Position of event 1 is not a number: '{'9' * 40}'…"),
        (9, b"soon", "Recorded of event 1 is neither ticks nor ISO 8601: 'soon'"),
        (10, b"", "CommitId of event 1 has 0 bytes; a guid has 16"),
    ],
)
def test_an_event_that_cannot_be_read_is_told_by_its_field(at: int, wrong: bytes, reason: str) -> None:
    (answer,) = sample("GF").answers
    frames = [*answer]
    frames[4 + at] = wrong
    read = reply_of(EXAMPLES[model.ReadEvent], frames)
    assert isinstance(read, AnswerMalformed)
    assert read.reason == reason
    assert str(read) == f"the server's answer cannot be read: {reason}; it may have carried the request out"


# --- what cannot be asked -------------------------------------------------------------------------------------


def test_a_commit_of_a_transaction_has_no_mark_of_its_own() -> None:
    commit = Append("shop", "order-1", (NEW_EVENT,), 1, ProducerMark("importer", 12))
    with pytest.raises(InvalidRequest, match="mark belongs to the whole transaction"):
        fields_of(Transact((commit,)))


def test_no_types_at_all_are_not_every_type() -> None:
    with pytest.raises(InvalidRequest, match="types are none at all"):
        fields_of(ReadAll(types=()))


def test_types_may_be_any_collection() -> None:
    (request,) = decode([b"", *message_of(ReadAll(types=frozenset({"Placed"})), b"1")]).requests
    assert request == ReadAll(types=("Placed",))


@pytest.mark.parametrize(
    "request_",
    [
        model.CreateLog("\ud800"),
        Append("shop", "\ud800", (NEW_EVENT,), 1),
        Append("shop", "order-1", (NewEvent(EVENT.id, EVENT.stamp, "Placed", "\ud800", b""),) * 2, 1),
    ],
)
def test_text_that_is_not_unicode_is_said_before_anything_is_sent(request_: Request) -> None:
    with pytest.raises(InvalidRequest, match="text is not valid Unicode"):
        message_of(request_, b"1")


def test_a_request_of_another_kind_is_said_by_name() -> None:
    class Dance(Request):
        """Nobody knows how."""

    with pytest.raises(InvalidRequest, match="Dance cannot be sent over Res01"):
        fields_of(Dance())


def test_events_are_written_as_columns() -> None:
    fields = fields_of(Append("shop", "order-1", [NEW_EVENT], -1))
    assert fields[:8] == [b"AB", b"", b"", b"shop", b"order-1", b"-1", b"1", b"1"]
    kind, fixed, headers, body = fields[8:]
    assert (kind.decode(), headers.decode() or None, body) == (NEW_EVENT.type, NEW_EVENT.headers, NEW_EVENT.body)
    assert fixed == NEW_EVENT.id + struct.pack("<QHII", NEW_EVENT.stamp, 0, len(headers), len(body))


# --- answers that are not what they should be -----------------------------------------------------------------

frames = st.one_of(
    st.binary(max_size=20),
    st.integers().map(lambda number: b"%d" % number),
    st.sampled_from([b"", b"0", b"1", b"-1", b"2", bytes(16), b"9" * 5000]),
)


@every_kind
@few_examples
@given(st.data(), st.lists(frames, max_size=25))
def test_garbage_is_read_or_malformed(kind: type[Request], data: st.DataObject, garbage: list[bytes]) -> None:
    name = data.draw(st.sampled_from([[], [OURS[kind].answer.code], [b"ER"]]))
    assert isinstance(reply_of(EXAMPLES[kind], [*name, *garbage]), Reply | PenstockError)


@every_kind
@few_examples
@given(st.data())
def test_an_answer_with_a_frame_changed_is_read_or_malformed(kind: type[Request], data: st.DataObject) -> None:
    answer = answered(EXAMPLES[kind], reply_to(EXAMPLES[kind]))
    at = data.draw(st.integers(0, len(answer)))
    answer[at : at + data.draw(st.integers(0, 2))] = data.draw(st.lists(frames, max_size=2))
    assert isinstance(reply_of(EXAMPLES[kind], answer), Reply | PenstockError)


@every_kind
def test_an_answer_cut_short_or_too_long_is_malformed(kind: type[Request]) -> None:
    answer = answered(EXAMPLES[kind], reply_to(EXAMPLES[kind]))
    for length in range(len(answer)):
        assert isinstance(reply_of(EXAMPLES[kind], answer[:length]), AnswerMalformed)
    for more in ([b""], [b"1"] * 22):
        assert isinstance(reply_of(EXAMPLES[kind], [*answer, *more]), AnswerMalformed)


@every_kind
def test_an_answer_to_something_else_is_malformed(kind: type[Request]) -> None:
    read = reply_of(EXAMPLES[kind], [b"ZZ", b"1"])
    assert isinstance(read, AnswerMalformed)
    assert read.reason == f"Command is 'ZZ' in answer to '{OURS[kind].code.decode()}'"


def test_a_flag_is_0_or_1() -> None:
    (answer,) = sample("GF").answers
    read = reply_of(EXAMPLES[model.ReadEvent], [*answer[:2], b"yes", *answer[3:]])
    assert isinstance(read, AnswerMalformed)
    assert read.reason == "End is neither 0 nor 1: 'yes'"


# --- single answers -------------------------------------------------------------------------------------------


def test_nothing_allocated_is_no_allocation() -> None:
    read = reply_of(EXAMPLES[model.AcknowledgeQueue], sample("KF").answers[0])
    assert read == NOTHING


def test_a_subscription_that_was_not_set_is_an_error() -> None:
    error = SubscriptionNotFound("of mailer to 'order-' in context shop")
    request = EXAMPLES[model.SetSubscription]
    read = reply_of(request, answered(request, error))
    assert isinstance(read, SubscriptionNotFound)
    assert read.wanted == error.wanted


def test_two_results_where_one_was_asked_for_are_malformed() -> None:
    assert isinstance(reply_of(EXAMPLES[model.SetSubscription], [b"ST", b"2", b"", b""]), AnswerMalformed)


def test_counts_that_a_client_does_not_know_are_passed_over() -> None:
    (answer,) = sample("GS").answers
    more = [answer[0], b"15", b"moons", b"2", *answer[2:]]
    assert reply_of(model.GetStats(), more) == sample("GS").replies[0]


def test_a_count_that_is_missing_is_malformed() -> None:
    (answer,) = sample("GS").answers
    read = reply_of(model.GetStats(), [answer[0], b"13", *answer[4:]])
    assert isinstance(read, AnswerMalformed)
    assert read.reason == "store_id is missing among the counts"


def test_a_time_that_is_not_there_yet_has_no_position() -> None:
    request = model.FindPosition("shop", "", TICKS)
    assert reply_of(request, [b"PT", b""]) == model.Found(None)
