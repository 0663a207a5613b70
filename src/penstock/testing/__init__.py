"""A server for a test, in milliseconds: `with penstock.testing.server() as server`, or a pytest fixture.

It is the server that `penstock serve` runs, with its gates on free ports and a store on disk, but in a thread of the
test's process. The fixtures `penstock_server` and `penstock_client` are in `penstock.testing.plugin`. Imports are lazy:
pytest loads the plugin in every run, also in those that do not use Penstock.
"""

from typing import TYPE_CHECKING

from penstock.lazy import lazy_names

if TYPE_CHECKING:
    from penstock.testing.harness import Server, server
else:
    __getattr__, __dir__ = lazy_names(__name__, {"penstock.testing.harness": ("Server", "server")})

__all__ = ["Server", "server"]
