"""An ER is read as the error it was made from, and every error says whether to try again."""

import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import errors
from penstock.errors import AnswerMalformed, FunctionFailed, PenstockError, Refused, Retry
from penstock.model import CreateIterator, GetStats, IteratorKind, NextItems, Request
from penstock.wire.res01 import CODES, code_of, error_of, reply_of
from penstock.wire.res01.exchange import error_payload
from penstock.wire.res01.refusals import SENTENCE_CHARS_MAX, error_of_reason
from tests.wire.checks import few_examples

PAGE: Final = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
CODE_MIN, CODE_MAX = -1, 12
# What cannot be told from its sentence comes as another one; the page of the protocol says so.
INSTEAD: Final[dict[type[PenstockError], type[PenstockError]]] = {
    errors.Busy: errors.ReaderBusy,
    errors.TimedOut: errors.ReaderTimeout,
    errors.ResultUnreadable: FunctionFailed,
    errors.FunctionTimedOut: FunctionFailed,
    errors.StoreError: Refused,
}
ITERATING: Final[list[Request]] = [
    NextItems("large", 0, 10),
    CreateIterator("large", "orders", IteratorKind.MAP, "return", False),
]

kinds = pytest.mark.parametrize("kind", CODES, ids=lambda kind: kind.__name__)
words = st.text(st.characters(codec="utf-8"), max_size=30)
names = st.text("abcdefgh-:.1", min_size=1, max_size=12)


def is_told(kind: type[PenstockError]) -> bool:
    """Whether a server says this to a client."""
    return CODES[kind] != -1 or kind is errors.Unexpected


def read(error: PenstockError, request: Request | None = None) -> PenstockError:
    """What a client makes of an error that its server had."""
    result = reply_of(request or GetStats(), error_payload(error))
    assert isinstance(result, PenstockError)
    return result


def made(kind: type[PenstockError], data: st.DataObject, text: st.SearchStrategy[str]) -> PenstockError:
    """An error with any fields."""
    some: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(1 << 62), 1 << 62),
        int | None: st.integers(0, 1 << 40),
        str: text,
        float: st.floats(0, 1e6),
        bool: st.booleans(),
        Retry: st.sampled_from(Retry),
    }
    values = [data.draw(some[field.type]) for field in fields(kind)]
    return kind(*values)


# --- there and back -------------------------------------------------------------------------------------------


@kinds
@few_examples
@given(data=st.data())
def test_a_client_has_the_error_that_its_server_had(kind: type[PenstockError], data: st.DataObject) -> None:
    error = made(kind, data, names)
    result = read(error)
    assert str(result) == str(error)
    expected = INSTEAD.get(kind, kind) if is_told(kind) else Refused
    assert type(result) is expected
    if expected is kind and kind not in (errors.InvalidRequest, Refused):
        assert vars(result) == vars(error)


@kinds
@few_examples
@given(data=st.data())
def test_whatever_is_in_an_error_its_sentence_is_the_same(kind: type[PenstockError], data: st.DataObject) -> None:
    error = made(kind, data, words)
    assert str(read(error)) == (str(error) or kind.__name__)


@kinds
@few_examples
@given(data=st.data())
def test_whether_to_try_again_survives_the_wire(kind: type[PenstockError], data: st.DataObject) -> None:
    error = made(kind, data, names)
    if is_told(kind) and kind is not errors.StoreError:
        assert read(error).retry is error.retry


@kinds
def test_what_comes_in_place_of_an_error_is_its_relative(kind: type[PenstockError]) -> None:
    instead = INSTEAD.get(kind)
    assert instead is None or instead is Refused or issubclass(kind, instead) or issubclass(instead, kind)


def test_a_conflict_has_its_fields() -> None:
    conflict = read(errors.VersionConflict("shop", "order-1", 4, 6))
    assert isinstance(conflict, errors.VersionConflict)
    assert (conflict.context, conflict.stream, conflict.expected, conflict.actual) == ("shop", "order-1", 4, 6)


def test_a_malformed_field_is_told_apart_from_a_limit() -> None:
    limit = read(errors.LimitExceeded("commit_events_max", 11, 10))
    assert isinstance(limit, errors.LimitExceeded)
    assert (limit.limit, limit.value, limit.maximum) == ("commit_events_max", 11, 10)
    invalid = read(errors.InvalidRequest("context", "is empty"))
    assert isinstance(invalid, errors.InvalidRequest)
    assert (invalid.field, invalid.reason) == ("context", "is empty")


@pytest.mark.parametrize(
    "error",
    [
        errors.LogNotFound("x is closed; nothing was done"),
        errors.QueueNotFound("no log x"),
        errors.SubscriptionNotFound("of who to '' in context no queue x; subscribe to it first"),
        errors.StorageFailure("no log a is not a Penstock store: b"),
    ],
    ids=str,
)
def test_a_name_that_sounds_like_another_error_misleads_nobody(error: PenstockError) -> None:
    assert type(read(error)) is type(error)


