"""Everything a client can get wrong, and everything that can go wrong for it: the code and the sentence."""

import pytest

from penstock import errors
from penstock.errors import PenstockError
from penstock.model import Done, FetchSubscription
from penstock.wire.codes import ERROR_CODES, Res01Code, codes_of
from penstock.wire.res01.commands import BINARY_COMMANDS, TEXT_COMMANDS
from penstock.wire.res01.messages import Unanswerable, decode
from tests.wire.checks import check
from tests.wire.samples import (
    BINARY,
    GUID,
    LEGACY,
    NEW_FRAMES,
    REQUEST_ID,
    SAMPLES,
    TEXT,
    TICKS,
    Sample,
    int4,
    sample,
    time,
)
from tests.wire.test_res01 import asked, every_sample, refusal


def family(kind: type[PenstockError]) -> set[type[PenstockError]]:
    return {kind}.union(*(family(child) for child in kind.__subclasses__() if child.__module__ == errors.__name__))


def details(sample: Sample, answer: list[bytes]) -> list[bytes]:
    """The code and the sentence of an answer that tells an error, in the way of its dialect."""
    name, *rest = answer[3:]
    assert name == (b"CR" if sample.is_legacy else b"ER")
    assert not sample.is_legacy or rest[2:] == [bytes(16)]
    return rest[:2]


# --- the envelope ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", [[], [b"Res01"], [b"client", b"Res01", b"AC", b"1", b"shop"]])
def test_a_message_without_an_empty_frame_cannot_be_answered(message: list[bytes]) -> None:
    with pytest.raises(Unanswerable):
        decode(message)


@pytest.mark.parametrize("message", [[b""], [b"", b"Res01"], [b"", b"Res01", b"AC"], [b"r", b"", b"RC0.1", b"AC"]])
def test_a_message_too_short_for_a_request_id_is_answered_with_an_empty_one(message: list[bytes]) -> None:
    (answer,) = decode(message).answers([])
    border = message.index(b"")
    tag = message[border + 1] if len(message) > border + 1 else b"Res01"
    sentence = b"RequestId is missing: the message has too few frames"
    assert answer == [*message[: border + 1], tag, b"", b"ER", b"1", sentence]


@pytest.mark.parametrize("tag", [b"Res02", b"res01", b"", b"Res01L", b"\xff" * 300])
def test_an_unknown_protocol_is_answered_with_the_tag_that_was_sent(tag: bytes) -> None:
    (answer,) = decode([b"r", b"", tag, b"AC", b"id-1", b"shop"]).answers([])
    assert answer[:6] == [b"r", b"", tag, b"id-1", b"ER", b"2"]


def test_an_unknown_protocol_without_a_request_id_is_an_unknown_protocol() -> None:
    assert decode([b"", b"Res02"]).answers([])[0][:5] == [b"", b"Res02", b"", b"ER", b"2"]


@pytest.mark.parametrize("dialect", [TEXT, BINARY, LEGACY])
@pytest.mark.parametrize("command", ["RR", "XX", "ac", "", "AC ", "CR"])
def test_an_unknown_command_and_the_internal_one_are_refused(command: str, dialect: str) -> None:
    code, sentence = refusal(asked(command, *sample("AC").payload, dialect=dialect))
    assert code == b"3"
    assert f"'{command}'" in sentence


@pytest.mark.parametrize("command", sorted(set(TEXT_COMMANDS) - set(BINARY_COMMANDS)))
def test_what_the_binary_dialect_lacks_is_refused_there(command: bytes) -> None:
    code, sentence = refusal(asked(command.decode(), *sample(command.decode()).payload, dialect=BINARY))
    assert code == b"3"
    assert sentence == f"command '{command.decode()}' is not part of the binary dialect; use the text dialect for it"


def test_the_binary_dialect_has_the_commands_of_the_original() -> None:
    assert set(BINARY_COMMANDS) == {b"AC", b"QS", b"SQ", b"AQ"}


# --- too few, too many, and not what they should be -----------------------------------------------------------


@every_sample
def test_a_frame_too_few_is_malformed(sample: Sample) -> None:
    message = sample.message()
    for length in range(4, len(message)):
        exchange = decode(message[:length], legacy=sample.is_legacy)
        assert exchange.requests == ()
        (answer,) = exchange.answers([])
        assert details(sample, answer)[0] == b"1"


