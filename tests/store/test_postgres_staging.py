"""What staging leaves in the tables of a store on PostgreSQL."""

from contextlib import closing

from penstock.model import ProducerMark, Winner
from penstock.store.contract import HideStream, Install, Publish, Stage, Unstage
from penstock.store.postgres import PostgresStore
from penstock.store.postgres.connection import Target
from penstock.store.stages import make_unit
from tests.postgres import Postgres
from tests.store.contract.builds import made, staged
from tests.store.contract.logs import erase_all
from tests.store.kit import append, do, do_one, everything, findings, some
from tests.store.test_postgres import holders


def test_what_was_staged_is_in_no_row_after_an_erasure_and_after_a_full_vacuum_in_no_table(
    server: Postgres, url: str
) -> None:
    schema = Target.of(url).schema
    with closing(PostgresStore(url)) as store:
        for job in ("published", "dropped"):
            units = tuple(make_unit("shop", "s", some(2, body=b"most-secret" * size)) for size in (1, 300, 3000))
            do_one(store, Stage(job, 0, "a", 0, units, 1 << 20, 1000))
        assert holders(server, b"most-secret") != []
        do(store, Publish("published", (Winner(0, "a", 3),)), mark=ProducerMark("published", 1))
        do_one(store, Unstage("dropped"))
        do_one(store, HideStream("shop", "s"))
        erase_all(store)
        asking = "SELECT n_dead_tup, vacuum_count > 0 FROM pg_stat_user_tables"
        assert server.execute(f"{asking} WHERE schemaname = '{schema}' AND relname = 'staged'") == [(0, True)]
        for table in ("records", "staged"):
            server.execute(f"VACUUM FULL {schema}.{table}")
        assert holders(server, b"most-secret") == []
        assert everything(store) == []
        assert findings(store) == []


def test_output_made_of_what_is_erased_is_in_no_row_and_after_a_full_vacuum_in_no_table(
    server: Postgres, url: str
) -> None:
    schema = Target.of(url).schema
    with closing(PostgresStore(url)) as store:
        append(store, "s", some(2))
        installed, left = made(store, name="installed").id, made(store, name="left").id
        secrets = [[b"much-more-secret" * size] for size in (1, 300, 30_000)]
        winner = staged(store, installed, 0, *secrets)
        staged(store, left, 0, *secrets)
        assert holders(server, b"much-more-secret") != []
        do_one(store, Install(installed, 0, 0, 3, (winner,)))
        do_one(store, HideStream("shop", "s"))
        erase_all(store)
        for table in ("outputs", "staged"):
            server.execute(f"VACUUM FULL {schema}.{table}")
        assert holders(server, b"much-more-secret") == []
        assert findings(store) == []
