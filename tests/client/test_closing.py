"""What close leaves behind: nothing. And what those get who use a client after it, or wait while it is closed."""

import contextlib
import gc
import os
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

import penstock
from penstock import Client
from penstock.client import Access, Queue, Subscription, Transaction
from penstock.errors import CannotConnect, ClientClosed, ConnectionLost, DeadlinePassed
from penstock.model import RetryPolicy
from tests.client.conftest import MAKERS, NETWORKS, WAYS, Connect, Way, end, url_of
from tests.client.fakes import FakeMq
from tests.client.support import fill, one, some
from tests.gates.retries import free_port
from tests.gates.serving import Served, until
from tests.test_server import children

# ---------------------------------------------------------------- use after close


def uses(client: Client) -> dict[str, Callable[[], object]]:
    """Every public method of a client, and of what it makes, made before it was closed."""
    queue, subscription = client.queue("c", "q"), client.subscription("ann", context="c")
    log, iterator, transaction = client.log("l"), client.iterator("i"), client.transaction()
    transaction.append("c", "s", one())
    append = ("c", "s", one())
    now = datetime.now(UTC)
    batch = client.queue("closing", "q").take()
    access = client.access
    return {
        "append": lambda: client.append(*append),
        "append_many": lambda: client.append_many([append]),
        "append_many nothing": lambda: client.append_many([]),
        "stream_pages": lambda: list(client.stream_pages("c", "s")),
        "read_stream": lambda: list(client.read_stream("c", "s")),
        "read_event": lambda: client.read_event("c", "s", 1),
        "read_page": client.read_page,
        "event_pages": lambda: list(client.event_pages()),
        "read_all": lambda: list(client.read_all()),
        "arrow_batches": lambda: list(client.arrow_batches()),
        "followed_pages": lambda: list(client.followed_pages()),
        "follow": lambda: list(client.follow()),
        "position_of": lambda: client.position_of(now, context="c"),
        "transaction": client.transaction,
        "subscription": lambda: client.subscription("ann", context="c"),
        "queue": lambda: client.queue("c", "q"),
        "log": lambda: client.log("l"),
        "iterator": lambda: client.iterator("i"),
        "staging": lambda: client.staging("j"),
        "build": lambda: client.build("i"),
        "whoami": client.whoami,
        "logs": client.logs,
        "iterators": client.iterators,
        "stats": client.stats,
        "contexts": client.contexts,
        "streams": lambda: list(client.streams("c")),
        "stream_infos": lambda: list(client.stream_infos("c")),
        "queues": client.queues,
        "subscriptions": client.subscriptions,
        "erase_stream": lambda: client.erase_stream("c", "s"),
        "erase_subject": lambda: client.erase_subject("ann"),
        "erase_subject_steps": lambda: list(client.erase_subject_steps("ann")),
        "wait_erased": client.wait_erased,
        "erasure_pages": lambda: list(client.erasure_pages()),
        "erasures": lambda: list(client.erasures()),
        "Transaction.commit": transaction.commit,
        "Subscription.id": subscription.id,
        "Subscription.fetch": subscription.fetch,
        "Subscription.set": lambda: subscription.set(None),
        "Subscription.delete": subscription.delete,
        "Subscription.batches": lambda: list(subscription.batches()),
        "Subscription.__iter__": lambda: list(subscription),
        "Queue.take": queue.take,
        "Queue.declare": queue.declare,
        "Queue.next": lambda: queue.next().__enter__(),
        "Queue.acknowledge": lambda: queue.acknowledge(batch),
        "Queue.release": lambda: queue.release(batch),
        "Queue.reset": queue.reset,
        "Queue.dead_after": lambda: queue.dead_after(3),
        "Queue.dead_letters": queue.dead_letters,
        "Queue.put_back": lambda: queue.put_back(1),
        "Queue.replay": lambda: queue.replay(1, 2),
        "Queue.put_back_all": queue.put_back_all,
        "Queue.drop_dead": queue.drop_dead,
        "Queue.extend": lambda: queue.extend(batch),
        "Queue.set_retry": lambda: queue.set_retry(RetryPolicy()),
        "Queue.pause": queue.pause,
        "Queue.resume": queue.resume,
        "Queue.rename": lambda: queue.rename("other"),
        "Queue.delete": queue.delete,
        "Queue.set_filter": queue.set_filter,
        "Queue.preview": queue.preview,
        "Log.create": log.create,
        "Log.delete": log.delete,
        "Log.show": log.show,
        "Log.append": lambda: log.append([1]),
        "LogIterator.create": lambda: iterator.create("l", "map", "return msg"),
        "LogIterator.delete": lambda: iterator.delete("l"),
        "LogIterator.show": iterator.show,
        "LogIterator.next": iterator.next,
        "LogIterator.pages": lambda: list(iterator.pages()),
        "LogIterator.__iter__": lambda: list(iterator),
        "access": lambda: client.access,
        "Access.put": lambda: access.put("ann", ["read"]),
        "Access.revoke": lambda: access.revoke("ann"),
        "Access.issue_token": lambda: access.issue_token("ann"),
        "Access.add_credential": lambda: access.add_credential("ann", "certificate:ann"),
        "Access.revoke_credential": lambda: access.revoke_credential("certificate:ann"),
        "Access.principals": access.principals,
        "Access.credentials": access.credentials,
    }


