"""Random histories of queues on PostgreSQL, where two servers take turns; see `queue_histories`."""

from contextlib import ExitStack, closing
from typing import cast

import pytest

from penstock.store import Store
from penstock.store.postgres import PostgresStore
from tests.postgres import Schemas
from tests.seeds import rng
from tests.store.kit import Clock, findings
from tests.store.queue_histories import STEPS, play
from tests.store.test_postgres import Alternating

HISTORIES = 40
MANY_HISTORIES = 300


def check(url: str, histories: int) -> None:
    """One history after the other in one database, each with a queue and a context of its own."""
    random = rng("histories of queues on PostgreSQL")
    clock = Clock()
    with ExitStack() as stack:
        stores = [stack.enter_context(closing(PostgresStore(url, clock=clock))) for _ in range(2)]
        store = cast("Store", Alternating(*stores))
        for number in range(histories):
            play(store, clock, random.getrandbits(32), STEPS, context=f"shop {number}")
        assert findings(store) == []


def test_in_random_histories_no_event_is_lost_or_with_two_consumers_or_out_of_order(schemas: Schemas) -> None:
    check(schemas.url(), HISTORIES)


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_nor_in_many_histories(schemas: Schemas) -> None:
    check(schemas.url(), MANY_HISTORIES)
