"""Many clients, brokers between them and the server, and consumers that die: what Res01 is for."""

import contextlib
from collections.abc import Iterator

import pytest
import zmq

from tests.gates.broker import broker
from tests.gates.res_client import PATIENCE_S, Client, everything
from tests.gates.res_extensions import Extended
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import Served

CLIENTS = 200
RACERS = 40


@contextlib.contextmanager
def clients(server: Served, count: int) -> Iterator[list[Extended]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Extended(server.res)) for _ in range(count)]


def gather(group: list[Extended], each: int) -> dict[int, list[bytes]]:
    """The commands that answer all requests of a group of clients, by client, in whatever order they come."""
    poller = zmq.Poller()
    for client in group:
        poller.register(client.socket, zmq.POLLIN)
    by_socket = {client.socket: number for number, client in enumerate(group)}
    found: dict[int, list[bytes]] = {number: [] for number in range(len(group))}
    for _ in range(len(group) * each):
        ready = poller.poll(int(PATIENCE_S * 1000))
        assert ready, "answers are missing"
        number = by_socket[ready[0][0]]
        found[number].append(group[number].receive().command)
        if len(found[number]) == each:
            poller.unregister(group[number].socket)
    return found


# ---------------------------------------------------------------- brokers


@pytest.mark.parametrize("hops", [1, 2])
def test_everything_works_through_brokers(server: Served, context: str, hops: int) -> None:
    with contextlib.ExitStack() as stack:
        address = server.res
        for _ in range(hops):
            address = stack.enter_context(broker(address))
        client, other = (stack.enter_context(Extended(address)) for _ in range(2))
        for number in range(1, 21):
            (client if number % 2 else other).append(context, "s", number, an_event(str(number).encode()))
        assert client.ask("??").error().code == 3
        (subscription,) = client.register("ann", (context, "*", LONG_AGO))
        request = client.send_fetch((subscription, 5), (999_999, 5))
        assert len(client.batch(client.answer_to(request), subscription)) == 5
        assert client.answer_to(request).error().code == 7
        held = other.subscribe(context, f"work-{context}", "ann", count=3)
        assert len(other.acknowledge(f"work-{context}", "ann", held.markers).events) == 10
        waiting = client.send_fetch_waiting(int(PATIENCE_S * 1000), (client.register("bob", (context, "t", 0))[0], 1))
        other.append(context, "t", 1, an_event())
        assert client.answer_to(waiting).command == b"EF"


def test_a_broker_may_serve_many_clients(server: Served, context: str) -> None:
    with broker(server.res) as address, contextlib.ExitStack() as stack:
        group = [stack.enter_context(Extended(address)) for _ in range(20)]
        for number, client in enumerate(group):
            for version in range(1, 6):
                client.send("AC", *client.commit_fields(context, f"s-{number}", version, [an_event()]))
        assert set(map(tuple, gather(group, 5).values())) == {(b"CR",) * 5}
        assert client_reads(group[0], context, "s-19") == [1, 2, 3, 4, 5]


def client_reads(client: Client, context: str, stream: str) -> list[int]:
    return [event.sequence for event in everything(client, context, stream)]


# ---------------------------------------------------------------- many at once


def test_200_clients_at_once_are_all_served(server: Served, context: str) -> None:
    with clients(server, CLIENTS) as group:
        for version in range(1, 4):
            for number, client in enumerate(group):
                client.send("AC", *client.commit_fields(context, f"s-{number:03}", version, [an_event()]))
        found = gather(group, 3)
        assert all(commands == [b"CR"] * 3 for commands in found.values())
        for number, client in enumerate(group):
            client.send("QS", context.encode(), f"s-{number:03}".encode(), b"1", b"")
        assert all(commands == [b"QR"] for commands in gather(group, 1).values())
        rows, _ = group[0].list_streams(context, limit=CLIENTS + 1)
        assert rows == [(f"s-{number:03}", 3) for number in range(CLIENTS)]


