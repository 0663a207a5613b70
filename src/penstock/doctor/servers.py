"""A running server: whether it answers, which store it has, what is unfinished."""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.client import connect
from penstock.doctor.disk import milliseconds
from penstock.doctor.findings import Finding, ok, problem
from penstock.doctor.stores import erasures, standing
from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.client import Client

ANSWER_S_MAX: Final = 5.0


def served(url: str) -> Iterator[Finding]:
    """Look at a server through its client."""
    try:
        with connect(url, timeout=ANSWER_S_MAX, retries=False) as client:
            yield from answers(client, url)
    except PenstockError as error:
        yield problem("server", str(error), "start one: penstock serve --data DIR; or name another address with --url")


def answers(client: "Client", url: str) -> Iterator[Finding]:
    """What it answers."""
    began = time.perf_counter()
    stats = client.stats()
    yield ok("server", f"{url} answers in {milliseconds(time.perf_counter() - began)}")
    yield standing(stats)
    yield erasures(sum(info.finished is None for info in client.erasures()))
    if stats.head:
        last = next(iter(client.read_all(stats.head, until=stats.head)), None)
        found = "was erased" if last is None else f"can be read: {last.type} in {last.context}"
        yield ok("records", f"the last event {found}")
