"""The shared store against the reference, as in `test_stateful`; two store objects take turns at writing."""

from pathlib import Path
from typing import cast

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from penstock.store import Store
from penstock.store.postgres import PostgresStore
from tests.postgres import Schemas
from tests.store.test_postgres import Alternating
from tests.store.test_stateful import StoreMachine


class PostgresMachine(StoreMachine):
    """One server or two, by turns; each with caches of its own."""

    schemas: Schemas

    def open(self, cache: int) -> Store:
        url = self.schemas.url(Path(self.folder.name))
        first = PostgresStore(url, clock=self.clock, stream_cache_max=cache)
        if cache > 1:
            return first
        return cast("Store", Alternating(first, PostgresStore(url, clock=self.clock)))

    def teardown(self) -> None:
        try:
            super().teardown()
        finally:
            self.schemas.give_back()


# A thorough run, or a busy machine, may take longer than other tests are allowed to.
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("examples", "steps"), [(12, 25), pytest.param(20, 30, marks=pytest.mark.long)])
def test_the_shared_store_does_what_the_reference_does(schemas: Schemas, examples: int, steps: int) -> None:
    PostgresMachine.schemas = schemas
    run_state_machine_as_test(PostgresMachine, settings=settings(max_examples=examples, stateful_step_count=steps))
