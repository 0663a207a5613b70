"""The library's own test cases for recorders, all of them, in process and over a server.

They are published as base classes; what is added here is only how a recorder is made.
"""

from collections.abc import Iterator
from unittest import TestCase

import pytest
from eventsourcing.tests import persistence

from penstock.integrations.eventsourcing import (
    PenstockAggregateRecorder,
    PenstockApplicationRecorder,
    PenstockProcessRecorder,
    PenstockSnapshotRecorder,
    PenstockTrackingRecorder,
)
from tests.integrations.support import InProcess, OverTcp, served


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    """The server that those tests share which do not count positions."""
    with served() as OverTcp.shared_url:
        yield


class AggregateRecorder(persistence.AggregateRecorderTestCase, InProcess):
    def create_recorder(self) -> PenstockAggregateRecorder:
        return PenstockAggregateRecorder(self.datastore(), self.context)


class SnapshotRecorder(persistence.AggregateRecorderTestCase, InProcess):
    def create_recorder(self) -> PenstockSnapshotRecorder:
        return PenstockSnapshotRecorder(self.datastore(), self.context)


class ApplicationRecorder(persistence.ApplicationRecorderTestCase[PenstockApplicationRecorder], InProcess):
    def create_recorder(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self.datastore(), self.context)

    def test_insert_subscribe(self) -> None:
        self.optional_test_insert_subscribe()


class ProcessRecorderOfAnApplication(ApplicationRecorder):
    def create_recorder(self) -> PenstockProcessRecorder:
        return PenstockProcessRecorder(self.datastore(), self.context, self.tracking_context)


class TrackingRecorder(persistence.TrackingRecorderTestCase, InProcess):
    def create_recorder(self) -> PenstockTrackingRecorder:
        return PenstockTrackingRecorder(self.datastore(), self.tracking_context)


class ProcessRecorder(persistence.ProcessRecorderTestCase, InProcess):
    def create_recorder(self) -> PenstockProcessRecorder:
        return PenstockProcessRecorder(self.datastore(), self.context, self.tracking_context)


class NonInterleavingNotificationIds(persistence.NonInterleavingNotificationIDsBaseCase, InProcess):
    def create_recorder(self) -> PenstockApplicationRecorder:
        return PenstockApplicationRecorder(self.datastore(), self.context)


# ---------------------------------------------------------------- with ids that are text


class Text(persistence.RecorderTestCase):
    """Aggregates whose ids are text, some of which could be UUIDs."""

    def new_originator_id(self) -> str:
        number = super().new_originator_id()
        return str(number) if int(str(number)[0], 16) % 2 else f"order-{number}"


class AggregateRecorderWithTextIds(Text, AggregateRecorder):
    pass


class SnapshotRecorderWithTextIds(Text, SnapshotRecorder):
    pass


class ApplicationRecorderWithTextIds(Text, ApplicationRecorder):
    pass


# ---------------------------------------------------------------- over a server


class AggregateRecorderOverTcp(AggregateRecorder, OverTcp):
    pass


class SnapshotRecorderOverTcp(SnapshotRecorder, OverTcp):
    pass


class ApplicationRecorderOverTcp(ApplicationRecorder, OverTcp):
    pass


class TrackingRecorderOverTcp(TrackingRecorder, OverTcp):
    pass


class ProcessRecorderOverTcp(ProcessRecorder, OverTcp):
    pass


class NonInterleavingNotificationIdsOverTcp(NonInterleavingNotificationIds, OverTcp):
    pass


def test_every_published_test_case_of_recorders_runs_here() -> None:
    published = {
        kind
        for name, kind in vars(persistence).items()
        if isinstance(kind, type) and issubclass(kind, TestCase) and ("Recorder" in name or "Notification" in name)
    }
    assert len(published) == 6
    ours = {kind for kind in globals().values() if isinstance(kind, type) and issubclass(kind, InProcess)}
    over_tcp = {kind for kind in ours if issubclass(kind, OverTcp)}
    for runs in (ours - over_tcp, over_tcp):
        assert {kind for kind in published if not any(issubclass(our, kind) for our in runs)} == set()
