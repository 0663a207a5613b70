"""What the engine promises of queues, on PostgreSQL: the same tests."""

from tests.engine.test_queues import *  # noqa: F403