def test_a_closed_client_says_so(way: Way, connect: Connect, url: str) -> None:
    client = connect(url)
    client.append("closing", "s", some(1))
    asked = uses(client)
    client.close()
    for name, use in asked.items():
        with contextlib.suppress(ClientClosed):
            use()
            raise AssertionError(f"{name} did something")


def test_every_method_is_tried_on_a_closed_client() -> None:
    tried = (
        "append append_many stream_pages read_stream read_event read_page event_pages read_all arrow_batches "
        "followed_pages follow position_of transaction subscription queue log iterator logs iterators stats contexts "
        "streams stream_infos queues subscriptions erase_stream erase_subject erase_subject_steps wait_erased "
        "erasure_pages erasures staging build access whoami"
    )
    names = {name for name in vars(Client) if not name.startswith("_")} - {"close", "url"}
    assert names == set(tried.split())
    assert {name for name in vars(Subscription) if not name.startswith("_")} == {
        *("id", "fetch", "progress", "set", "batches", "delete")
    }
    assert {name for name in vars(Queue) if not name.startswith("_")} == {
        *("take", "declare", "acknowledge", "release", "settle", "next"),
        *("give_back", "reset", "dead_after", "dead_letters", "put_back", "put_back_all", "drop_dead", "replay"),
        *("extend", "set_retry", "pause", "resume", "rename", "delete", "set_filter", "preview", "another"),
        *("context", "name", "count", "subscriber", "ttl"),
    }
    assert {name for name in vars(Access) if not name.startswith("_")} == {
        *("put", "revoke", "issue_token", "add_credential", "revoke_credential", "principals", "credentials")
    }
    assert {name for name in vars(Transaction) if not name.startswith("_")} == {
        *("commit", "result", "append", "acknowledge", "progress")
    }


@pytest.mark.over(*WAYS)
def test_closing_twice_is_fine(connect: Connect, url: str) -> None:
    client = connect(url)
    client.close()
    client.close()
    with pytest.raises(ClientClosed):
        client.stats()


def test_a_with_closes(connect: Connect, url: str) -> None:
    with connect(url) as client:
        client.stats()
    if hasattr(client, "loop"):
        return
    with pytest.raises(ClientClosed):
        client.stats()


# ---------------------------------------------------------------- closed under others


def waiting_calls(client: Client, context: str) -> list[Callable[[], object]]:
    return [
        lambda: list(client.follow(context=context)),
        lambda: list(client.subscription("ann", context=context, filter="nothing")),
        lambda: client.queue(context, "work", filter="nothing").take(wait=60),
    ]


