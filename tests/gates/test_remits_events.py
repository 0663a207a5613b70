"""One history: the events of any stream as an iterator's messages, and a log's messages as events for everyone else."""

from collections.abc import Iterator

import cbor2
import pytest

from penstock.store.record import HEADER, Record
from tests.gates.remits_client import Failure, Remits, fresh
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, UNIX_EPOCH_TICKS, NewEvent, Refused, an_event, ticks_of, to_binary
from tests.gates.serving import Served

LOGS = "remits"
"""The context whose streams are the logs."""

every_gate = pytest.mark.gates("res", "mq")
both = pytest.mark.parametrize("indexed", [False, True], ids=["plain", "indexed"])


@pytest.fixture
def remits(server: Served) -> Iterator[Remits]:
    with Remits(server.remits) as connected:
        yield connected


@pytest.fixture
def log(remits: Remits) -> str:
    """A log of its own for each test."""
    return remits.log_add(fresh())


# ---------------------------------------------------------------- events as messages

BODIES = {
    b'{"amount": 7, "list": [1, null, 2.5]}': {"amount": 7, "list": [1, None, 2.5]},
    b' [1, {"a": "\\u00e9"}] ': [1, {"a": "é"}],
    b"{}": {},
    b"[]": [],
    b'"a text in JSON"': '"a text in JSON"',
    b"42": "42",
    b"null": "null",
    b"plain words": "plain words",
    "é日本".encode(): "é日本",
    b"{broken": "{broken",
    b"": "",
    b"\xff\xfe\x00": b"\xff\xfe\x00",
    b"{\xff}": b"{\xff}",
}
"""What a body is for a function."""


@both
@every_gate
def test_events_of_any_stream_are_messages(remits: Remits, client: Extended, context: str, indexed: bool) -> None:
    moment = UNIX_EPOCH_TICKS + 17_000_000_001_234_567
    events = [an_event(body, at=to_binary(moment), type="Placed", headers="a=1") for body in BODIES]
    client.append(context, "order/1", 1, *events, an_event(b"{}", at=to_binary(moment)))
    iterator = remits.iterator_add(f"{context}/order/1", "map", "return msg", indexed=indexed)
    *found, last = remits.all(iterator)
    assert [message.pop("body") for message in found] == list(BODIES.values())
    assert [message.pop("id") for message in found] == [str(event.id) for event in events]
    assert [message.pop("sequence") for message in found] == list(range(1, len(BODIES) + 1))
    assert [message.pop("timestamp") for message in found] == [pytest.approx(1_700_000_000.1234567)] * len(BODIES)
    assert found == [{"stream": "order/1", "ticks": moment, "type": "Placed", "headers": "a=1"}] * len(BODIES)
    assert last["headers"] in (None, "")
    client.append(context, "order/1", -1, an_event(b'{"late": true}'))
    assert remits.last(iterator)["body"] == {"late": True}
    assert remits.next(iterator, len(BODIES) + 2) == []


@both
def test_a_stream_that_is_not_there_yet_can_be_followed(
    remits: Remits, client: Extended, context: str, indexed: bool
) -> None:
    iterator = remits.iterator_add(f"{context}/later", "filter", "return msg.body.keep", indexed=indexed)
    assert remits.all(iterator) == []
    client.append(context, "other", 1, an_event(b'{"keep": true}'))
    client.append(context, "later", 1, an_event(b'{"keep": false}'), an_event(b'{"keep": true}'))
    assert [message["sequence"] for message in remits.all(iterator)] == [2]


def test_chains_stand_on_streams_too(remits: Remits, client: Extended, context: str) -> None:
    client.append(context, "s", 1, *(an_event(b'{"amount": %d}' % n, type="Paid") for n in range(5)))
    amounts = remits.iterator_add(f"{context}/s", "map", "return msg.body.amount", indexed=True)
    total = remits.iterator_add(amounts, "reduce", "return (acc or 0) + msg")
    assert remits.all(total) == [0, 1, 3, 6, 10]
    client.append(context, "s", -1, an_event(b'{"amount": 100}', type="Paid"))
    assert remits.last(total) == 110
    assert remits.iterator_list(f"{context}/s") == [amounts]
    remits.iterator_delete(f"{context}/s", amounts)
    assert total not in remits.iterator_list()


def test_a_body_that_is_no_message_fails_where_it_stands(remits: Remits, client: Extended, context: str) -> None:
    client.append(context, "s", 1, an_event(b'{"n": 1}'), an_event(b"words"), an_event(b'{"n": 3}'))
    iterator = remits.iterator_add(f"{context}/s", "map", "return msg.body.n + 0")
    assert remits.next(iterator) == [1]
    with pytest.raises(Failure, match=r"error 4 .*at message 1"):
        remits.next(iterator, 1)
    assert remits.next(iterator, 2) == [3]


# ---------------------------------------------------------------- messages as events


