"""Every command in every dialect: what a message asks for, and how it is answered."""

from dataclasses import replace

import pytest
from msgspec import structs

from penstock.errors import Busy, PenstockError, StorageFailure, SubscriptionNotFound, WriterBusy, WriterTimeout
from penstock.model import (
    ANY,
    AcknowledgeQueue,
    Append,
    Done,
    EventPage,
    FetchedBatch,
    ReadRecords,
    ReadStream,
    SubscribeQueue,
    Transact,
)
from penstock.wire.res01.commands import BINARY_COMMANDS, TEXT_COMMANDS
from penstock.wire.res01.messages import Exchange, decode
from tests.wire.checks import encoded, message_of
from tests.wire.samples import (
    APPENDED,
    BINARY,
    BODY,
    COMMIT,
    DELIVERY,
    EVENT,
    EVENT_FRAMES,
    GUID,
    LEGACY,
    NEW_FRAMES,
    NEW_FRAMES_BINARY,
    REQUEST_ID,
    SAMPLES,
    STAMP,
    TEXT,
    TEXT_ID,
    TICKS,
    Sample,
    int4,
    long8,
    sample,
    time,
)

every_sample = pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.title)


def asked(command: str, *payload: bytes, dialect: str = TEXT) -> Exchange:
    message = Sample(dialect, command, list(payload), (), [], []).message()
    return decode(message, legacy=dialect == LEGACY)


def refusal(exchange: Exchange) -> tuple[bytes, str]:
    """The code and the sentence of a message that was refused."""
    assert exchange.requests == ()
    ((_, _, _, name, code, sentence),) = exchange.answers([])
    assert name == b"ER"
    return code, sentence.decode()


# --- every command --------------------------------------------------------------------------------------------


@every_sample
def test_a_message_asks_for_what_it_says(sample: Sample) -> None:
    assert decode(sample.message(), legacy=sample.is_legacy).requests == sample.requests


@every_sample
def test_a_message_is_answered_byte_by_byte(sample: Sample) -> None:
    exchange = decode(sample.message(), legacy=sample.is_legacy)
    assert exchange.answers(sample.replies) == sample.answer_messages()


@every_sample
def test_events_that_a_worker_has_encoded_give_the_same_answer(sample: Sample) -> None:
    exchange = decode(sample.message(), legacy=sample.is_legacy)
    replies = [
        reply if isinstance(reply, PenstockError) else encoded(reply, exchange.present) for reply in sample.replies
    ]
    assert exchange.answers(replies) == sample.answer_messages()


@every_sample
@pytest.mark.parametrize("routing", [(), (b"\x00\x6b\x8b\x45\x67",), (b"client", b"broker", b"Res01", b"AC")])
def test_any_number_of_routing_frames_comes_back_in_order(sample: Sample, routing: tuple[bytes, ...]) -> None:
    exchange = decode(sample.message(*routing), legacy=sample.is_legacy)
    assert exchange.answers(sample.replies) == sample.answer_messages(*routing)


@every_sample
def test_a_request_id_is_opaque(sample: Sample) -> None:
    message = sample.message()
    for request_id in (b"", b"\xff\x00", b"x" * 1000):
        message[3] = request_id
        answers = decode(message, legacy=sample.is_legacy).answers(sample.replies)
        assert [answer[2] for answer in answers] == [request_id] * len(answers)


def test_there_is_a_sample_of_every_command_in_every_dialect() -> None:
    text = {sample.command.encode() for sample in SAMPLES if sample.dialect == TEXT}
    binary = {sample.command.encode() for sample in SAMPLES if sample.dialect == BINARY}
    assert (text, binary) == (set(TEXT_COMMANDS), set(BINARY_COMMANDS))


def test_the_tables_say_what_answers_a_command() -> None:
    for each in SAMPLES:
        table = BINARY_COMMANDS if each.dialect == BINARY else TEXT_COMMANDS
        assert each.answers[0][0] == table[each.command.encode()].answer.code


def test_decoding_leaves_the_frames_as_they_were() -> None:
    message = sample("TX").message(b"client")
    copy = list(message)
    decode(message).answers(sample("TX").replies)
    assert message == copy


# --- the tag and the dialect ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "sample", [sample for sample in SAMPLES if sample.dialect != BINARY], ids=lambda sample: sample.title
)
def test_an_original_text_client_has_every_text_command_and_is_answered_with_its_tag(sample: Sample) -> None:
    _, _, command, _, *payload = sample.message()
    exchange = decode([b"r", b"", b"RC0.1", command, TEXT_ID, *payload], legacy=sample.is_legacy)
    assert exchange.requests == sample.requests
    assert exchange.answers(sample.replies) == [[b"r", b"", b"RC0.1", TEXT_ID, *answer] for answer in sample.answers]


