"""How many bytes of requests may be under way."""

from collections import Counter

import pytest

from penstock.engine.engine import Budget
from penstock.errors import ReaderBusy, WriterBusy
from penstock.model import ANONYMOUS, AddMessages, GetStats


@pytest.fixture
def budget() -> Budget:
    return Budget(1000, Counter())


def test_there_is_room_up_to_the_sum(budget: Budget) -> None:
    assert budget.take(600)
    assert budget.take(400)
    assert not budget.take(1)
    budget.give_back(400)
    assert not budget.take(401)
    assert budget.take(400)
    assert budget.taken == 1000


def test_a_request_of_any_size_finds_room_while_half_is_free(budget: Budget) -> None:
    assert budget.take(500)
    assert budget.take(1_000_000)
    assert not budget.take(1)
    budget.give_back(1_000_000)
    assert budget.take(1)
    assert not budget.take(1_000_000)
    assert budget.taken == 501


def test_one_connection_has_a_part_of_it(budget: Budget) -> None:
    assert budget.connection_bytes_max == 62


def test_what_finds_no_room_is_busy_for_reads_and_for_writes() -> None:
    refused: Counter[str] = Counter()
    budget = Budget(1000, refused)
    assert budget.take(300)
    assert budget.take(300)
    reading, writing = budget.busy(GetStats(), ANONYMOUS), budget.busy(AddMessages("log", ()), ANONYMOUS)
    assert (type(reading), reading.queued) == (ReaderBusy, 2)
    assert (type(writing), writing.queued) == (WriterBusy, 2)
    assert refused == {"requests_busy": 2}
