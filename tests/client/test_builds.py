"""Builds through the client, over every URL: an index that was computed here is the server's own from then on."""

import cbor2
import pytest

from penstock import Client
from penstock.errors import InvalidRequest, IteratorNotFound, NotCbor
from penstock.model import BuildStart, Winner
from penstock.store.outputs import chunks_of, pack_items
from tests.client.support import some

SUM = "return (acc or 0) + msg"


def sums(start: BuildStart, messages: list[bytes | None]) -> list[bytes]:
    """What the reduce gives for messages, from where it is."""
    total, items = cbor2.loads(start.state) if start.state else 0, []
    for message in messages:
        total += cbor2.loads(message or b"\0")
        items.append(cbor2.dumps(total))
    return items


def test_a_build_is_begun_read_staged_and_installed(client: Client, context: str) -> None:
    source, name = f"log of {context}", f"sum of {context}"
    log = client.log(source)
    log.create()
    log.append(range(1000))
    iterator, build = client.iterator(name), client.build(name)
    iterator.create(source, "reduce", SUM, indexed=True)
    start = build.begin()
    assert (start.iterator, start.log, start.function, start.head) == (name, source, SUM, 1000)
    messages: list[bytes | None] = []
    while page := build.messages(start.id, start.source + len(messages), 1000):
        messages += page
    assert len(messages) == 1000 - start.source
    items = sums(start, messages)
    chunks = list(chunks_of(items))
    for part, chunk in enumerate(chunks):
        build.stage(start.id, part, "lost", 0, [pack_items([b"\x01"])])
        for _ in range(2):
            build.stage(start.id, part, "won", 0, [chunk])
    winners = [Winner(part, "won", 1) for part in range(len(chunks))]
    state = items[-1] if items else start.state
    installed = build.install(start, 1000, winners, state)
    assert (installed.items, installed.messages) == (1000, 1000)
    assert build.install(start, 1000, winners, state).added == 0
    log.append(range(1000, 1010))
    assert iterator.next(999, 20) == [sum(range(end)) for end in range(1000, 1011)]
    assert build.begin().id == start.id
    iterator.delete(source)
    with pytest.raises(IteratorNotFound):
        build.messages(start.id, 0, 1)


def test_a_build_says_where_the_event_of_a_message_is(client: Client, context: str) -> None:
    appended = client.append(context, "s", some(3))
    name = f"it of {context}"
    client.iterator(name).create(f"{context}/s", "map", "return msg", indexed=True)
    build = client.build(name)
    id = build.begin().id
    assert [build.position(id, ordinal) for ordinal in range(3)] == [appended.position + n for n in range(3)]


def test_errors_come_as_what_they_are(client: Client, context: str) -> None:
    name = f"it of {context}"
    with pytest.raises(IteratorNotFound):
        client.build(name).begin()
    client.iterator(f"plain {name}").create(f"{context}/s", "map", "return msg")
    with pytest.raises(InvalidRequest, match="make it with --indexed"):
        client.build(f"plain {name}").begin()
    client.iterator(name).create(f"{context}/s", "map", "return msg", indexed=True)
    build = client.build(name)
    start = build.begin()
    with pytest.raises(NotCbor):
        build.stage(start.id, 0, "a", 0, [pack_items([b"\x61\xff"])])
    with pytest.raises(IteratorNotFound):
        build.stage(start.id + 1000, 0, "a", 0, [])
    with pytest.raises(InvalidRequest, match="messages"):
        build.install(start, 1, [])
    build.stage(start.id, 0, "a", 0, [pack_items([b"\x01"])])
    build.drop(start.id)
    # The number of the next chunk says that nothing is staged any more.
    build.stage(start.id, 0, "a", 0, [pack_items([b"\x01"])])
    with pytest.raises(InvalidRequest, match="number"):
        build.stage(start.id, 0, "a", 2, [pack_items([b"\x01"])])
