"""Answers of processes that run Lua: whatever may come of a job arrives as it was, and nothing else arrives."""

import json
import pickle
from contextlib import suppress
from dataclasses import fields
from io import BytesIO
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from penstock import errors
from penstock.engine.iterator_jobs import Built, Paged, Point, build_index, check_function, run_page
from penstock.engine.worker_protocol import (
    HEAD_BYTES_MAX,
    JobAnswer,
    Unframer,
    Unreadable,
    frame,
    frame_answer,
    load_answer,
    returned_by,
)
from penstock.errors import FunctionFailed, FunctionTimedOut, IteratorNotFound, PenstockError, Retry
from penstock.model import Encoded, ItemPage
from penstock.spark.build_tasks import TaskProgress, read_progress
from penstock.store.contract import WriteOutput

BUILT = Built(WriteOutput(3, 0, 4, (b"", b"a", b"\xff" * 300), b"state"), 4, 9, 4, 1, None, False)
PAGED = Paged(ItemPage([b"x", b""]), [Point(), Point(8, 3, b"acc", 7)], 9, 8, None)
ENCODED = Paged(ItemPage([], Encoded(2, b"as a wire has it")), [], 9, 8, None)
FRAMES = Paged(ItemPage([], Encoded(2, [b"as a wire", b"has it"])), [], 9, 8, None)
PROGRESS = TaskProgress(5, 1, 4, b"acc", size=70)


def loaded(data: bytes, expected: Any, bytes_max: int = 1 << 30) -> JobAnswer:
    """What a server makes of bytes that a worker has sent."""
    unframer = Unframer(lambda answer: load_answer(answer, expected), bytes_max)
    answers: list[JobAnswer] = []
    while data:
        size = len(unframer.space)
        unframer.space[: len(data)] = data[:size]
        answers += unframer.received(min(size, len(data)))
        data = data[size:]
    (answer,) = answers
    return answer