@pytest.mark.parametrize("length", [0, 1, 16, 32, 35, 37, 1000])
def test_with_the_original_tag_any_other_request_id_means_binary(length: int) -> None:
    request_id = b"f" * length
    binary, text = (decode([b"", b"RC0.1", b"AC", request_id, *sample(title).payload]) for title in ("AC binary", "AC"))
    assert binary.requests == sample("AC binary").requests
    assert text.answers([])[0][:5] == [b"", b"RC0.1", request_id, b"ER", b"1"]


@pytest.mark.parametrize("request_id", [b"f" * 36, bytes(36), TEXT_ID.upper()])
def test_only_the_length_of_the_request_id_counts(request_id: bytes) -> None:
    assert decode([b"", b"RC0.1", b"GS", request_id]).requests == sample("GS").requests


@pytest.mark.parametrize("legacy", [False, True])
def test_mistakes_of_an_original_text_client_are_answered_with_its_tag(legacy: bool) -> None:
    for command, payload, code in ((b"XX", [], b"3"), (b"RR", [], b"3"), (b"QS", [b"shop"], b"1")):
        (answer,) = decode([b"", b"RC0.1", command, TEXT_ID, *payload], legacy=legacy).answers([])
        assert answer[:5] == [b"", b"RC0.1", TEXT_ID, b"ER", code]
        assert b"binary" not in answer[5]


# --- commits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 12, 13, 100])
@pytest.mark.parametrize("dialect", [TEXT, BINARY])
def test_a_commit_has_its_events_in_order(dialect: str, count: int) -> None:
    frames = NEW_FRAMES if dialect == TEXT else NEW_FRAMES_BINARY
    bodies = [b"%d" % number for number in range(count)]
    numbers = (b"-1", b"%d" % count) if dialect == TEXT else (long8(-1), int4(count))
    events = [frame for body in bodies for frame in (*frames[:4], body)]
    (request,) = asked("AC", b"shop", b"order-1", *numbers, *events, dialect=dialect).requests
    assert isinstance(request, Append)
    assert request.expected == ANY
    columns = request.columns()
    assert columns.split_bodies() == bodies
    assert set(columns.numbers()[0]) == {STAMP}


def test_empty_headers_are_null_and_come_back_empty() -> None:
    (request,) = asked("AC", b"shop", b"order-1", b"1", b"1", *NEW_FRAMES[:3], b"", BODY).requests
    assert isinstance(request, Append)
    assert request.columns().headers == b""
    ((*_, headers, _),) = asked("QS", *sample("QS").payload).answers(
        [EventPage([structs.replace(EVENT, headers=None)], 2, True)]
    )
    assert headers == b""


def test_types_of_a_stream_may_be_left_out() -> None:
    place = (b"shop", b"order-1", b"1", b"", b"", b"0")
    for more, types in (((), None), ((b"0",), None), ((b"2", b"Placed", b"Paid"), ("Placed", "Paid"))):
        (request,) = asked("QF", *place, *more).requests
        assert request == ReadStream("shop", "order-1", types=types)
    assert message_of(ReadStream("shop", "order-1"), b"1")[3:] == list(place)
    assert message_of(ReadStream("shop", "order-1", types=("Placed",)), b"1")[3:] == [*place, b"1", b"Placed"]


def test_a_body_is_bytes_not_text() -> None:
    (request,) = asked("AC", b"shop", b"order-1", b"1", b"1", *NEW_FRAMES[:4], b"\xff\x00").requests
    assert isinstance(request, Append)
    assert request.columns().bodies == b"\xff\x00"


@pytest.mark.parametrize("version", [b"0", b"-2"])
def test_the_engine_judges_a_version_in_the_text_dialect(version: bytes) -> None:
    (request,) = asked("AC", b"shop", b"order-1", version, b"1", *NEW_FRAMES).requests
    assert isinstance(request, Append)
    assert request.expected == int(version)


@pytest.mark.parametrize("version", [0, -2, -(1 << 63)])
def test_an_impossible_version_is_a_conflict_in_the_binary_dialect(version: int) -> None:
    exchange = asked("AC", b"shop", b"order-1", long8(version), int4(1), *NEW_FRAMES_BINARY, dialect=BINARY)
    code, sentence = refusal(exchange)
    assert code == b"6"
    assert f"expected version {version} of stream order-1 in context shop" in sentence