@every_gate
def test_messages_are_events_of_type_cbor(remits: Remits, client: Extended, log: str) -> None:
    messages = [cbor2.dumps(value) for value in ({"a": 1}, "text", b"\xff")]
    remits.add_encoded(log, *messages[:2])
    remits.add_encoded(log, messages[2])
    events = client.read(LOGS, log)
    assert [event.body for event in events] == messages
    assert [event.sequence for event in events] == [1, 2, 3]
    assert {(event.context, event.stream, event.type, event.headers) for event in events} == {(LOGS, log, "cbor", "")}
    assert len({event.id for event in events}) == 3
    assert all(ticks_of(event.time) > UNIX_EPOCH_TICKS for event in events)
    assert client.list_streams(LOGS, log)[0] == [(log, 3)]


def test_messages_come_with_everything_else(remits: Remits, client: Extended, context: str, log: str) -> None:
    client.append(context, "s", 1, an_event())
    remits.add(log, "mine")
    page = client.read_all(1, LOGS, log)
    events = [event for data in page.records for event in Record(data, HEADER.unpack_from(data)[5]).events()]
    assert [(event.stream, event.type, event.body) for event in events] == [(log, "cbor", cbor2.dumps("mine"))]


@every_gate
def test_subscriptions_get_messages(remits: Remits, client: Extended, log: str) -> None:
    (number,) = client.register(fresh("ann"), (LOGS, log, LONG_AGO))
    remits.add(log, 1, 2)
    batch = client.fetch(number)
    assert [cbor2.loads(event.body) for event in batch] == [1, 2]
    client.progress((number, batch[-1].time))
    waiting = client.send_fetch_waiting(30_000, (number, 10))
    remits.add(log, 3)
    assert [cbor2.loads(event.body) for event in client.batch(client.answer_to(waiting), number)] == [3]


@every_gate
def test_queues_give_messages_out(remits: Remits, client: Extended, log: str) -> None:
    remits.add(log, "a", "b", "c")
    queue = fresh("queue")
    first = client.subscribe(LOGS, queue, "ann", prefix=log, count=2)
    assert list(map(cbor2.loads, first.bodies)) == ["a", "b"]
    assert list(map(cbor2.loads, client.acknowledge(queue, "ann", first.markers).bodies)) == ["c"]


def test_a_deleted_log_is_gone_for_everyone(remits: Remits, client: Extended, log: str) -> None:
    remits.add(log, "secret")
    (number,) = client.register(fresh("ann"), (LOGS, log, LONG_AGO))
    remits.log_delete(log)
    assert client.read(LOGS, log) == []
    assert client.fetch(number) == []
    with pytest.raises(Refused):
        client.get(LOGS, log, 1)
    remits.log_add(log)
    remits.add(log, "new")
    assert [cbor2.loads(event.body) for event in client.read(LOGS, log)] == ["new"]
    assert [cbor2.loads(event.body) for event in client.fetch(number)] == ["new"]


# ---------------------------------------------------------------- appends into a log


def cbor_event(body: bytes = b"\x01") -> NewEvent:
    return an_event(body, type="cbor")


@every_gate
def test_an_append_of_messages_goes_into_the_log(remits: Remits, client: Extended, log: str) -> None:
    iterator = remits.iterator_add(log, "map", "return msg", indexed=True)
    remits.add(log, "first")
    client.append(LOGS, log, 2, cbor_event(cbor2.dumps("second")), cbor_event(cbor2.dumps("third")))
    client.transact((LOGS, log, -1, [cbor_event(cbor2.dumps("fourth"))]))
    remits.add(log, "fifth")
    assert remits.all(iterator) == ["first", "second", "third", "fourth", "fifth"]
    assert remits.log_show(log)["message_count"] == 5


@every_gate
@pytest.mark.parametrize(
    "wrong",
    [an_event(b"\x01", type="Placed"), an_event(b"\x01", type="CBOR"), cbor_event(b"\x01\x01"), cbor_event(b"")],
    ids=["type", "capitals", "two items", "nothing"],
)
def test_nothing_but_messages_is_appended_to_a_log(remits: Remits, client: Extended, log: str, wrong: NewEvent) -> None:
    for events in ([wrong], [cbor_event(), wrong]):
        for append in (client.append, lambda *commit: client.transact((*commit[:3], list(commit[3:])))):
            with pytest.raises(Refused) as caught:
                append(LOGS, log, -1, *events)
            assert caught.value.code == 7
    assert remits.log_show(log)["message_count"] == 0


@every_gate
def test_nothing_is_appended_to_a_log_that_is_not_there(remits: Remits, client: Extended, log: str) -> None:
    missing = fresh()
    remits.log_delete(log)
    for name in (missing, log):
        with pytest.raises(Refused) as caught:
            client.append(LOGS, name, -1, cbor_event())
        assert caught.value.code == 7
    assert not {missing, log} & set(remits.log_list())
