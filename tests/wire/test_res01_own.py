"""The dialect of our own clients: errors come back as they were, and a hello tells what each side supports."""

import pickle
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import __version__, errors
from penstock.errors import AnswerMalformed, PenstockError, Refused, Retry
from penstock.model import GetStats, SetSubscription
from penstock.wire.codes import ERROR_CODES
from penstock.wire.res01.commands import OWN_COMMANDS, VERSION, Hello, Welcome
from penstock.wire.res01.dialects import CLIENTS_OWN, TEXT, error_frame, error_of
from penstock.wire.res01.messages import decode, reply_of
from tests.wire.checks import few_examples, message_of

PAGE: Final = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")

kinds = pytest.mark.parametrize("kind", ERROR_CODES, ids=lambda kind: kind.__name__)
told_kinds = pytest.mark.parametrize(
    "kind", [kind for kind in ERROR_CODES if kind.__name__ not in CLIENTS_OWN], ids=lambda kind: kind.__name__
)
words = st.text(st.characters(), max_size=30)


def made(kind: type[PenstockError], data: st.DataObject) -> PenstockError:
    """An error with any fields."""
    some: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(1 << 62), 1 << 62),
        int | None: st.none() | st.integers(0, 1 << 40),
        str: words,
        float: st.floats(0, 1e6),
        bool: st.booleans(),
        Retry: st.sampled_from(Retry),
    }
    return kind(*(data.draw(some[field.type]) for field in fields(kind)))


# --- errors ---------------------------------------------------------------------------------------------------


@told_kinds
@few_examples
@given(data=st.data())
def test_a_client_has_the_error_that_its_server_had(kind: type[PenstockError], data: st.DataObject) -> None:
    error = made(kind, data)
    (answer,) = decode([b"", *message_of(GetStats(), b"1")]).answers([error])
    result = reply_of(GetStats(), answer[3:])
    assert type(result) is kind
    assert vars(result) == vars(error)
    assert (str(result), result.retry) == (str(error), error.retry)


@told_kinds
@few_examples
@given(data=st.data())
def test_the_reason_why_a_subscription_was_not_set_is_the_error_too(
    kind: type[PenstockError], data: st.DataObject
) -> None:
    error, request = made(kind, data), SetSubscription("mailer", "shop", "", 0)
    (answer,) = decode([b"", *message_of(request, b"1")]).answers([error])
    result = reply_of(request, answer[3:])
    assert type(result) is kind
    assert vars(result) == vars(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.AnswerMalformed("x"),
        errors.CannotConnect("url", "x"),
        errors.ClientClosed(),
        errors.ConnectionLost("url", "x"),
        errors.DeadlinePassed(1.0, was_sent=False),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_only_a_client_knows_of_itself_is_not_believed_of_a_server(error: PenstockError) -> None:
    assert vars(error_of(error_frame(error))) == vars(Refused(-1, str(error), Retry.UNKNOWN))


def test_an_error_is_known_by_its_class_and_not_by_its_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = error_frame(errors.VersionConflict("shop", "order-1", 4, 6))
    monkeypatch.setattr(errors.VersionConflict, "__str__", lambda _self: "in other words")
    error = error_of(frame)
    assert isinstance(error, errors.VersionConflict)
    assert (error.context, error.stream, error.expected, error.actual) == ("shop", "order-1", 4, 6)


@pytest.mark.parametrize(
    "change",
    [
        (b'"VersionConflict"', b'"VersionClash"'),
        (b'"expected":4', b'"wanted":4'),
        (b'"expected":4,', b""),
        (b'"expected":4', b'"expected":"4"'),
        (b'"expected":4', b'"expected":4,"more":1'),
        (b'"fields":{', b'"fields":7,"other":{'),
    ],
)
def test_an_error_of_another_version_is_refused_with_its_code_and_message(change: tuple[bytes, bytes]) -> None:
    conflict = errors.VersionConflict("shop", "order-1", 4, 6)
    frame = error_frame(conflict).replace(*change)
    assert vars(error_of(frame)) == vars(Refused(6, str(conflict), Retry.NEVER))


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"7",
        b"null",
        b"\xff",
        b"{}",
        b"[" * 100_000,
        b'{"class":"X","fields":{},"code":"x","retry":"safe","message":"m"}',
        b'{"class":"X","fields":{},"code":1,"retry":"soon","message":"m"}',
        b'{"class":[],"fields":{},"code":1,"retry":"safe","message":"m"}',
    ],
)
def test_an_error_that_is_malformed_itself_is_malformed(frame: bytes) -> None:
    assert isinstance(reply_of(GetStats(), [b"ER", frame]), AnswerMalformed)


@pytest.mark.parametrize("answer", [[b"ER"], [b"ER", b"x", b"y"], [b"ER", b"7", b"no log x", b""]])
def test_an_error_with_too_few_or_too_many_frames_is_malformed(answer: list[bytes]) -> None:
    assert isinstance(reply_of(GetStats(), answer), AnswerMalformed)


@pytest.mark.parametrize(
    ("code", "retry"),
    [
        *((code, Retry.NEVER) for code in (1, 2, 3, 6, 11, 12)),
        *((code, Retry.SAFE) for code in (4, 5, 8, 9, 10)),
        *((code, Retry.UNKNOWN) for code in (-1, 0, 7, 13)),
    ],
)
def test_an_answer_of_a_server_that_does_not_know_the_dialect_is_tried_again_as_its_code_allows(
    code: int, retry: Retry
) -> None:
    error = reply_of(GetStats(), [b"ER", b"%d" % code, b"protocol 'PEN1' is not spoken here"])
    assert isinstance(error, Refused)
    assert vars(error) == vars(Refused(code, "protocol 'PEN1' is not spoken here", retry))


def test_a_refusal_keeps_its_code_in_the_originals_dialects() -> None:
    assert TEXT.failed(Refused(9, "later", Retry.SAFE)) == [b"ER", b"9", b"later"]


def test_an_unknown_command_is_refused_in_the_same_form() -> None:
    (answer,) = decode([b"", b"PEN1", b"XX", b"1"]).answers([])
    assert vars(reply_of(GetStats(), answer[3:])) == vars(Refused(3, "command 'XX' is not known", Retry.NEVER))


# --- hello ----------------------------------------------------------------------------------------------------


def test_a_hello_is_answered_with_the_version_and_all_commands() -> None:
    hello = Hello(VERSION, "tests", ("one", "two"))
    exchange = decode([b"", *message_of(hello, b"1")])
    assert exchange.requests == ()
    (answer,) = exchange.answers([])
    welcome = reply_of(hello, answer[3:])
    assert welcome == Welcome(VERSION, f"penstock {__version__}", tuple(sorted(c.decode() for c in OWN_COMMANDS)))


def test_only_our_own_dialect_has_a_hello() -> None:
    (answer,) = decode([b"", b"Res01", b"HI", b"1", b"1", b"tests", b"0"]).answers([])
    assert answer[3:5] == [b"ER", b"3"]


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
