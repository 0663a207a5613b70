"""Makes recorders from an application's environment.

A setting may be for one application, as elsewhere in the library: `SHOP_PENSTOCK_URL` before `PENSTOCK_URL`.
"""

from math import isfinite
from typing import Any, Final, TypeVar

from eventsourcing.persistence import InfrastructureFactory
from eventsourcing.utils import Environment, EnvType, resolve_topic

from penstock.integrations.eventsourcing.datastore import TIMEOUT_S, PenstockDatastore
from penstock.integrations.eventsourcing.recorders import (
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockSnapshotRecorder,
)
from penstock.integrations.eventsourcing.tracking_recorders import PenstockProcessRecorder, PenstockTrackingRecorder
from penstock.model import check_context
from penstock.model.address import Address

EVENTS: Final = "events"
TRACKING: Final = "tracking"
UNNAMED_CONTEXT: Final = "eventsourcing"
PURPOSE_BYTES_MAX: Final = 32
"""Room in a context's name for the suffix of the contexts of snapshots and tracking."""

R = TypeVar("R")


class PenstockFactory(InfrastructureFactory[PenstockTrackingRecorder]):
    """Makes the recorders of one application, which share a client."""

    PENSTOCK_URL = "PENSTOCK_URL"
    PENSTOCK_TOKEN = "PENSTOCK_TOKEN"  # noqa: S105 - the name of the variable
    PENSTOCK_CONTEXT = "PENSTOCK_CONTEXT"
    PENSTOCK_TIMEOUT = "PENSTOCK_TIMEOUT"

    aggregate_recorder_class = PenstockAggregateRecorder
    application_recorder_class = PenstockApplicationRecorder
    tracking_recorder_class = PenstockTrackingRecorder
    process_recorder_class = PenstockProcessRecorder
    snapshot_recorder_class = PenstockSnapshotRecorder

    def __init__(self, env: Environment | EnvType | None) -> None:
        super().__init__(env)
        self.context = context = self.env.get(self.PENSTOCK_CONTEXT) or self.env.name or UNNAMED_CONTEXT
        # The contexts of snapshots and tracking have longer names.
        if reason := check_context(context + "x" * PURPOSE_BYTES_MAX):
            raise self._invalid(self.PENSTOCK_CONTEXT, context, f"the name of a context is expected, but it {reason}")
        url = self.env.get(self.PENSTOCK_URL)
        if not url:
            keys = ", ".join(self.env.create_keys(self.PENSTOCK_URL))
            raise OSError(f"Penstock URL not found in environment with keys: {keys}")
        timeout = (self.env.get(self.PENSTOCK_TIMEOUT) or "").strip()
        try:
            seconds = float(timeout or TIMEOUT_S)
        except ValueError:
            seconds = 0.0
        if not (isfinite(seconds) and seconds > 0):
            expected = "a number of seconds above 0 or empty string is expected"
            raise self._invalid(self.PENSTOCK_TIMEOUT, timeout, expected)
        self.datastore = PenstockDatastore(Address(url, self.env.get(self.PENSTOCK_TOKEN)), seconds)

    @staticmethod
    def _invalid(key: str, value: str, expected: str) -> OSError:
        return OSError(f"Penstock environment value for key '{key}' is invalid. If set, {expected}: '{value}'")

    def aggregate_recorder(self, purpose: str = EVENTS) -> PenstockAggregateRecorder | PenstockSnapshotRecorder:
        """A recorder of aggregates' events, or of snapshots and other events whose versions have gaps."""
        if purpose == EVENTS:
            return self.aggregate_recorder_class(self.datastore, self.context)
        return self.snapshot_recorder_class(self.datastore, f"{self.context}.{purpose}")

    def application_recorder(self) -> PenstockApplicationRecorder:
        kind = self._kind(self.APPLICATION_RECORDER_TOPIC, self.application_recorder_class)
        return kind(self.datastore, self.context)

    def tracking_recorder(
        self, tracking_recorder_class: type[PenstockTrackingRecorder] | None = None
    ) -> PenstockTrackingRecorder:
        kind = tracking_recorder_class or self._kind(self.TRACKING_RECORDER_TOPIC, self.tracking_recorder_class)
        return kind(self.datastore, f"{self.context}.{TRACKING}")

    def process_recorder(self) -> PenstockProcessRecorder:
        kind = self._kind(self.PROCESS_RECORDER_TOPIC, self.process_recorder_class)
        return kind(self.datastore, self.context, f"{self.context}.{TRACKING}")

    def close(self) -> None:
        self.datastore.close()

    def _kind(self, key: str, usual: type[R]) -> type[R]:
        """The class that the environment names, or the usual one."""
        topic = self.env.get(key)
        if not topic:
            return usual
        found: Any = resolve_topic(topic)
        if not (isinstance(found, type) and issubclass(found, usual)):
            raise self._invalid(key, topic, f"a subclass of {usual.__name__} is expected")
        return found