OPTIONAL = {"RK": [b"1"], "RT": [b"7"], "XL": [b"7"], "ES": [b"7"], "EJ": [b"7"]}
"""Frames that a command may have, and its sample has not."""


@pytest.mark.parametrize(("command", "field"), [("RT", "position"), ("XL", "created"), ("ES", "last"), ("EJ", "last")])
def test_a_last_frame_may_be_left_out_or_empty_and_is_malformed_if_it_is_no_number(command: str, field: str) -> None:
    message = sample(command).message()
    for end, value in (([], None), ([b""], None), ([b"7"], 7)):
        (request,) = decode([*message, *end]).requests
        assert getattr(request, field) == value
    (answer,) = decode([*message, b"x"]).answers([])
    assert details(sample(command), answer)[0] == b"1"


@every_sample
@pytest.mark.parametrize("more", [[b""], [b"1"], [b"x", b"y", b"z"]])
def test_a_frame_too_many_is_malformed(sample: Sample, more: list[bytes]) -> None:
    exchange = decode([*sample.message(), *OPTIONAL.get(sample.command, []), *more], legacy=sample.is_legacy)
    assert exchange.requests == ()
    (answer,) = exchange.answers([])
    assert details(sample, answer)[0] == b"1"


@every_sample
def test_a_wrong_frame_anywhere_is_malformed_or_somebody_elses_business(sample: Sample) -> None:
    message = sample.message()
    for at in range(4, len(message)):
        for wrong in (b"", b"\xff", b"x", b"-1", b"99999999999999999999", bytes(7)):
            check([*message[:at], wrong, *message[at + 1 :]], legacy=sample.is_legacy)


