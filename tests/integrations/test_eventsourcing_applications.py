"""Whole applications of the library: its published example, systems of several, and our own example."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any, ClassVar
from unittest.mock import patch
from uuid import NAMESPACE_URL, UUID, uuid5

import pytest
from eventsourcing.application import AggregateNotFoundError, Application, ProcessingEvent
from eventsourcing.domain import Aggregate, event
from eventsourcing.persistence import IntegrityError
from eventsourcing.system import (
    MultiThreadedRunner,
    NewMultiThreadedRunner,
    NewSingleThreadedRunner,
    ProcessApplication,
    Runner,
    SingleThreadedRunner,
    System,
)
from eventsourcing.tests import application
from eventsourcing.utils import get_topic

from penstock.integrations.eventsourcing import PenstockFactory
from tests.integrations.support import InProcess, served, shared_urls
from tests.test_server import PATIENCE_S, environment, until

MODULE = "penstock.integrations.eventsourcing"
EXAMPLE = Path(__file__).parents[2] / "examples" / "eventsourcing_shop.py"


def settings(url: str) -> dict[str, str]:
    return {"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": url}


# ---------------------------------------------------------------- the published example


class ExampleApplication(application.ExampleApplicationTestCase, InProcess):
    expected_factory_topic = get_topic(PenstockFactory)

    def setUp(self) -> None:
        super().setUp()
        # It reads the process's environment, and leaves its application to the garbage collector.
        self.stack.enter_context(patch.dict(os.environ, settings(self.url)))
        self.addCleanup(until, lambda: self.url not in shared_urls())


# ---------------------------------------------------------------- systems


class Order(Aggregate):
    def __init__(self, customer: str) -> None:
        self.customer = customer


class Tally(Aggregate):
    def __init__(self, name: str) -> None:
        self.name = name
        self.count = 0

    @staticmethod
    def create_id(name: str) -> UUID:
        return uuid5(NAMESPACE_URL, name)

    @event("Counted")
    def add(self) -> None:
        self.count += 1


class Orders(Application[UUID]):
    is_snapshotting_enabled = True

    def place(self, customer: str) -> int:
        return self.save(Order(customer))[-1].notification.id


class Tallies(ProcessApplication[UUID]):
    snapshotting_intervals: ClassVar[dict[type[Any], int]] = {Tally: 5}

    def policy(self, domain_event: Any, processing_event: ProcessingEvent[UUID]) -> None:
        if isinstance(domain_event, Order.Created):
            tally = self.tally(domain_event.customer)  # type: ignore[attr-defined]
            tally.add()
            processing_event.collect_events(tally)

    def tally(self, name: str) -> Tally:
        try:
            found: Tally = self.repository.get(Tally.create_id(name))
        except AggregateNotFoundError:
            return Tally(name)
        return found


@pytest.mark.parametrize(
    "kind", [SingleThreadedRunner, NewSingleThreadedRunner, MultiThreadedRunner, NewMultiThreadedRunner]
)
def test_a_system_runs_on_one_store(kind: type[Runner[UUID]], url: str) -> None:
    for so_far in (0, 20):
        runner = kind(System([[Orders, Tallies]]), settings(url))
        with runner:
            orders, tallies = runner.get(Orders), runner.get(Tallies)
            last = [orders.place("Ada") for _ in range(20)][-1]
            tallies.recorder.wait("Orders", last, timeout=PATIENCE_S)
            assert tallies.tally("Ada").count == so_far + 20
            assert tallies.recorder.max_tracking_id("Orders") == orders.recorder.max_notification_id() == last
        assert shared_urls() == []


def test_an_application_finds_its_aggregates_again(url: str) -> None:
    with Tallies(settings(url)) as app:
        tally = Tally("Ada")
        for _ in range(12):
            tally.add()
        app.save(tally)
    with Tallies(settings(url)) as app:
        found = app.tally("Ada")
        assert (found.count, found.version) == (12, 13)
        assert app.snapshots is not None
        assert [each.originator_version for each in app.snapshots.get(found.id)] == [5, 10]
        found.add()
        app.save(found)
        assert app.repository.get(found.id, version=6).version == 6
    with Tallies(settings(url)) as app:
        stale: Tally = app.repository.get(found.id, version=13)
        stale.add()
        with pytest.raises(IntegrityError):
            app.save(stale)


FORGETFUL = """
from eventsourcing.application import Application
from eventsourcing.domain import Aggregate
app = Application()
app.save(Aggregate())
print(app.recorder.max_notification_id())
"""


def test_a_program_that_does_not_close_its_application_ends_all_the_same(url: str) -> None:
    command = [sys.executable, "-W", "error", "-c", FORGETFUL]
    env = {**environment(), **settings(url)}
    result = subprocess.run(command, capture_output=True, text=True, env=env, timeout=PATIENCE_S)
    assert (result.returncode, result.stdout, result.stderr) == (0, "1\n", "")


# ---------------------------------------------------------------- our example


def shop(*arguments: str) -> list[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout.splitlines()


def test_the_example_sells_and_counts_what_was_paid() -> None:
    with served() as url:
        said = shop("--url", url)
        assert said[0] == "Eve's order cannot be paid twice"
        assert said[-3:] == ["Ada has paid 42 in all", "Bob has paid 15 in all", "Eve has paid 7 in all"]
        assert shop("--url", url)[-3:] == [
            "Ada has paid 84 in all",
            "Bob has paid 30 in all",
            "Eve has paid 14 in all",
        ]


def test_the_example_needs_no_server() -> None:
    assert shop()[-3:] == ["Ada has paid 42 in all", "Bob has paid 15 in all", "Eve has paid 7 in all"]