# --- iterators ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_", ITERATING, ids=lambda request: type(request).__name__)
@pytest.mark.parametrize("kind", [FunctionFailed, errors.ResultUnreadable, errors.FunctionTimedOut])
@pytest.mark.parametrize("message", [None, 3])
def test_what_a_function_did_is_known_by_what_was_asked(
    request_: Request, kind: type[FunctionFailed], message: int | None
) -> None:
    error = kind("attempt to compare number with nil", message)
    result = read(error, request_)
    assert type(result) is FunctionFailed
    assert (result.reason, result.message, str(result)) == (error.reason, message, str(error))


def test_other_errors_are_themselves_there_too() -> None:
    assert type(read(errors.IteratorNotFound("large"), ITERATING[0])) is errors.IteratorNotFound
    assert type(error_of(-1, "oh no", ITERATING[0])) is Refused


# --- what no error says ---------------------------------------------------------------------------------------


@given(st.integers(CODE_MIN - 3, CODE_MAX + 3), words)
def test_any_code_and_sentence_is_an_error_that_says_so(code: int, sentence: str) -> None:
    error = error_of(code, sentence)
    assert str(error) == sentence
    if isinstance(error, Refused):
        assert (error.code, error.sentence) == (code, sentence)
    else:
        assert code_of(error) == code


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        *((code, Retry.NEVER) for code in (1, 2, 3, 6, 11, 12)),
        *((code, Retry.SAFE) for code in (4, 5, 8, 9, 10)),
        *((code, Retry.UNKNOWN) for code in (-1, 0, 7, 13)),
    ],
)
def test_a_refusal_in_other_words_is_tried_again_as_its_code_allows(code: int, retry: Retry) -> None:
    error = error_of(code, "words")
    assert isinstance(error, Refused)
    assert error.retry is retry


def test_a_number_that_is_written_otherwise_is_left_as_it_is() -> None:
    sentence = "007 requests are waiting already; nothing was done, try again later"
    assert vars(error_of(4, sentence)) == vars(Refused(4, sentence, Retry.SAFE))


def test_a_sentence_that_is_too_long_is_not_compared() -> None:
    sentence = "no log " + "x" * SENTENCE_CHARS_MAX
    assert type(error_of(7, sentence)) is Refused
    assert type(error_of(7, sentence[:SENTENCE_CHARS_MAX])) is errors.LogNotFound


def test_a_sentence_need_not_be_utf_8() -> None:
    error = reply_of(GetStats(), [b"ER", b"7", b"no log \xff"])
    assert isinstance(error, errors.LogNotFound)
    assert error.log == "\ufffd"


@pytest.mark.parametrize("answer", [[b"ER"], [b"ER", b"7"], [b"ER", b"x", b"y"], [b"ER", b"7", b"no log x", b""]])
def test_an_error_that_is_malformed_itself_is_malformed(answer: list[bytes]) -> None:
    assert isinstance(reply_of(GetStats(), answer), AnswerMalformed)


def test_a_reason_without_a_code_is_recognised_by_its_words() -> None:
    assert type(error_of_reason("no subscription 9")) is errors.SubscriptionNotFound
    assert type(error_of_reason("context is empty")) is errors.InvalidRequest
    assert vars(error_of_reason("hm")) == vars(Refused(7, "hm"))


# --- whether to try again -------------------------------------------------------------------------------------


@kinds
def test_whether_to_try_again_is_what_the_page_says(kind: type[PenstockError]) -> None:
    found = re.search(rf"^\| `{kind.__name__}` \| .+ \| (.+) \|$", PAGE, re.MULTILINE)
    assert found
    if kind in (errors.DeadlinePassed, Refused):
        return
    words = found[1]
    expected = Retry.NEVER
    if words.startswith("yes"):
        expected = Retry.SAFE
    elif "writes that the store can recognise" in words or words.startswith("reading: yes"):
        expected = Retry.UNKNOWN
    assert kind._retry is expected


def test_a_deadline_depends_on_whether_it_was_sent() -> None:
    assert errors.DeadlinePassed(1.0, was_sent=True).retry is Retry.UNKNOWN
    assert errors.DeadlinePassed(1.0, was_sent=False).retry is Retry.SAFE


def test_a_refusal_travels_between_processes() -> None:
    copy = pickle.loads(pickle.dumps(Refused(3, "command 'AF' is not known", Retry.NEVER)))
    assert (copy.code, str(copy), copy.retry) == (3, "command 'AF' is not known", Retry.NEVER)