AC = sample("AC").payload
MISTAKES = [
    ("AC", [], "Context is missing: the message has too few frames"),
    ("AC", [b"shop"], "Stream is missing: the message has too few frames"),
    ("AC", [b"\xff", *AC[1:]], "Context is not UTF-8 (byte 0)"),
    ("AC", [b"shop", b"a\xc3", *AC[2:]], "Stream is not UTF-8 (byte 1)"),
    ("AC", [b"shop", b"order-1", b"", *AC[3:]], "ExpectedVersion is not a number: ''"),
    ("AC", [b"shop", b"order-1", b"+1", *AC[3:]], "ExpectedVersion is not a number: '+1'"),
    ("AC", [b"shop", b"order-1", b" 1", *AC[3:]], "ExpectedVersion is not a number: ' 1'"),
    ("AC", [b"shop", b"order-1", b"1_0", *AC[3:]], "ExpectedVersion is not a number: '1_0'"),
    ("AC", [b"shop", b"order-1", b"1\n", *AC[3:]], "ExpectedVersion is not a number: '1\\n'"),
    (
        "AC",
        [b"shop", b"order-1", "١".encode(), *AC[3:]],
        "ExpectedVersion is not a number: '\\xd9\\xa1'",
    ),
    (
        "AC",
        [b"shop", b"order-1", b"9223372036854775808", *AC[3:]],
        "ExpectedVersion is 9223372036854775808, which does not fit 64 bits",
    ),
    ("AC", [b"shop", b"order-1", b"9" * 50, *AC[3:]], f"ExpectedVersion is not a number: '{'9' * 40}'…"),
    ("AC", [b"shop", b"order-1", b"1", b"0"], "EventCount is 0; a commit has at least one event"),
    ("AC", [b"shop", b"order-1", b"1", b"2", *NEW_FRAMES], "EventCount is 2, but 5 frames follow (5 for each)"),
    ("AC", [b"shop", b"order-1", b"1", b"-1", *NEW_FRAMES], "EventCount is -1, but 5 frames follow (5 for each)"),
    ("AC", [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES * 2], "EventCount is 1, but 10 frames follow (5 for each)"),
    (
        "AC",
        [b"shop", b"order-1", b"1", b"1", GUID[:15], *NEW_FRAMES[1:]],
        "EventId of event 1 has 15 bytes; a guid has 16",
    ),
    (
        "AC",
        [b"shop", b"order-1", b"1", b"2", *NEW_FRAMES, GUID, b"noon", *NEW_FRAMES[2:]],
        "Timestamp of event 2 is neither ticks nor ISO 8601: 'noon'",
    ),
    (
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES[:2], b"\xff", *NEW_FRAMES[3:]],
        "TypeKey of event 1 is not UTF-8 (byte 0)",
    ),
    (
        "AC",
        [b"shop", b"order-1", b"1", b"1", *NEW_FRAMES[:3], b"h\xff", *NEW_FRAMES[4:]],
        "Headers of event 1 is not UTF-8 (byte 1)",
    ),
    ("QS", [b"shop", b"order-1", b"", b""], "FromVersion is not a number: ''"),
    ("QS", [b"shop", b"order-1", b"1", b"x"], "MaxVersion is not a number: 'x'"),
    ("QS", [b"shop", b"order-1", b"1", b"", b"?", b"?"], "message has too many frames: 2 more than it should"),
    ("RS", [b"mailer", b"2", b"shop", b"", time(TICKS)], "Count is 2, but 3 frames follow (3 for each)"),
    ("RS", [b"mailer", b"1", b"shop", b"", b""], "StartTime is neither ticks nor ISO 8601: ''"),
    ("FE", [b"0"], "Count is 0; a fetch names at least one subscription"),
    ("FE", [b"1", b"x", b"1"], "SubscriptionId is not a number: 'x'"),
    ("FE", [b"1", b"1", b"x"], "SuggestedCount is not a number: 'x'"),
    ("FE", [b"1001", *[b"1"] * 2002], "Count is 1001; at most 1000 at once"),
    ("PS", [b"1001", *[b"1"] * 2002], "Count is 1001; at most 1000 at once"),
    ("SS", [b"1001", *[b"1"] * 4004], "Count is 1001; at most 1000 at once"),
    ("PS", [b"1", b"4", b"x"], "LastEventTime is neither ticks nor ISO 8601: 'x'"),
    ("SS", [b"1", b"mailer", b"shop", b"", b"x"], "SetTo is neither ticks nor ISO 8601: 'x'"),
    ("SS", [b"1", b"\xff", b"shop", b"", b"x"], "SubscriberId is not UTF-8 (byte 0)"),
    ("SQ", [b"now", *sample("SQ").payload[1:]], "UtcNow is neither ticks nor ISO 8601: 'now'"),
    ("SQ", [b"?", *sample("SQ").payload], "message has too many frames: 1 more than it should"),
    ("SQ", [time(TICKS), *sample("SQ").payload], "message has too many frames: 1 more than it should"),
    ("SQ", [*sample("SQ").payload[:7], b"x"], "AllocationTimeInMilliseconds is not a number: 'x'"),
    ("AQ", [b"mail", b"worker-1", b"", b"9", b"1", b"1"], "StartMarker is not a number: ''"),
    ("AQ", [b"mail", b"worker-1", b"7", b"", b"1", b"1"], "EndMarker is not a number: ''"),
    ("RQ", [b"mail", b"x", time(TICKS)], "ResetTo is neither ticks nor ISO 8601: 'x'"),
    ("RQ", [b"mail", time(TICKS)], "UtcNow is missing: the message has too few frames"),
    ("GE", [b"shop", b"order-1", b"x"], "Sequence is not a number: 'x'"),
    ("RA", [b"x", b"", b"", b"0"], "Position is not a number: 'x'"),
    ("RA", [b"1", b"", b"", b"-1"], "WaitMs is -1; it must be 0 (do not wait) or more"),
    (
        "TX",
        [b"p", b"", b"0", b"0", b"0"],
        "Number is empty; a mark has both Producer and Number, and no mark has neither",
    ),
    (
        "TX",
        [b"", b"1", b"0", b"0", b"0"],
        "Producer is empty; a mark has both Producer and Number, and no mark has neither",
    ),
    ("TX", [b"", b"", b"9", b"0", b"0"], "CommitCount is 9, but 2 frames follow (4 for each)"),
    (
        "TX",
        [b"", b"", b"1", b"shop", b"a", b"1", b"0", b"0", b"0"],
        "EventCount is 0; a commit has at least one event",
    ),
    (
        "TX",
        [b"", b"", b"1", b"shop", b"a", b"1", b"2", *NEW_FRAMES, b"0", b"0"],
        "EventCount is 2, but 7 frames follow (5 for each)",
    ),
    ("TX", [b"", b"", b"0", b"1", b"0"], "AckCount is 1, but 1 frames follow (5 for each)"),
    ("TX", [b"", b"", b"0", b"0", b"0", b"1"], "ProgressCount is 0, but 1 frames follow (2 for each)"),
    ("GS", [b""], "message has too many frames: 1 more than it should"),
    ("LC", [b"", b"many"], "Limit is not a number: 'many'"),
    ("LQ", [b"first", b""], "After is not a number: 'first'"),
    ("DR", [b"mail", b"", b"often"], "DeadAfter is not a number: 'often'"),
    ("DP", [b"mail", b"", b""], "StartMarker is not a number: ''"),
    (
        "AF",
        [b"importer", b"", *AC],
        "Number is empty; a mark has both Producer and Number, and no mark has neither",
    ),
    ("AF", [b"", b"", *AC[:3], b"0"], "EventCount is 0; a commit has at least one event"),
    ("AF", [b"", b"", *AC, b"?"], "message has too many frames: 1 more than it should"),
    ("QF", [b"shop", b"order-1", b"1", b"", b"", b"yes"], "Backward is neither 0 nor 1: 'yes'"),
    ("RF", [b"1", b"", b"", b"", b"0", b"2", b"Placed"], "TypeCount is 2, but 1 frames follow (1 for each)"),
    ("RF", [b"1", b"", b"", b"", b"-1", b"0"], "WaitMs is -1; it must be 0 (do not wait) or more"),
    ("FF", [b"0", b"0"], "Count is 0; a fetch names at least one subscription"),
    ("KF", [*sample("KF").payload[:5], b"x", b"1", b"1"], "EndMarker is not a number: 'x'"),
    ("TP", [b"shop", b"", b"then"], "Time is neither ticks nor ISO 8601: 'then'"),
    ("ML", [b"orders", b"2", b"\x05"], "Count is 2, but 1 frames follow (1 for each)"),
    ("NI", [b"a", b"b", b"fold", b"", b"0"], "Kind is none of map, filter, reduce: 'fold'"),
    ("NI", [b"a", b"b", b"map", b"", b""], "Indexed is neither 0 nor 1: ''"),
]
BINARY_MISTAKES = [
    ("AC", [b"shop", b"order-1", b"1", int4(0)], "ExpectedVersion has 1 bytes; a number has 4 or 8"),
    ("AC", [b"shop", b"order-1", b"", int4(0)], "ExpectedVersion has 0 bytes; a number has 4 or 8"),
    ("AC", [b"shop", b"order-1", int4(1), int4(1)], "EventCount is 1, but 0 frames follow (5 for each)"),
    ("AC", [b"shop", b"order-1", int4(1), int4(0), b""], "EventCount is 0, but 1 frames follow (5 for each)"),
    (
        "AC",
        [b"shop", b"order-1", int4(1), int4(1), GUID, int4(1), *NEW_FRAMES[2:]],
        "Timestamp of event 1 has 4 bytes; a datetime has 8",
    ),
    ("SQ", sample("SQ").payload, "StartTime has 6 bytes; a datetime has 8"),
    ("AQ", [b"shop", b"mail", b"w", b"7", int4(1), int4(1)], "AllocationId has 1 bytes; a number has 4 or 8"),
]