def test_of_conflicting_appends_exactly_one_wins(server: Served, context: str) -> None:
    with clients(server, RACERS) as group:
        winners = []
        for version in range(1, 11):
            for number, client in enumerate(group):
                client.send("AC", *client.commit_fields(context, "s", version, [an_event(str(number).encode())]))
            found = gather(group, 1)
            (winner,) = [number for number, commands in found.items() if commands == [b"CR"]]
            assert list(found.values()).count([b"ER"]) == RACERS - 1
            winners.append(str(winner).encode())
        assert [event.body for event in everything(group[0], context, "s")] == winners


def test_racers_that_try_again_all_get_in_and_none_is_lost(server: Served, context: str) -> None:
    with clients(server, 10) as group:
        left = {number: an_event(str(number).encode()) for number in range(len(group))}
        version = 0
        while left:
            version += 1
            racing = [group[number] for number in left]
            for number, event in left.items():
                group[number].send("AC", *group[number].commit_fields(context, "s", version, [event]))
            commands = gather(racing, 1)
            for place, number in enumerate(list(left)):
                if commands[place] == [b"CR"]:
                    del left[number]
        assert version == len(group)
        found = {event.body for event in everything(group[0], context, "s")}
        assert found == {str(n).encode() for n in range(len(group))}


def test_a_slow_reader_does_not_hold_up_the_others(server: Served, context: str) -> None:
    with Extended(server.res) as slow, Extended(server.res) as quick:
        quick.append(context, "s", 1, *(an_event(bytes(100_000)) for _ in range(20)))
        sent = [slow.send("QS", context.encode(), b"s", b"1", b"") for _ in range(50)]
        for number in range(50):
            quick.append(context, "t", number + 1, an_event())
        assert {slow.receive().request_id for _ in sent} == set(sent)


# ---------------------------------------------------------------- competing consumers


def test_what_a_dead_consumer_held_comes_to_the_other(server: Served, context: str) -> None:
    queue = f"work-{context}"
    bodies = [str(number).encode() for number in range(30)]
    with Extended(server.res) as survivor:
        survivor.append(context, "s", 1, *(an_event(body) for body in bodies))
        with Extended(server.res) as dying:
            first = dying.subscribe(context, queue, "dying", count=4, ttl_ms=400)
            held = dying.acknowledge(queue, "dying", first.markers, count=4, ttl_ms=400)
        handled = first.bodies
        queued = survivor.subscribe_waiting(20_000, context, queue, "survivor", count=4)
        order = []
        while queued.events:
            order.append(queued.markers)
            handled = [*handled, *queued.bodies]
            wait_ms = 0 if len(handled) == len(bodies) else 20_000
            waiting = survivor.send_acknowledge_waiting(wait_ms, context, queue, "survivor", queued.markers, count=4)
            queued = survivor.queued(survivor.answer_to(waiting))
        assert sorted(handled, key=int) == bodies
        assert order.count(held.markers) == 1
        row = survivor.queue_row(context, queue)
        assert (row.allocations, row.allocated, row.deliveries_max) == (0, 0, 0)


def test_many_consumers_share_a_queue_without_doing_anything_twice(server: Served, context: str) -> None:
    queue = f"work-{context}"
    with clients(server, 8) as group:
        group[0].append(context, "s", 1, *(an_event(str(n).encode()) for n in range(400)))
        group[0].subscribe(context, queue, "w-0", ttl_ms=-1)
        handled: list[bytes] = []
        markers = dict.fromkeys(group, (0, 0))
        while markers:
            for number, client in enumerate(group):
                if client in markers:
                    fields = client.acknowledge_fields(queue, f"w-{number}", markers[client], 7)
                    client.send("AQ", *fields, request_id=b"turn")
            for client in list(markers):
                queued = client.queued(client.answer_to(b"turn"))
                handled += queued.bodies
                markers[client] = queued.markers
                if not queued.events:
                    del markers[client]
        assert sorted(handled, key=int) == [str(number).encode() for number in range(400)]
