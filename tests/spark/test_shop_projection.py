"""The shop's projection into PostgreSQL: whatever batch comes again, the table is what plain Python computes."""

import importlib.util
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pyspark.sql import SparkSession

from penstock.pipelines import event_tables
from penstock.pipelines.scaffold import make_example
from tests.pipelines.shop import BAD, Shop, totals
from tests.postgres import Postgres

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def target(postgres_server: Postgres) -> Iterator[str]:
    """A schema of the test's own."""
    postgres_server.execute("CREATE SCHEMA projected")
    yield postgres_server.url("projected")
    postgres_server.execute("DROP SCHEMA projected CASCADE")


class Projected:
    """A shop and its projection, as `projection.py` of the example has it."""

    def __init__(self, folder: Path, spark: SparkSession, target: str) -> None:
        self.shop = Shop(folder / "data")
        self._spark, self._target, self.checkpoint = spark, target, folder / "checkpoint"
        project = make_example(folder / "project", self.shop.url, "shop").folder
        self._declared = event_tables(project)
        spec = importlib.util.spec_from_file_location("projection", project / "projection.py")
        assert spec is not None
        assert spec.loader is not None
        self.module: Any = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)

    def run(self) -> None:
        self.module.project(self._spark, self._declared, self._target, self.checkpoint)

    def forget_last(self) -> None:
        """As if it had been killed between PostgreSQL's commit and Spark's."""
        commits = self.checkpoint / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdigit())
        for name in (f"{last}", f".{last}.crc"):
            (commits / name).unlink()

    def table(self) -> dict[str, Any]:
        with psycopg.connect(self._target) as db:
            return {row[0]: row[1:] for row in db.execute("SELECT * FROM customers")}


@pytest.fixture
def projected(tmp_path: Path, spark: SparkSession, target: str) -> Projected:
    return Projected(tmp_path, spark, target)


@pytest.mark.long
def test_a_batch_that_comes_again_changes_nothing_and_more_events_are_added(projected: Projected) -> None:
    projected.module.BATCH_EVENTS = 200
    projected.shop.sell(60)
    projected.shop.add(*BAD)
    projected.run()
    first = projected.table()
    assert first == totals(projected.shop.events())
    assert len(first) == 6
    projected.forget_last()
    projected.run()
    assert projected.table() == first
    projected.shop.sell(20)
    projected.forget_last()
    projected.run()
    assert projected.table() == totals(projected.shop.events()) != first
    shutil.rmtree(projected.checkpoint)
    projected.run()
    assert projected.table() == totals(projected.shop.events())


@pytest.mark.long
def test_a_batch_that_fails_half_way_leaves_nothing_and_is_done_later(projected: Projected) -> None:
    projected.shop.sell(20)
    done, projected.module.DONE = projected.module.DONE, "SELECT %s / (%s * 0)"
    with pytest.raises(Exception, match="division by zero"):
        projected.run()
    assert projected.table() == {}
    projected.module.DONE = done
    projected.run()
    assert projected.table() == totals(projected.shop.events())


@pytest.mark.long
def test_names_that_postgresql_does_not_take_do_not_stop_it(projected: Projected) -> None:
    projected.shop.add(b'{"customer": "A\\u0000da", "amount": 1}', b'{"customer": "%s", "amount": 2}' % (b"x" * 9000))
    projected.shop.add(b'{"customer": 7, "amount": 1}', b'{"customer": "", "amount": 1e9999}')
    projected.shop.add(b'{"customer": "Ada", "amount": 3}')
    projected.run()
    assert {name: int(paid[1]) for name, paid in projected.table().items()} == {"A da": 1, "x" * 200: 2, "Ada": 3}
