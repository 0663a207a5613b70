"""Stores of a test's own, in this process and behind a server, for test cases that are written with unittest."""

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import ClassVar
from unittest import TestCase
from uuid import uuid4

from penstock.integrations.eventsourcing import PenstockDatastore, datastore
from penstock.testing import server


@contextmanager
def served() -> Iterator[str]:
    """A server with an empty store; its URL."""
    with server() as own:
        yield own.url


def shared_urls() -> list[str]:
    """The local stores that this process has open."""
    return list(datastore._shared)


class InProcess(TestCase):
    """A new store for each test, in this process."""

    def setUp(self) -> None:
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)
        self.context = f"Shop-{uuid4()}"
        self.tracking_context = f"{self.context}.tracking"
        self.url = self.open_url()
        super().setUp()

    def open_url(self) -> str:
        return f"sqlite:///{self.stack.enter_context(tempfile.TemporaryDirectory())}/data"

    def datastore(self) -> PenstockDatastore:
        """A datastore that is closed when the test is over."""
        datastore = PenstockDatastore(self.url)
        self.stack.callback(datastore.close)
        return datastore


class OverTcp(InProcess):
    """A server, and clients that speak MqFrames with it. Tests that count positions from 1 start another."""

    shared_url: ClassVar[str]
    counting: ClassVar = {"test_insert_select", "test_insert_subscribe"}

    def open_url(self) -> str:
        if self._testMethodName in self.counting:
            return self.stack.enter_context(served())
        return self.shared_url
