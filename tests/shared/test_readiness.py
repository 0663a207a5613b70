"""Whether a server of a shared store is ready while its database is away, also when nobody writes."""

from penstock.engine import Engine
from penstock.settings import Settings
from penstock.store.postgres.connection import Target
from tests.engine.logs import until
from tests.postgres import Postgres, Schemas
from tests.proxy import Proxy


async def test_a_server_that_nobody_uses_is_not_ready_while_its_database_is_away(
    postgres_server: Postgres, schemas: Schemas, settings: Settings
) -> None:
    schema = Target.of(schemas.url()).schema
    with Proxy(postgres_server.port) as proxy:
        async with Engine(postgres_server.url(schema, port=proxy.port), settings) as engine:
            assert engine.unready == []
            proxy.is_refusing = True
            proxy.cut()
            await until(lambda: engine.unready != [])
            assert engine.unready[0].startswith("notices of other servers do not arrive: ")
            # Nobody has tried to write.
            assert engine.trouble is None
            proxy.is_refusing = False
            await until(lambda: engine.unready == [])
