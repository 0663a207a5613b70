"""A server with small limits: it says that it is busy, or that a turn came too late, and goes on."""

import contextlib
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gates.res_client import PATIENCE_S, Answer, Older
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import an_event
from tests.gates.serving import Served

SERVER_FLAGS = ("--workers", "1", "--writer-queue-max", "2", "--reader-queue-max", "2")
FLOOD = 300


def outcomes(answers: list[Answer]) -> Counter[str]:
    """How often each answer came: its command, or the code of an error."""
    return Counter(_outcome(answer) for answer in answers)


def _outcome(answer: Answer) -> str:
    is_error = answer.command == b"ER" or (len(answer.details) == 3 and answer.details[0])
    return (answer.details[0] if is_error else answer.command).decode()


def flood(client: Extended | Older, command: str, *fields: bytes, until: str) -> list[Answer]:
    """Send the same again and again, many ahead of their answers, until one of them is this; all answers."""
    answers: list[Answer] = []
    give_up = time.monotonic() + PATIENCE_S
    while until not in outcomes(answers):
        assert time.monotonic() < give_up, f"no {until}: {outcomes(answers)}"
        sent = {client.send(command, *fields) for _ in range(FLOOD)}
        received = [client.receive() for _ in range(FLOOD)]
        assert {answer.request_id for answer in received} == sent
        answers += received
    return answers


def test_too_many_appends_are_error_4_and_not_written(client: Extended, context: str) -> None:
    answers = flood(client, "AC", *client.commit_fields(context, "s", -1, [an_event()]), until="4")
    found = outcomes(answers)
    assert set(found) == {"CR", "4"}
    assert any("try again" in answer.error().message for answer in answers if answer.command == b"ER")
    assert client.list_streams(context) == ([("s", found["CR"])], True)


def test_too_many_appends_are_0x1_in_the_older_results(older: Older, client: Extended, context: str) -> None:
    answers = flood(older, "AC", *older.commit_fields(context, "s", -1, [an_event()]), until="0x1")
    results = [older.older_result(answer) for answer in answers]
    assert {result.result for result in results} == {"", "0x1"}
    assert all((result.commit.int == 0) == bool(result.error) == bool(result.result) for result in results)
    written = sum(not result.result for result in results)
    assert client.list_streams(context) == ([("s", written)], True)


def test_too_many_reads_are_error_10(client: Extended, context: str) -> None:
    client.append(context, "s", 1, *(an_event() for _ in range(100)))
    assert set(outcomes(flood(client, "QS", context.encode(), b"s", b"1", b"", until="10"))) == {"QR", "10"}


@pytest.fixture(scope="module")
def impatient(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server whose queues are long and whose patience is short."""
    waits = ("--writer-wait-ms-max", "1", "--reader-wait-ms-max", "1", "--workers", "1", "--batch-requests-max", "1")
    with Served(_data(tmp_path_factory), *waits) as served:
        yield served


def _data(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("impatient") / "data"


def test_appends_that_waited_too_long_are_error_5_and_not_written(impatient: Served, context: str) -> None:
    with Extended(impatient.res) as client:
        found = outcomes(flood(client, "AC", *client.commit_fields(context, "s", -1, [an_event()]), until="5"))
        assert set(found) <= {"CR", "5"}
        with contextlib.closing(Older(impatient.res_legacy)) as older:
            answers = flood(older, "AC", *older.commit_fields(context, "old", -1, [an_event()]), until="5")
            results = Counter(older.older_result(answer).result for answer in answers)
            assert set(results) <= {"", "5"}
        rows, _ = client.list_streams(context)
        assert dict(rows) == {name: count for name, count in (("old", results[""]), ("s", found["CR"])) if count}


def test_reads_that_waited_too_long_are_error_9(impatient: Served, context: str) -> None:
    with Extended(impatient.res) as client:
        found = outcomes(flood(client, "QS", context.encode(), b"s", b"1", b"", until="9"))
        assert set(found) <= {"QR", "9"}