@pytest.mark.parametrize("version", [1, 0, -1, 99])
def test_a_commit_without_events_is_fine_in_the_binary_dialect_and_writes_nothing(version: int) -> None:
    exchange = asked("AC", b"shop", b"order-1", long8(version), int4(0), dialect=BINARY)
    assert exchange.requests == ()
    assert exchange.answers([]) == [[b"", b"RC0.1", REQUEST_ID, b"CR", bytes(16)]]


@pytest.mark.parametrize("number", [long8, int4])
def test_numbers_of_four_and_eight_bytes_are_both_taken(number: type) -> None:
    exchange = asked("AC", b"shop", b"order-1", number(1), number(1), *NEW_FRAMES_BINARY, dialect=BINARY)
    assert exchange.requests == sample("AC binary").requests


# --- older results --------------------------------------------------------------------------------------------


def test_older_results_have_three_fields() -> None:
    (answer,) = asked("AC", *sample("AC").payload, dialect=LEGACY).answers([APPENDED])
    assert answer[3:] == [b"CR", b"", b"", COMMIT]


@pytest.mark.parametrize(
    ("error", "result"),
    [(WriterBusy(7), b"0x1"), (WriterTimeout(10), b"5"), (StorageFailure("gone"), b"7"), (Busy(7), b"10")],
)
def test_older_results_tell_errors_in_their_own_way(error: PenstockError, result: bytes) -> None:
    (answer,) = asked("AC", *sample("AC").payload, dialect=LEGACY).answers([error])
    assert answer[3:] == [b"CR", result, str(error).encode(), bytes(16)]


def test_older_results_tell_malformed_commits_too() -> None:
    exchange = asked("AC", b"shop", b"order-1", b"one", b"1", *NEW_FRAMES, dialect=LEGACY)
    assert exchange.requests == ()
    (answer,) = exchange.answers([])
    assert answer[3:] == [b"CR", b"1", b"ExpectedVersion is not a number: 'one'", bytes(16)]


def test_everything_but_commits_is_as_usual_on_an_endpoint_with_older_results() -> None:
    for usual in SAMPLES:
        if (usual.dialect, usual.command) != (TEXT, "AC") and not usual.is_legacy:
            assert decode(usual.message(), legacy=True).answers(usual.replies) == usual.answer_messages()


@pytest.mark.parametrize("message", [[b""], [b"", b"Res01", b"AC"], [b"", b"Res01", b"XX", b"1"], [b"", b"?"]])
def test_mistakes_other_than_in_commits_are_er_on_such_an_endpoint(message: list[bytes]) -> None:
    (answer,) = decode(message, legacy=True).answers([])
    assert answer[3] == b"ER"


# --- subscriptions --------------------------------------------------------------------------------------------


def test_a_fetch_answers_once_for_each_subscription_in_order() -> None:
    exchange = asked("FE", b"3", b"4", b"10", b"9", b"10", b"5", b"1")
    answers = exchange.answers([FetchedBatch(4, [EVENT]), SubscriptionNotFound("9"), FetchedBatch(5, [])])
    assert [answer[3:] for answer in answers] == [
        [b"EF", b"4", b"1", *EVENT_FRAMES],
        [b"ER", b"7", b"no subscription 9"],
        [b"EF", b"5", b"0"],
    ]


def test_a_long_poll_hands_its_wait_to_every_fetch() -> None:
    requests = asked("FW", b"250", b"2", b"4", b"10", b"9", b"10").requests
    assert [request.wait_ms for request in requests] == [250, 250]  # type: ignore[attr-defined]


def test_progress_that_fails_is_an_error_for_the_whole_message() -> None:
    exchange = asked("PS", b"2", b"4", time(TICKS), b"5", time(TICKS))
    assert exchange.answers([Done(), Done()]) == [[b"", b"Res01", REQUEST_ID, b"SP", b"2", b"4", b"5"]]
    ((*_, name, code, _),) = exchange.answers([Done(), StorageFailure("gone")])
    assert (name, code) == (b"ER", b"7")


def test_no_reason_is_ever_empty() -> None:
    class Silent(PenstockError):
        def __str__(self) -> str:
            return ""

    exchange = asked("SS", b"1", b"mailer", b"shop", b"", time(TICKS))
    assert exchange.answers([Silent()]) == [[b"", b"Res01", REQUEST_ID, b"ST", b"1", b"Silent"]]


