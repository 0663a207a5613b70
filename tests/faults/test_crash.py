"""Servers killed under load, a few times on a store of each kind; `make soak-crash` kills a thousand."""

from pathlib import Path

import pytest

from penstock.model import EventFilter
from penstock.store import store_url
from penstock.store.contract import ReadLimits
from penstock.store.sqlite import SqliteStore
from tests.postgres import Schemas
from tests.seeds import run_seed
from tests.soak.crash import Inspection, Ledger, Violation, run_cycle

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A place for a new store."""
    if request.param == "sqlite":
        return store_url(tmp_path)
    schemas: Schemas = request.getfixturevalue("schemas")
    return schemas.url()


@pytest.mark.parametrize("cycles", [2, pytest.param(6, marks=pytest.mark.long)])
def test_killed_servers_lose_nothing_they_acknowledged(url: str, cycles: int) -> None:
    ledger = Ledger()
    for cycle in range(1, cycles + 1):
        # The last one lives until somebody has acknowledged a batch, however busy the machine is.
        after = "acked" if cycle == cycles else None
        print(run_cycle(url, str(run_seed()), cycle, ledger, verify=True, after=after))
    assert ledger.head > 0
    assert ledger.acknowledged
    assert ledger.done


def test_the_look_at_the_store_catches_a_lost_commit_and_a_lost_acknowledgement(tmp_path: Path) -> None:
    ledger = Ledger()
    # The first seed's first server dies under load.
    run_cycle(store_url(tmp_path), "test", 1, ledger, verify=False)
    store = SqliteStore(tmp_path)
    inspection = Inspection(store, ledger, 1)
    lost = {"k": "commit", "label": "1/x/0", "stream": "x", "position": 1, "sequence": 1, "count": 1, "commit": ""}
    with pytest.raises(Violation, match="acknowledged"):
        inspection.compare([lost])
    ledger.subscription = ledger.head + 2
    with pytest.raises(Violation, match="subscription"):
        inspection.consumers()
    page = store.read_all(ledger.head, EventFilter(), ReadLimits())
    ledger.head -= 1
    with pytest.raises(Violation, match="stream"):
        inspection.scan()
    assert page.end
    store.close()
