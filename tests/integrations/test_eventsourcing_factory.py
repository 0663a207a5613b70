"""The library's published test case for factories, and what else a factory of ours promises."""

import gc
from collections.abc import Iterator

import pytest
from eventsourcing.application import Application
from eventsourcing.persistence import InfrastructureFactory, InterfaceError, OperationalError, StoredEvent, Tracking
from eventsourcing.tests import persistence
from eventsourcing.utils import Environment, get_topic

from penstock.integrations.eventsourcing import (
    Factory,
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockFactory,
    PenstockProcessRecorder,
    PenstockSnapshotRecorder,
    PenstockTrackingRecorder,
)
from tests.integrations.support import InProcess, shared_urls
from tests.test_server import until

MODULE = "penstock.integrations.eventsourcing"


class Views(PenstockTrackingRecorder):
    """Somebody's own tracking recorder."""


class Applications(PenstockApplicationRecorder):
    """Somebody's own application recorder."""


class InfrastructureFactoryCase(persistence.InfrastructureFactoryTestCase[PenstockFactory], InProcess):
    def setUp(self) -> None:
        InProcess.setUp(self)
        self.env = Environment("Shop", {"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": self.url})
        super().setUp()

    def expected_factory_class(self) -> type[PenstockFactory]:
        return PenstockFactory

    def expected_aggregate_recorder_class(self) -> type[PenstockAggregateRecorder]:
        return PenstockAggregateRecorder

    def expected_application_recorder_class(self) -> type[PenstockApplicationRecorder]:
        return PenstockApplicationRecorder

    def expected_tracking_recorder_class(self) -> type[PenstockTrackingRecorder]:
        return PenstockTrackingRecorder

    def tracking_recorder_subclass(self) -> type[PenstockTrackingRecorder]:
        return Views

    def expected_process_recorder_class(self) -> type[PenstockProcessRecorder]:
        return PenstockProcessRecorder


# ---------------------------------------------------------------- settings


def factory_of(name: str = "", **env: str) -> PenstockFactory:
    found = InfrastructureFactory.construct(Environment(name, {"PERSISTENCE_MODULE": MODULE, **env}))
    assert isinstance(found, PenstockFactory)
    return found


def test_the_module_has_one_factory() -> None:
    assert Factory is PenstockFactory
    assert isinstance(factory_of(PENSTOCK_URL="penstock://127.0.0.1:1"), Factory)


def test_a_missing_url_names_the_keys_that_were_looked_for() -> None:
    with pytest.raises(EnvironmentError, match=r"Penstock URL not found.*SHOP_PENSTOCK_URL, PENSTOCK_URL"):
        factory_of("Shop", PENSTOCK_URL="")


def test_a_url_that_is_none_is_told_when_a_recorder_is_used() -> None:
    recorder = factory_of(PENSTOCK_URL="mysql://db").aggregate_recorder()
    with pytest.raises(EnvironmentError, match=r"'PENSTOCK_URL' is invalid. 'mysql://db' is no address"):
        recorder.select_events("order-1")


@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_timeout_must_be_a_number_of_seconds(value: str) -> None:
    with pytest.raises(EnvironmentError, match=f"'PENSTOCK_TIMEOUT' is invalid.*seconds above 0.*'{value}'"):
        factory_of(PENSTOCK_URL="sqlite:///data", PENSTOCK_TIMEOUT=value)


def test_a_timeout_may_be_left_empty() -> None:
    assert factory_of(PENSTOCK_URL="sqlite:///data", PENSTOCK_TIMEOUT=" ").datastore.timeout == 30
    assert factory_of(PENSTOCK_URL="sqlite:///data", PENSTOCK_TIMEOUT="0.5").datastore.timeout == 0.5


@pytest.mark.parametrize("context", ["\0", "x" * 230])
def test_a_context_must_be_a_name_with_room_for_those_beside_it(context: str) -> None:
    with pytest.raises(EnvironmentError, match="'PENSTOCK_CONTEXT' is invalid"):
        factory_of(PENSTOCK_URL="sqlite:///data", PENSTOCK_CONTEXT=context)