def sent(head: Any, contents: bytes = b"") -> bytes:
    """What a worker could send."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    payload = len(text).to_bytes(4, "little") + text + contents
    return len(payload).to_bytes(4, "little") + payload


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (BUILT, returned_by(build_index)),
        (None, Built | None),
        (PAGED, returned_by(run_page)),
        (ENCODED, returned_by(run_page)),
        (FRAMES, returned_by(run_page)),
        (None, returned_by(check_function)),
        (PROGRESS, TaskProgress),
        (["Landlock"], list[str]),
    ],
)
def test_results_arrive_as_they_were(result: Any, expected: Any) -> None:
    answer = JobAnswer(True, result, True)
    assert loaded(frame_answer(answer), expected) == answer


def all_errors(kind: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    return [kind, *(one for below in kind.__subclasses__() for one in all_errors(below))]


@pytest.mark.parametrize("kind", [one for one in all_errors() if one.__module__ == errors.__name__])
def test_every_error_arrives_with_its_fields(kind: type[PenstockError]) -> None:
    samples: dict[Any, Any] = {int: 5, str: "text", bool: True, float: 1.5, int | None: None, Retry: Retry.SAFE}
    error = kind(*(samples[field.type] for field in fields(kind)))
    answer = loaded(frame_answer(JobAnswer(False, error, True)), None)
    assert type(answer.result) is kind
    assert (str(answer.result), answer.result.retry) == (str(error), error.retry)


def test_an_error_inside_a_result_keeps_its_class() -> None:
    answer = loaded(frame_answer(JobAnswer(True, BUILT._replace(error=FunctionTimedOut("late", 4)), False)), Built)
    assert type(answer.result.error) is FunctionTimedOut
    assert (answer.result.error.reason, answer.result.error.message, answer.stays) == ("late", 4, False)
    with pytest.raises(Unreadable):
        loaded(frame_answer(JobAnswer(True, BUILT._replace(error=IteratorNotFound("x")), True)), Built)  # type: ignore[arg-type]


def test_text_that_no_reply_could_hold_is_mended() -> None:
    answer = loaded(sent([False, ["FunctionFailed", "half \ud800", None], True]), None)
    assert isinstance(answer.result, FunctionFailed)
    assert answer.result.reason == "half ?"


POINT = ["Point", 1, 2, None, None]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (sent(pickle.dumps((True, None, True))), None),
        (sent([True, 7, True]), None),
        (sent([True, None, True]), Point),
        (sent([False, None, True]), None),
        (sent([False, ["Point", 1, 2, None, None], True]), None),
        (sent([False, ["Exception"], True]), None),
        (sent([True, ["Popen", "true"], True]), Point),
        (sent([True, None]), None),
        (sent({"succeeded": True}), None),
        (sent([1, None, True]), None),
        (sent([True, None, "yes"]), None),
        (sent([True, None, True], b"x"), None),
        (sent([True, [*POINT, 1], True]), Point),
        (sent([True, POINT[:-1], True]), Point),
        (sent([True, [], True]), Point),
        (sent([True, [["Point"]], True]), Point),
        (sent([True, ["Point", True, 2, None, None], True]), Point),
        (sent([True, ["Point", 1.0, 2, None, None], True]), Point),
        (sent([True, ["Point", 1 << 63, 2, None, None], True]), Point),
        (sent([True, ["Point", 1, 2, 3, None], True], b"xx"), Point),
        (sent([True, ["Point", 1, 2, -1, None], True]), Point),
        (sent([True, ["Point", 1, 2, "x", None], True]), Point),
        (sent([True, [1, -1, 1], True], b"x"), list[bytes]),
        (sent([True, [True], True], b"x"), list[bytes]),
        (sent([True, 1, True], b"x"), list[bytes]),
        (sent(b"[" * 100_000), None),
        (sent(b"1" * 100_000), None),
        (sent(b'"\xff"'), None),
        (sent(b" " * HEAD_BYTES_MAX + b"[true,null,true]"), None),
        (b"\0\0\0\0", None),
        (b"\1\0\0\0x", None),
        (b"\4\0\0\0\xff\xff\xff\xff", None),
    ],
)
def test_whatever_else_comes_is_refused(data: bytes, expected: Any) -> None:
    with pytest.raises(Unreadable):
        loaded(data, expected)


NAMES = [
    "Point",
    "Built",
    "WriteOutput",
    "Paged",
    "ItemPage",
    "Encoded",
    "TaskProgress",
    "FunctionFailed",
    "DeadlinePassed",
]
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(NAMES) | st.just(10**400)
VALUES = st.recursive(LEAVES, lambda inside: st.lists(inside) | st.dictionaries(st.text(), inside), max_leaves=30)


@given(
    result=VALUES | st.tuples(st.sampled_from(NAMES), VALUES, VALUES, VALUES, VALUES),
    succeeded=st.booleans(),
    contents=st.binary(),
    expected=st.sampled_from([Built | None, Paged, TaskProgress, None, list[str]]),
)
@example(["DeadlinePassed", 10**400, True, ""], False, b"", None)
def test_nothing_that_is_sent_does_more_than_to_be_refused(
    result: Any, succeeded: bool, contents: bytes, expected: Any
) -> None:
    with suppress(Unreadable):
        loaded(sent([succeeded, result, True], contents), expected)


def test_an_answer_that_is_too_long_is_refused_before_there_is_room_for_it() -> None:
    with pytest.raises(Unreadable, match="4294967295 bytes"):
        loaded(b"\xff\xff\xff\xff", None, 1000)


def test_a_task_of_spark_reads_answers_of_its_child_in_the_same_way() -> None:
    assert read_progress(BytesIO(frame_answer(JobAnswer(True, PROGRESS, True))), 1000) == PROGRESS
    with pytest.raises(IteratorNotFound):
        read_progress(BytesIO(frame_answer(JobAnswer(False, IteratorNotFound("it"), True))), 1000)
    for message in (b"".join(frame(PROGRESS)), frame_answer(JobAnswer(True, BUILT, True)), b"\xff\xff\xff\xff"):
        with pytest.raises(Unreadable):
            read_progress(BytesIO(message), 1000)
    with pytest.raises(EOFError):
        read_progress(BytesIO(frame_answer(JobAnswer(True, PROGRESS, True))[:-1]), 1000)


def test_a_result_that_has_no_place_in_an_answer_is_not_sent() -> None:
    with pytest.raises(TypeError, match="dict has no place"):
        frame_answer(JobAnswer(True, {}, True))