@pytest.mark.over(*WAYS)
def test_closing_tells_those_who_wait_in_other_threads(way: Way, url: str, context: str) -> None:
    client = penstock.connect(url)
    told: list[BaseException] = []

    def work(call: Callable[[], object]) -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - told below
            told.append(error)

    def append() -> None:
        while True:
            client.append(context, "other", one())

    calls = [*waiting_calls(client, context), append]
    threads = [threading.Thread(target=work, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    until(lambda: len(list(client.read_stream(context, "other"))) > 10)
    closers = [threading.Thread(target=client.close) for _ in range(2)]
    for thread in closers:
        thread.start()
    for thread in (*closers, *threads):
        thread.join(30)
        assert not thread.is_alive()
    # One who waits at an engine that stops may be answered that there is nothing.
    assert len(told) >= len(calls) - 1
    assert all(isinstance(error, ClientClosed | ConnectionLost) for error in told), told


def test_an_append_that_was_under_way_when_a_client_was_closed_is_in_doubt() -> None:
    with FakeMq(lambda _: None) as fake:
        client = penstock.connect(fake.url)
        told: list[BaseException] = []

        def work() -> None:
            try:
                client.append("c", "s", one())
            except BaseException as error:  # noqa: BLE001 - told below
                told.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        fake.came.wait()
        client.close()
        thread.join()
        assert [type(error) for error in told] == [ConnectionLost]


def test_a_client_can_be_closed_while_it_connects_anew() -> None:
    with FakeMq(lambda _: None) as fake:
        client = penstock.connect(fake.url, timeout=600)
    told: list[BaseException] = []

    def work() -> None:
        try:
            client.stats()
        except BaseException as error:  # noqa: BLE001 - told below
            told.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    client.close()
    for thread in threads:
        thread.join()
    assert {type(error) for error in told} == {ClientClosed}


# ---------------------------------------------------------------- what is left


def descriptors() -> set[str]:
    """What this process has open, but for pipes and sockets of the test runner."""
    found = set()
    for path in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            found.add(f"{path.name} {path.readlink()}")
    return found


def everything() -> tuple[set[object], ...]:
    """Descriptors, threads and processes of ours."""
    return {*descriptors()}, {*threading.enumerate()}, {*children(os.getpid())}


@contextlib.contextmanager
def nothing_left() -> Iterator[None]:
    """What is there behind the block was there before it. What was about to end there may have ended since."""
    gc.collect()
    before = everything()
    yield
    gc.collect()
    until(lambda: all(now <= then for now, then in zip(everything(), before, strict=True)))


def busy(client: Client, context: str) -> None:
    """Use most of it, and leave in the middle."""
    fill(client, context, "s", 300)
    for _ in client.read_all(context=context):
        break
    for _ in client.follow(context=context):
        break
    for _ in client.subscription("ann", context=context):
        break
    with contextlib.suppress(ZeroDivisionError), client.queue(context, "work").next():
        raise ZeroDivisionError
    list(client.arrow_batches(context=context))


@pytest.mark.over(*WAYS)
def test_nothing_is_left_of_a_client(way: Way, connect: Connect, url: str, context: str) -> None:
    # What is loaded on first use stays.
    client = connect(url)
    busy(client, context)
    end(client)
    with nothing_left():
        client = connect(url)
        busy(client, context)
        end(client)


@pytest.mark.over("penstock", "zmq+tcp")
def test_nothing_is_left_of_an_attempt_to_connect(way: Way, connect: Connect) -> None:
    with nothing_left():
        for timeout in (5.0, 0.001, 0.0):
            with pytest.raises(CannotConnect):
                connect(f"{way.scheme}://127.0.0.1:{free_port()}", timeout=timeout)


def test_clients_whose_server_is_gone_can_be_closed(tmp_path: Path) -> None:
    ways = [(maker, scheme) for maker in MAKERS.values() for scheme in NETWORKS]
    with Served(tmp_path / "data") as server:
        clients = [maker(url_of(server, scheme)) for maker, scheme in ways]
        for client in clients:
            client.append("c", "s", one())
        server.process.kill()
        server.process.wait()
    for client in clients:
        # A loop that did not run meanwhile learns only now that its server is gone.
        with pytest.raises((CannotConnect, DeadlinePassed)):
            client.append("c", "s", one(), timeout=0.2)
        with pytest.raises(CannotConnect):
            client.append("c", "s", one(), timeout=0.2)
        end(client)


@pytest.mark.parametrize("scheme", ["penstock", "zmq+tcp"])
def test_a_process_that_was_forked_off_has_no_client(scheme: str, served: Served) -> None:
    url = f"penstock://{served.mq}" if scheme == "penstock" else f"zmq+{served.res}"
    with penstock.connect(url) as client:
        child = os.fork()
        if not child:
            code = 1
            try:
                client.stats()
            except ClientClosed:
                client.close()
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert client.stats().head >= 0
