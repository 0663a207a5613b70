"""A database that must not be written, or is gone: what the server says of it, and that it comes back by itself."""

import pytest

from penstock.engine import Engine
from penstock.errors import NotDurable, StorageFailure
from penstock.model import Appended
from penstock.settings import Settings
from tests.faults.support import PATIENCE_S, append, append_or_error, read_everything, run, until
from tests.postgres import postgres


def test_health_names_the_reason_and_no_password() -> None:
    with postgres() as server:
        url = server.url("reasons", password="top-secret", connect_timeout=str(PATIENCE_S))

        async def scenario() -> None:
            async with Engine(url, Settings(workers=1, reader_wait_ms_max=60_000)) as engine:
                await append(engine)
                assert engine.trouble is None
                server.set("fsync", "off")
                while not isinstance(error := await append_or_error(engine), NotDurable):
                    assert isinstance(error, Appended), "a reload reaches a session a moment after it was asked for"
                assert str(engine.trouble).startswith(
                    "the store cannot be written to at present: the database has fsync = off, and it must be on"
                )
                assert engine.unready == [engine.trouble]
                server.set("fsync", "on")
                await until(lambda: engine.trouble is None)

                server.kill()
                assert isinstance(await append_or_error(engine), StorageFailure)
                await until(lambda: "server" in str(engine.trouble))
                assert str(engine.trouble).startswith("the store cannot be written to at present: ")
                await until(lambda: len(engine.unready) == 2)
                assert "top-secret" not in f"{engine.trouble} {engine.unready}"
                server.start()
                await until(lambda: engine.trouble is None)
                last = await append(engine)
                assert [event.position for event in await read_everything(engine)] == [*range(1, last.position + 1)]
            assert engine.trouble == "the server is stopping"

        run(scenario())


@pytest.mark.parametrize("name", ["fsync", "synchronous_commit"])
def test_a_server_that_connects_anew_where_commits_may_be_lost_writes_nothing(name: str) -> None:
    with postgres() as server:

        async def scenario() -> None:
            async with Engine(server.url("anew"), Settings(workers=1, reader_wait_ms_max=60_000)) as engine:
                await append(engine)
                server.kill()
                server.start(f"{name}=off")
                while not isinstance(error := await append_or_error(engine), NotDurable):
                    assert isinstance(error, StorageFailure)
                assert len(await read_everything(engine)) == 1
                server.kill()
                server.start()
                await until(lambda: engine.trouble is None)
                assert (await append(engine)).position == 2

        run(scenario())