@pytest.mark.parametrize(
    ("command", "payload", "answer"),
    [("RS", [b"mailer", b"0"], b"SR"), ("PS", [b"0"], b"SP"), ("SS", [b"0"], b"ST")],
)
def test_no_subscriptions_are_answered_with_none(command: str, payload: list[bytes], answer: bytes) -> None:
    exchange = asked(command, *payload)
    replies = [replace(sample("RS").replies[0], ids=())] if command == "RS" else []  # type: ignore[type-var]
    assert exchange.answers(replies) == [[b"", b"Res01", REQUEST_ID, answer, b"0"]]


# --- queues ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("command", "lead"), [("SQ", []), ("SW", [b"5000"])])
def test_a_queue_is_subscribed_with_or_without_utc_now(command: str, lead: list[bytes]) -> None:
    payload = sample("SQ").payload
    assert asked(command, *lead, *payload).requests == asked(command, *lead, *payload[1:]).requests
    (request,) = asked(command, *lead, *payload).requests
    assert isinstance(request, SubscribeQueue)
    assert request.queue == "mail"


def test_markers_are_the_first_and_last_position() -> None:
    ((*_, start, end, count, _, _, _, _, _, _, _, _),) = asked("SQ", *sample("SQ").payload).answers([DELIVERY])
    assert (start, end, count) == (b"7", b"9", b"1")


def test_an_empty_allocation_id_acknowledges_nothing() -> None:
    payload = sample("AQ binary").payload
    (request,) = asked("AQ", *payload[:3], b"", *payload[4:], dialect=BINARY).requests
    assert isinstance(request, AcknowledgeQueue)
    assert (request.first, request.last) == (0, 0)


def test_minus_one_allocates_nothing() -> None:
    (request,) = asked("AQ", b"mail", b"worker-1", b"0", b"0", b"1", b"-1").requests
    assert request == AcknowledgeQueue(None, "mail", "worker-1", 0, 0, 1, -1)


# --- extensions -----------------------------------------------------------------------------------------------


def test_a_transaction_may_have_no_mark_and_nothing_in_it() -> None:
    assert asked("TX", b"", b"", b"0", b"0", b"0").requests == (Transact(),)


def test_a_transaction_has_its_commits_in_order() -> None:
    commits = [b"shop", b"a", b"1", b"2", *NEW_FRAMES, *NEW_FRAMES, b"shop", b"b", b"-1", b"1", *NEW_FRAMES]
    (request,) = asked("TX", b"p", b"0", b"2", *commits, b"0", b"0").requests
    assert isinstance(request, Transact)
    assert [(commit.stream, commit.expected, commit.columns().length) for commit in request.commits] == [
        ("a", 1, 2),
        ("b", ANY, 1),
    ]


def test_an_empty_context_reads_all_of_them() -> None:
    assert asked("RA", b"1", b"", b"", b"0").requests == (ReadRecords(1, None, "", 0),)


@pytest.mark.parametrize("command", ["LQ", "LU"])
def test_an_empty_after_begins_at_the_first(command: str) -> None:
    assert asked(command, b"", b"").requests == asked(command, b"0", b"").requests


def test_an_empty_context_looks_a_queue_up_by_its_name() -> None:
    payload = sample("AW").payload
    (request,) = asked("AW", payload[0], b"", *payload[2:]).requests
    assert isinstance(request, AcknowledgeQueue)
    assert request.context is None
    for command, after in (("DR", [b""]), ("DL", [b"", b""]), ("DP", [b"7"])):
        (request,) = asked(command, b"mail", b"", *after).requests
        assert request.context is None  # type: ignore[attr-defined]


def test_an_empty_dead_after_is_never() -> None:
    (request,) = asked("DR", b"mail", b"shop", b"").requests
    assert request.dead_after is None  # type: ignore[attr-defined]
    page = sample("LQ").replies[0]
    never = replace(page, items=[replace(page.items[0], dead_after=None)])  # type: ignore[union-attr, type-var]
    ((*_, dead_after),) = asked("LQ", b"", b"").answers([never])
    assert dead_after == b""


@pytest.mark.parametrize("guid", [GUID])
def test_an_event_by_itself_has_no_count(guid: bytes) -> None:
    ((_, _, _, name, first, *_),) = asked("GE", *sample("GE").payload).answers([EventPage([EVENT], 2, True)])
    assert (name, first) == (b"GR", guid)
