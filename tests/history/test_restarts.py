"""A PostgreSQL that restarts while a read is planned: every step of the planning waits for it."""

import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from penstock.errors import StorageFailure
from penstock.history import source
from penstock.history.source import StoredHistory
from penstock.store.postgres import PostgresStore
from tests.postgres import Postgres, postgres
from tests.store.kit import append, some

STEPS: dict[str, Callable[[StoredHistory], object]] = {
    "now": lambda history: history.now().head,
    "all_bytes": lambda history: history.all_bytes(),
    "event_bytes": lambda history: history.event_bytes(1) > 0,
    "context_bytes": lambda history: history.context_bytes("shop"),
    "position_of": lambda history: history.position_of("shop", 0),
}


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as server:
        with closing(PostgresStore(server.url())) as store:
            append(store, "order-1", some(1, body=b"four"))
        yield server


@pytest.fixture
def restart(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
    """Stops the database; it is there again after the first read that failed."""
    pauses: list[float] = []
    sleep = time.sleep

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if pauses == [source.PAUSE_S]:
            database.start()
        sleep(seconds)

    monkeypatch.setattr(time, "sleep", pause)
    yield database.stop
    assert pauses, "nothing failed, so nothing was retried"


@pytest.mark.parametrize("step", STEPS)
def test_planning_waits_for_a_restart(database: Postgres, restart: Callable[[], None], step: str) -> None:
    with closing(StoredHistory(database.url())) as history:
        before = STEPS[step](history)
        restart()
        assert STEPS[step](history) == before


def test_opening_waits_for_a_restart(database: Postgres, restart: Callable[[], None]) -> None:
    restart()
    with closing(StoredHistory(database.url())) as history:
        assert history.now().head == 1


def test_a_database_that_stays_away_is_an_error(database: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "OPENING_S_MAX", 0)
    with pytest.raises(StorageFailure):
        StoredHistory("postgresql://nobody@127.0.0.1:1/nothing")