def test_the_context_is_named_for_the_application_unless_it_is_set() -> None:
    url = "sqlite:///data"
    assert factory_of("Shop", PENSTOCK_URL=url).context == "Shop"
    assert factory_of(PENSTOCK_URL=url).context == "eventsourcing"
    assert factory_of("Shop", PENSTOCK_URL=url, SHOP_PENSTOCK_CONTEXT="sales").context == "sales"
    assert factory_of("Shop", PENSTOCK_URL=url, STOCK_PENSTOCK_CONTEXT="sales").context == "Shop"


def test_snapshots_and_tracking_are_kept_beside_the_events() -> None:
    factory = factory_of("Shop", PENSTOCK_URL="sqlite:///data")
    snapshots = factory.aggregate_recorder("snapshots")
    assert isinstance(snapshots, PenstockSnapshotRecorder)
    assert snapshots.context == "Shop.snapshots"
    assert (
        factory.tracking_recorder().tracking_context == factory.process_recorder().tracking_context == "Shop.tracking"
    )
    assert factory.process_recorder().context == factory.application_recorder().context == "Shop"


def test_recorders_of_ones_own_are_named_by_topics() -> None:
    env = {"PENSTOCK_URL": "sqlite:///data", "APPLICATION_RECORDER_TOPIC": get_topic(Applications)}
    assert type(factory_of(**env).application_recorder()) is Applications


def test_a_topic_of_something_else_is_refused() -> None:
    env = {"PENSTOCK_URL": "sqlite:///data", "PROCESS_RECORDER_TOPIC": get_topic(Views)}
    with pytest.raises(EnvironmentError, match="subclass of PenstockProcessRecorder is expected"):
        factory_of(**env).process_recorder()


# ---------------------------------------------------------------- clients


@pytest.fixture
def factories(url: str) -> Iterator[list[PenstockFactory]]:
    made = [factory_of(name, PENSTOCK_URL=url) for name in ("Shop", "Stock")]
    yield made
    for factory in made:
        factory.close()


def test_a_factory_connects_when_a_recorder_needs_it() -> None:
    nobody = factory_of(PENSTOCK_URL="penstock://127.0.0.1:1", PENSTOCK_TIMEOUT="0.1")
    recorder = nobody.application_recorder()
    with pytest.raises(OperationalError, match=r"cannot connect to penstock://127.0.0.1:1"):
        recorder.max_notification_id()


def test_factories_of_a_process_share_the_store_that_it_owns(factories: list[PenstockFactory]) -> None:
    shop, stock = (factory.process_recorder() for factory in factories)
    assert shop.insert_events([StoredEvent("order-1", 1, "Placed", b"")]) == [1]
    assert stock.insert_events([StoredEvent("order-1", 1, "Picked", b"")], tracking=Tracking("Shop", 1)) == [2]
    factories[0].close()
    assert stock.max_tracking_id("Shop") == 1


def test_the_store_is_free_when_the_last_factory_is_closed(url: str, factories: list[PenstockFactory]) -> None:
    for factory in factories:
        factory.tracking_recorder().max_tracking_id("Shop")
    assert url in shared_urls()
    for factory in factories:
        factory.close()
    assert url not in shared_urls()


def test_a_closed_factory_says_so(factories: list[PenstockFactory]) -> None:
    recorder = factories[0].application_recorder()
    factories[0].close()
    factories[0].close()
    with pytest.raises(InterfaceError, match="closed"):
        recorder.max_notification_id()


def test_an_application_that_nobody_closes_lets_the_store_go_when_it_is_gone(url: str) -> None:
    Application(env={"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": url}).save()
    app: object = Application(env={"PERSISTENCE_MODULE": MODULE, "PENSTOCK_URL": url})
    assert isinstance(app, Application)
    app.recorder.max_notification_id()
    assert url in shared_urls()
    del app
    gc.collect()
    until(lambda: url not in shared_urls())
