"""Events that a program makes: their ids, and what their bodies and headers become."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import penstock
from penstock.errors import NotJson
from penstock.model.events import RANDOM_IDS, random_id
from penstock.model.times import datetime_of, ticks_of

FORK = """
import os
from penstock.model.events import random_id
random_id()
if child := os.fork():
    os.waitpid(child, 0)
print(*(random_id().hex() for _ in range(300)), flush=True)
"""


def test_ids_are_random_uuids_and_none_comes_twice() -> None:
    ids = [random_id() for _ in range(3 * RANDOM_IDS)]
    assert len(set(ids)) == len(ids)
    assert {(UUID(bytes=one).version, UUID(bytes=one).variant) for one in ids} == {(4, "specified in RFC 4122")}


def test_a_forked_process_has_ids_of_its_own() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    child, parent = (set(line.split()) for line in done.stdout.splitlines())
    assert len(child) == len(parent) == 300
    assert not child & parent


@pytest.mark.parametrize(
    ("body", "headers", "stored"),
    [
        (b"\xff", None, (b"\xff", None)),
        ("größe", "h", ("größe".encode(), "h")),
        ({"a": [1, None]}, {"b": 2}, (b'{"a":[1,null]}', '{"b":2}')),
        (7, "", (b"7", None)),
    ],
)
def test_a_body_is_bytes_text_or_json(body: object, headers: object, stored: tuple[bytes, str | None]) -> None:
    made = penstock.event("Made", body, headers)  # type: ignore[arg-type]
    assert (made.type, made.body, made.headers) == ("Made", *stored)


@pytest.mark.parametrize(("body", "headers"), [({1, 2}, None), (b"", {"a": float("nan")})])
def test_what_json_has_no_value_for_is_refused(body: object, headers: dict[str, float] | None) -> None:
    with pytest.raises(NotJson):
        penstock.event("Made", body, headers)


def test_id_and_time_are_those_given_or_new_ones() -> None:
    moment = datetime(2026, 11, 15, 6, tzinfo=UTC)
    given = penstock.event("Made", id=UUID(int=7), time=moment)
    assert (given.id, datetime_of(ticks_of(given.stamp))) == (UUID(int=7).bytes, moment)
    made = penstock.event("Made")
    assert timedelta(0) <= datetime.now(UTC) - datetime_of(ticks_of(made.stamp)) < timedelta(minutes=1)
