"""Every request has a handler, and every call of the client exists in both forms."""

from pathlib import Path

from penstock import model
from penstock.client.aio import AsyncClient
from penstock.client.sync import Client
from penstock.engine import Engine
from penstock.model import Request
from penstock.settings import Settings
from penstock.store import store_url

HOT = {model.Append, model.AddMessages}
"""They reach the writer without the table."""
OF_GATES = {model.Authenticate}
"""It changes who a sender is, which its gate knows."""
ASYNCHRONOUS_ONLY = {"open"}
"""`connect` does it for the blocking client."""


async def test_every_request_has_a_handler(tmp_path: Path) -> None:
    requests = {one for one in vars(model).values() if isinstance(one, type) and issubclass(one, Request)} - {Request}
    async with Engine(store_url(tmp_path), Settings()) as engine:
        handled = set(engine._table())
    assert requests - handled == HOT | OF_GATES, "add a handler to Engine._table"


def test_every_call_of_the_client_exists_in_both_forms() -> None:
    asynchronous = {name for name in dir(AsyncClient) if not name.startswith("_")} - ASYNCHRONOUS_ONLY
    blocking = {name for name in dir(Client) if not name.startswith("_")}
    assert asynchronous - blocking == set(), "add it to penstock.client.sync.Client"
    assert blocking - asynchronous == set(), "add it to penstock.client.aio.AsyncClient"
