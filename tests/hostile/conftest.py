"""What commands find in tests of this folder: no settings, and no worker processes to wait for."""

from tests.cli.conftest import no_settings, threads

__all__ = ["no_settings", "threads"]
