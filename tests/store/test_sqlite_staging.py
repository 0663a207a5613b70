"""What staging leaves in the files of a store on SQLite, searched byte by byte."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

import pytest

from penstock.model import ProducerMark, StagedUnit, Winner
from penstock.store.contract import Hid, HideStream, Publish, Stage, Transaction, Unstage
from penstock.store.sqlite import SqliteStore, secure_delete
from penstock.store.stages import make_unit
from tests.seeds import rng
from tests.store.contract.logs import erase_all
from tests.store.kit import append, do, do_one, findings, some, stream_of
from tests.store.test_sqlite_upkeep import holders

JOBS = [f"job {number}" for number in range(6)]
MIB = 1 << 20
PLENTY = (64 * MIB, 100_000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    with closing(SqliteStore(tmp_path)) as store:
        yield store
        assert findings(store) == []


def erase(store: SqliteStore, stream: str) -> None:
    """Erase a stream that has events, and see the erasure finished."""
    hid = do_one(store, HideStream("shop", stream))
    assert isinstance(hid, Hid)
    assert hid.events
    erase_all(store)


class Load:
    """Tasks of several jobs that stage by turns; all that a job stages says over and over whose it is."""

    def __init__(self, store: SqliteStore, chance: Random, size: int) -> None:
        self.store = store
        self.chance = chance
        self.size = size
        self.times = dict.fromkeys(JOBS, 0)
        self.staged: dict[str, dict[int, int]] = {job: {} for job in JOBS}

    def secret(self, job: str) -> bytes:
        return f"secret {self.times[job]} of {job};".encode()

    def stage(self, turns: int) -> None:
        transactions = [Transaction((self._stage(),)) for _ in range(turns)]
        for outcome in self.store.write(transactions):
            assert isinstance(outcome, list)

    def _stage(self) -> Stage:
        job, part = self.chance.choice(JOBS), self.chance.randrange(3)
        number = self.staged[job].get(part, 0)
        units = tuple(self._unit(job) for _ in range(self.chance.choice((1, 1, 2, 9))))
        self.staged[job][part] = number + len(units)
        return Stage(job, part, "a", number, units, *PLENTY)

    def _unit(self, job: str) -> StagedUnit:
        secret = self.secret(job)
        body, key = (secret * (self.chance.randrange(self.size) // len(secret) + 1) for _ in range(2))
        events = some(self.chance.choice((1, 2)), body=body, headers=secret.decode())
        return make_unit("shop", job, events, keys=[key] * len(events))

    def end(self, job: str) -> bytes:
        """Publish a job, or some of it, and erase its stream; or drop the job. What was in it."""
        secret, parts = self.secret(job), list(self.staged[job].items())
        if parts and self.chance.random() < 0.6:
            won = self.chance.sample(parts, self.chance.randint(1, len(parts)))
            winners = tuple(Winner(part, "a", units) for part, units in won)
            do(self.store, Publish(job, winners), mark=ProducerMark(job, self.times[job]))
            assert len(stream_of(self.store, job)) >= sum(units for _, units in won)
            erase(self.store, job)
        else:
            do_one(self.store, Unstage(job))
        self.times[job] += 1
        self.staged[job] = {}
        return secret


# Without guards, 8 is one of the few that find something.
@pytest.mark.parametrize(
    ("seed", "size"),
    [(8, 40), (None, 300), *(pytest.param(None, size, marks=pytest.mark.long) for size in (40, 1500, 9000))],
)
def test_jobs_that_end_among_others_leave_nothing_behind(
    tmp_path: Path, store: SqliteStore, seed: int | None, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units go from between others, and SQLite moves rows from page to page: none may leave a copy."""
    load = Load(store, rng(f"jobs of {size}") if seed is None else Random(seed), size)
    monkeypatch.setattr(secure_delete, "ROWS_TOGETHER_MAX", load.chance.choice((3, 4096)))
    secrets = []
    for job in load.chance.choices(JOBS, k=8):
        load.stage(20)
        secrets.append(load.end(job))
        # What was dropped leaves the write-ahead log with what is erased next.
        append(store, "other", some(1))
        erase(store, "other")
        files = [path.read_bytes() for path in tmp_path.iterdir()]
        assert [secret for secret in secrets if any(secret in data for data in files)] == []
    for job in JOBS:
        assert holders(tmp_path, load.secret(job)) or not load.staged[job]
        load.end(job)
    assert store.db.value("staged_size", {"job": JOBS[0]}) == 0


def test_a_published_job_whose_stream_is_erased_is_in_no_file(tmp_path: Path, store: SqliteStore) -> None:
    units = tuple(make_unit("shop", "s", some(3, body=b"the secret %d" % number * 40)) for number in range(200))
    do_one(store, Stage("job", 0, "a", 0, units, *PLENTY))
    assert holders(tmp_path, b"the secret 7")
    do(store, Publish("job", (Winner(0, "a", 200),)), mark=ProducerMark("job", 1))
    erase(store, "s")
    assert holders(tmp_path, b"the secret") == []