@pytest.mark.parametrize(("command", "payload", "sentence"), MISTAKES, ids=[sentence for _, _, sentence in MISTAKES])
def test_a_malformed_message_is_told_which_field_and_why(command: str, payload: list[bytes], sentence: str) -> None:
    assert refusal(asked(command, *payload)) == (b"1", sentence)


@pytest.mark.parametrize(("command", "payload", "sentence"), BINARY_MISTAKES)
def test_a_malformed_binary_message_is_told_which_field_and_why(
    command: str, payload: list[bytes], sentence: str
) -> None:
    assert refusal(asked(command, *payload, dialect=BINARY)) == (b"1", sentence)


def test_a_message_of_a_million_frames_is_refused_in_good_time() -> None:
    code, _ = refusal(asked("AC", b"shop", b"order-1", b"1", b"1", *[b"x"] * 1_000_000))
    assert code == b"1"


def test_a_frame_of_a_hundred_megabytes_is_no_number_and_no_time() -> None:
    huge = bytes(100_000_000)
    for command, payload in (("GE", [b"shop", b"a", huge]), ("PS", [b"1", b"4", huge])):
        code, sentence = refusal(asked(command, *payload))
        assert code == b"1"
        assert len(sentence) < 300


# --- what the engine may answer -------------------------------------------------------------------------------


