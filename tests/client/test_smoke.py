"""The table of what is asked with both clients over every URL has every request that a client can ask."""

import importlib
import pkgutil
import re
from pathlib import Path

from penstock import client
from penstock.model import AddMessages, Request
from penstock.wire.res01.commands import Hello
from tests.client.conftest import SMOKE


def test_every_request_of_a_client_is_asked_over_every_url() -> None:
    names = [f"{client.__name__}.{module.name}" for module in pkgutil.iter_modules(client.__path__)]
    kinds = {kind for name in names for kind in vars(importlib.import_module(name)).values() if isinstance(kind, type)}
    # A client appends messages as the events that they are, and says hello by itself.
    asked = {kind for kind in kinds if issubclass(kind, Request)} - {Request, AddMessages, Hello}
    assert {kind.__name__ for kind in asked} <= set(SMOKE)


def test_every_test_of_the_table_exists() -> None:
    sources = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py")]
    assert set(SMOKE.values()) <= set(re.findall(r"(?m)^def (test_\w+)", "".join(sources)))
