"""Events that a program makes, their ids, and what their bodies and headers become; events of the history."""

import copy
import gc
import pickle
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

import penstock
from penstock.errors import InvalidRequest, NotJson
from penstock.model import TICKS_MAX, Event
from penstock.model.events import RANDOM_IDS, SHOWN_MAX, random_id
from penstock.model.times import datetime_of, stamp_of, ticks_of, ticks_of_datetime

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


def test_a_new_event_is_shown_for_people_whatever_is_in_it() -> None:
    moment = datetime(2026, 11, 15, 6, tzinfo=UTC)
    made = penstock.event("Made", {"a": 1}, id=UUID(int=7), time=moment)
    shown = "type='Made' id=00000000-0000-0000-0000-000000000007 timestamp=2026-11-15T06:00:00Z"
    assert repr(made) == f"<NewEvent {shown} body=b'{{\"a\":1}}'>"
    wrong = made._replace(id="x", stamp="now", headers=1, body=None)  # type: ignore[arg-type]
    assert repr(wrong) == "<NewEvent type='Made' id='x' timestamp='now' headers=1 body=None>"


# --- of the history -------------------------------------------------------------------------------------------

MOMENT = datetime(2026, 11, 15, 6, 0, 0, 123_456, tzinfo=UTC)
TICKS = ticks_of_datetime(MOMENT)
EVENT = Event(
    *(17, "shop", "order-1", 3, UUID(int=7).bytes, stamp_of(TICKS + 7), "OrderPlaced"),
    *('{"subject":"ann"}', b'{"amount":42}', TICKS + 10_000_000, b"c" * 16),
)


def test_an_event_has_its_values_in_the_forms_that_programs_need() -> None:
    assert (EVENT.uuid, EVENT.id_text) == (UUID(int=7), str(UUID(int=7)))
    assert (EVENT.ticks, EVENT.timestamp) == (TICKS + 7, MOMENT)
    assert EVENT.recorded_at == MOMENT + timedelta(seconds=1)
    assert EVENT.json() == {"amount": 42}
    assert EVENT.header_map == {"subject": "ann"}
    assert structs.replace(EVENT, headers=None).header_map == {}


@pytest.mark.parametrize(
    ("headers", "reason"),
    [("plain", "Expecting value"), ("[1]", "not list"), ("7", "not int"), ("[" * 100_000, "recursion|JSON")],
)
def test_headers_that_are_no_json_object_have_no_map(headers: str, reason: str) -> None:
    event = structs.replace(EVENT, headers=headers)
    with pytest.raises(NotJson, match=rf"(?s)event 3 of stream order-1 in context shop .*({reason})"):
        _ = event.header_map


@pytest.mark.parametrize("body", [b"", b"\xff", b"[" * 100_000])
def test_a_body_that_is_no_json_is_refused(body: bytes) -> None:
    with pytest.raises(NotJson, match="body of event 3 of stream order-1"):
        structs.replace(EVENT, body=body).json()


def test_an_event_is_a_value_that_does_not_change() -> None:
    same, other = structs.replace(EVENT), structs.replace(EVENT, body=b"")
    assert same == EVENT
    assert hash(same) == hash(EVENT)
    assert EVENT not in (other, structs.astuple(EVENT))
    assert len({EVENT, same, other}) == 2
    with pytest.raises(AttributeError):
        EVENT.body = b""  # type: ignore[misc]
    with pytest.raises(AttributeError):
        EVENT.note = ""  # type: ignore[attr-defined]


def test_an_event_can_be_pickled_and_copied() -> None:
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(EVENT, protocol)) == EVENT
    assert copy.copy(EVENT) == copy.deepcopy(EVENT) == EVENT


def test_the_garbage_collector_does_not_look_at_events() -> None:
    assert not gc.is_tracked(EVENT)


def test_an_event_is_shown_for_people() -> None:
    assert repr(EVENT) == (
        "<Event 'shop/order-1' sequence=3 position=17 type='OrderPlaced' id=00000000-0000-0000-0000-000000000007 "
        'timestamp=2026-11-15T06:00:00.1234567Z headers=\'{"subject":"ann"}\' body=b\'{"amount":42}\' '
        "recorded_at=2026-11-15T06:00:01.1234560Z>"
    )
    long = structs.replace(EVENT, stream="\x1b[2J", headers=None, body=bytes(1_000_000))
    assert f"body={bytes(SHOWN_MAX)!r}… (1000000 bytes)" in repr(long)
    assert "headers" not in repr(long)
    assert repr(long).isprintable()
    # A damaged record can have any number as a time.
    assert str(TICKS_MAX + 1) in repr(structs.replace(EVENT, stamp=TICKS_MAX + 1))


def test_an_event_to_append_takes_its_id_in_every_form_and_any_bytes() -> None:
    for id in (EVENT.uuid, EVENT.id, EVENT.id_text):
        assert penstock.event("OrderPlaced", id=id).id == EVENT.id
    for body in (b"ab", bytearray(b"ab"), memoryview(b"ab"), "ab"):
        assert penstock.event("OrderPlaced", body).body == b"ab"


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"id": "order-1"}, "event id is 'order-1'; pass a UUID, its text or its 16 bytes"),
        ({"id": b"1"}, "event id is b'1'; pass"),
        ({"id": 1}, "event id is 1; pass"),
        ({"time": datetime(2026, 11, 15)}, "time 2026-11-15T00:00:00 has no time zone: add tzinfo=UTC"),  # noqa: DTZ001
        ({"time": "2026-11-15"}, "time is '2026-11-15'; pass a datetime, such as datetime.now(UTC)"),
        ({"body": "\ud800"}, "body is not valid Unicode"),
    ],
)
def test_an_event_that_cannot_be_is_refused_with_a_reason(wrong: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as told:
        penstock.event("OrderPlaced", **wrong)
    assert str(told.value).startswith(sentence)