def test_every_exception_has_a_code() -> None:
    assert family(PenstockError) == set(ERROR_CODES)


def test_every_code_is_one_of_the_protocols() -> None:
    named = set(Res01Code)
    assert named == {-1, *range(1, 13)}
    assert {code for code, _ in ERROR_CODES.values()} <= named


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.Unexpected("?"), -1),
        (errors.InvalidRequest("context", "is empty"), 1),
        (errors.LimitExceeded("commit_events_max", 11, 10), 1),
        (errors.WriterBusy(1), 4),
        (errors.WriterTimeout(1), 5),
        (errors.StorageFailure("gone"), 7),
        (errors.SubscriptionNotFound("9"), 7),
        (errors.QueueNotFound("mail"), 7),
        (errors.QueueAmbiguous("mail"), 7),
        (errors.EventNotFound("shop", "order-1", 9), 8),
        (errors.ReaderTimeout(1), 9),
        (errors.ReaderBusy(1), 10),
        (errors.QueueFilterMismatch("mail", "a", "b"), 11),
        (errors.NotAllowed("somebody", "APPEND"), 12),
    ],
)
def test_an_error_has_the_code_of_the_protocol(error: PenstockError, code: int) -> None:
    assert codes_of(error)[0] == code
    (answer,) = asked("AC", *sample("AC").payload).answers([error])
    assert answer == [b"", b"Res01", REQUEST_ID, b"ER", b"%d" % code, str(error).encode()]


def test_an_exception_that_nobody_listed_has_the_code_of_its_base() -> None:
    class Fuller(errors.StorageFull):
        pass

    class Strange(PenstockError):
        pass

    assert (codes_of(Fuller("no room"))[0], codes_of(Strange())[0]) == (7, -1)


def test_a_conflict_keeps_its_sentence_in_the_originals_dialects() -> None:
    conflict = errors.VersionConflict("shop", "order-1", 4, 6)
    sentence = b"expected version 4 of stream order-1 in context shop, but its last sequence is 6; nothing was written"
    for name, dialect in (("AC", TEXT), ("AC binary", BINARY)):
        (answer,) = asked("AC", *sample(name).payload, dialect=dialect).answers([conflict])
        assert answer[3:] == [b"ER", b"6", sentence]
    (answer,) = asked("AC", *sample("AC").payload, dialect=LEGACY).answers([conflict])
    assert answer[3:] == [b"CR", b"6", sentence, bytes(16)]


def test_error_codes_stay_ascii_in_the_binary_dialect() -> None:
    (answer,) = asked("AC", *sample("AC binary").payload, dialect=BINARY).answers([errors.WriterBusy(1)])
    assert answer[3:5] == [b"ER", b"4"]


@every_sample
def test_any_request_may_fail(sample: Sample) -> None:
    error = errors.ReaderBusy(5)
    exchange = decode(sample.message(), legacy=sample.is_legacy)
    answers = exchange.answers([error] * len(exchange.requests))
    if sample.command in ("SS", "SM"):
        count = len(exchange.requests)
        assert [answer[3:] for answer in answers] == [[b"ST", b"%d" % count, *[str(error).encode()] * count]]
    else:
        count = len(exchange.requests) if isinstance(exchange.requests[0], FetchSubscription) else 1
        assert [details(sample, answer) for answer in answers] == [[b"10", str(error).encode()]] * count


@pytest.mark.parametrize(
    "sample", [s for s in SAMPLES if not isinstance(s.replies[0], Done)], ids=lambda sample: sample.title
)
def test_a_reply_of_the_wrong_kind_is_unexpected_and_not_dropped(sample: Sample) -> None:
    exchange = decode(sample.message(), legacy=sample.is_legacy)
    (answer, *_) = exchange.answers([Done()] * len(exchange.requests))
    assert details(sample, answer)[0] == b"-1"
