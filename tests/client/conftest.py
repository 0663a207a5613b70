"""One suite for three kinds of URL and both clients: servers and clients that all tests of a worker share.

The plain client drives the one for event loops, and URLs differ in their transport only. So a test runs with the plain
client, over MQ or over each URL that its mark `over` names, or with both clients if the mark says `both`. The tests of
`SMOKE` run with both clients over every URL. A test gets a client and a context of its own; `connect` makes more
clients of the same kind.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import penstock
from penstock import Client
from tests.client.driven import DrivenClient, driven_connect
from tests.gates.serving import Served

WAYS = ("penstock", "zmq+tcp", "sqlite")
NETWORKS = ("penstock", "zmq+tcp")
MAKERS: dict[str, Callable[..., Client]] = {"plain": penstock.connect, "loop": driven_connect}
Connect = Callable[..., Client]
SMOKE: Final = {
    "AcknowledgeQueue": "test_a_queue_can_be_handled_by_hand",
    "Append": "test_what_was_appended_is_what_is_read",
    "BeginBuild": "test_a_build_is_begun_read_staged_and_installed",
    "CreateIterator": "test_an_iterator_maps_filters_and_reduces",
    "CreateLog": "test_a_log_keeps_values_in_order",
    "DropIterator": "test_a_build_is_begun_read_staged_and_installed",
    "DropLog": "test_making_and_deleting_a_log_twice_is_fine",
    "DropOutput": "test_errors_come_as_what_they_are",
    "DropStages": "test_what_is_staged_is_seen_when_it_is_published_and_once",
    "EraseStream": "test_an_erased_stream_is_empty_and_goes_on",
    "EraseSubject": "test_a_subject_is_erased_in_one_context_or_in_all",
    "FetchSubscription": "test_a_subscription_delivers_everything_once",
    "FindMessage": "test_a_build_says_where_the_event_of_a_message_is",
    "FindPosition": "test_a_position_is_found_by_time",
    "GetStats": "test_counts_grow",
    "InstallOutput": "test_a_build_is_begun_read_staged_and_installed",
    "ListContexts": "test_contexts_and_streams_are_listed",
    "ListDeadLetters": "test_dead_letters_are_listed_and_put_back",
    "ListErasures": "test_what_was_waited_for_is_finished_in_the_ledger",
    "ListIterators": "test_an_iterator_maps_filters_and_reduces",
    "ListLogs": "test_making_and_deleting_a_log_twice_is_fine",
    "ListQueues": "test_queues_are_listed",
    "ListStreams": "test_contexts_and_streams_are_listed",
    "ListSubscriptions": "test_subscriptions_are_listed",
    "NextItems": "test_an_iterator_maps_filters_and_reduces",
    "PublishStages": "test_what_is_staged_is_seen_when_it_is_published_and_once",
    "PutBack": "test_dead_letters_are_listed_and_put_back",
    "ReadAll": "test_a_page_says_where_to_read_on",
    "ReadEvent": "test_one_event_can_be_read",
    "ReadMessages": "test_a_build_is_begun_read_staged_and_installed",
    "ReadRecords": "test_a_filter_and_types_choose",
    "ReadStream": "test_what_was_appended_is_what_is_read",
    "RegisterSubscriptions": "test_a_subscription_delivers_everything_once",
    "ReleaseQueue": "test_a_queue_can_be_handled_by_hand",
    "ReplayQueue": "test_a_range_is_handed_out_once_more",
    "ResetQueue": "test_a_queue_begins_again_where_it_is_told",
    "SetDeadLetterRule": "test_dead_letters_are_listed_and_put_back",
    "SetSubscription": "test_a_subscription_can_be_moved",
    "DeleteSubscription": "test_a_deleted_subscription_begins_anew",
    "ShowIterator": "test_an_iterator_shows_what_it_is",
    "ShowLog": "test_a_log_keeps_values_in_order",
    "StageEvents": "test_what_is_staged_is_seen_when_it_is_published_and_once",
    "StageOutput": "test_errors_come_as_what_they_are",
    "SubscribeQueue": "test_a_queue_can_be_handled_by_hand",
    "Authenticate": "test_a_client_with_a_token_is_its_principal",
    "Transact": "test_produce_and_acknowledge_is_one_transaction",
    "WhoAmI": "test_a_client_says_who_it_is",
    "many commits": "test_many_commits_are_written_in_their_order",
    "a conflict": "test_an_append_to_another_version_is_a_conflict",
    "the largest event": "test_the_largest_event_passes",
    "an event too large": "test_too_large_an_event_is_refused",
    "following": "test_following_gives_what_is_there_and_then_what_comes",
    "Arrow": "test_arrow_batches_have_the_same_rows",
    "a batch in a with": "test_a_batch_is_acknowledged_when_the_body_succeeds",
    "a failure in a with": "test_a_batch_is_released_when_the_body_fails",
    "a lost connection": "test_a_marked_append_is_sent_again_when_a_connection_is_lost",
    "a lost connection, without retries": "test_without_retries_a_lost_connection_is_told",
    "bytes that are no answer": "test_bytes_that_are_no_answer_end_the_connection",
    "a message too large for a server": "test_a_message_that_a_server_does_not_take_is_not_sent_again",
    "too many connections": "test_a_server_with_too_many_connections_is_waited_for",
    "commits that were overtaken": "test_commits_that_were_overtaken_are_not_sent_again",
    "a deadline": "test_a_deadline_leaves_the_outcome_unknown_once_it_was_sent",
    "an attempt to connect": "test_nothing_is_left_of_an_attempt_to_connect",
    "a closed client": "test_a_closed_client_says_so",
    "close": "test_a_with_closes",
}
"""Which test asks for what with both clients over every URL: each kind of request, and each way to use a client."""

_numbers = itertools.count(1)


class Way(NamedTuple):
    """How a test reaches its Penstock: the URL's scheme, and which client."""

    scheme: str
    flavour: str


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "over(*schemes, both=False): run over these URLs only; with both clients")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "way" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("over")
        is_smoke = metafunc.function.__name__ in SMOKE.values()
        schemes = marker.args if marker else WAYS if is_smoke else WAYS[:1]
        flavours = MAKERS if is_smoke or (marker and marker.kwargs.get("both")) else ["plain"]
        ways = [Way(scheme, flavour) for scheme in schemes for flavour in flavours]
        metafunc.parametrize("way", ways, ids=["-".join(way) for way in ways], scope="session")


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all tests that do it no harm."""
    with Served(tmp_path_factory.mktemp("served") / "data") as server:
        yield server
    assert "Traceback" not in server.said()


def url_of(served: Served, scheme: str) -> str:
    """Where a server is, over a gate."""
    return f"penstock://{served.mq}" if scheme == "penstock" else f"zmq+{served.res}"


@pytest.fixture(scope="session")
def shared(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[Way], Client]]:
    """One client of each kind. That of an embedded store is the only one that it can have."""
    clients: dict[Way, Client] = {}

    def client(way: Way) -> Client:
        if way not in clients:
            if way.scheme == "sqlite":
                url = f"sqlite:///{tmp_path_factory.mktemp('embedded')}"
            else:
                url = url_of(request.getfixturevalue("served"), way.scheme)
            clients[way] = MAKERS[way.flavour](url)
        return clients[way]

    yield client
    for each in clients.values():
        end(each)


def end(client: Client) -> None:
    """Close a client and whatever a test has put around it."""
    if isinstance(client, DrivenClient):
        client.end()
    else:
        client.close()


@pytest.fixture
def client(way: Way, shared: Callable[[Way], Client]) -> Client:
    return shared(way)


@pytest.fixture
def connect(way: Way) -> Iterator[Connect]:
    """Connects to a URL with the client that the test is for; what is still open is closed in the end."""
    made: list[Client] = []

    def make(url: str, **options: Any) -> Client:
        made.append(MAKERS[way.flavour](url, **options))
        return made[-1]

    yield make
    for each in made:
        end(each)


@pytest.fixture
def other(client: Client, way: Way, connect: Connect) -> Client:
    """Another client of the same store; the same one where a store can have only one."""
    return client if way.scheme == "sqlite" else connect(client.url)


@pytest.fixture
def url(way: Way, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a client can connect to: the shared server, or a store of the test's own."""
    if way.scheme == "sqlite":
        return f"sqlite:///{tmp_path / 'own'}"
    return url_of(request.getfixturevalue("served"), way.scheme)


@pytest.fixture
def context() -> str:
    """The name of a context that no other test uses."""
    return f"shop-{next(_numbers):04}"
