"""Commands in these tests have no settings, and start no worker processes."""

from tests.cli.conftest import no_settings, threads

__all__ = ["no_settings", "threads"]
