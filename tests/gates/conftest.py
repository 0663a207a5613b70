"""One server for all modules that need no flags, and for each test a client and a context of its own.

`res` is ZeroMQ, `mq` is Res01 in MqFrames, `mq-large` is Res01L. They share the codec and the engine, so one of them
runs every test. In a module marked with `gates`, that is the first one named; the others run the tests of `SMOKE`. A
test that has the mark itself runs over each gate that it names. A test without a mark runs over ZeroMQ.
"""

import itertools
from collections.abc import Iterator
from typing import Final

import pytest

from tests.gates.mq_client import MqBinary
from tests.gates.res_client import Older, Rc01
from tests.gates.res_extensions import Extended
from tests.gates.serving import Served

SMOKE: Final = {
    "AC": "test_a_commit_comes_back_as_it_was_sent",
    "AQ": "test_acknowledging_gives_the_next_events",
    "AW": "test_a_queue_waits_for_events",
    "DL": "test_what_was_lost_too_often_is_set_aside_listed_and_put_back",
    "DP": "test_what_was_lost_too_often_is_set_aside_listed_and_put_back",
    "DR": "test_what_was_lost_too_often_is_set_aside_listed_and_put_back",
    "FE": "test_each_subscription_of_a_fetch_has_an_answer_in_its_place",
    "FW": "test_a_fetch_waits_for_events_that_concern_it",
    "GE": "test_one_event_can_be_read",
    "GQ": "test_queues_are_listed_with_their_state",
    "GS": "test_statistics_have_names_and_values",
    "GU": "test_subscriptions_are_listed_with_where_they_are",
    "LC": "test_contexts_are_listed_with_what_is_in_them",
    "LQ": "test_queues_are_listed_with_their_state",
    "LS": "test_streams_are_listed_with_their_numbers_of_events",
    "LU": "test_subscriptions_are_listed_with_where_they_are",
    "PS": "test_progress_lists_what_was_asked_whether_it_exists_or_not",
    "QS": "test_a_commit_comes_back_as_it_was_sent",
    "RA": "test_stored_records_are_read_as_they_are",
    "RQ": "test_a_reset_drops_all_allocations_and_starts_at_a_time",
    "RS": "test_registering_again_gives_the_same_id_and_ignores_the_start",
    "SQ": "test_a_queue_gives_its_first_events_with_their_markers",
    "SS": "test_setting_what_does_not_exist_says_so_in_its_place",
    "SW": "test_a_queue_waits_for_events",
    "TX": "test_a_transaction_writes_all_its_commits_next_to_each_other",
    "a malformed request": "test_a_message_without_its_payload_is_error_1",
    "an unknown protocol": "test_an_unknown_protocol_is_error_2_with_its_own_tag",
    "an unknown command": "test_an_unknown_command_is_error_3",
    "no request id": "test_a_message_too_short_for_a_request_id_is_error_1_with_an_empty_one",
    "nothing but an empty frame": "test_a_message_of_an_empty_frame_alone_is_answered",
    "a conflict": "test_a_conflict_names_both_versions_and_writes_nothing",
    "a queue of RC0.1": "test_a_queue_is_drained_by_allocation_ids",
    "an error of RC0.1": "test_errors_about_queues_are_those_of_the_text_dialect",
    "what RC0.1 does not have": "test_what_this_dialect_does_not_have_is_error_3",
}
"""Which test asks for what over every gate: each command of the text dialect, and each kind of error."""

_numbers = itertools.count(1)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "gates(*names): run over each of these gates: res, mq, mq-large")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marker = metafunc.definition.get_closest_marker("gates")
    if marker is not None and "gate" in metafunc.fixturenames:
        metafunc.parametrize("gate", _gates_of(metafunc, marker))


def _gates_of(metafunc: pytest.Metafunc, marker: pytest.Mark) -> tuple[str, ...]:
    is_its_own = marker in metafunc.definition.own_markers
    return marker.args if is_its_own or metafunc.function.__name__ in SMOKE.values() else marker.args[:1]


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A server for all modules that need no other."""
    with Served(tmp_path_factory.mktemp("served") / "data") as served:
        yield served
    assert "Traceback" not in served.said()


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The shared server, or one of the module's own with the flags that it names; there may be none of them."""
    flags: tuple[str, ...] | None = getattr(request.module, "SERVER_FLAGS", None)
    if flags is None:
        yield request.getfixturevalue("shared_server")
        return
    with Served(tmp_path_factory.mktemp("served") / "data", *flags) as served:
        yield served
    assert "Traceback" not in served.said()


@pytest.fixture
def gate() -> str:
    """What a test's clients talk to, unless the test names others."""
    return "res"


@pytest.fixture
def client(server: Served, gate: str) -> Iterator[Extended]:
    with server.client(gate) as client:
        yield client


@pytest.fixture
def other(server: Served, gate: str) -> Iterator[Extended]:
    """Another client of the same server."""
    with server.client(gate) as client:
        yield client


@pytest.fixture
def binary(server: Served, gate: str) -> Iterator[Rc01]:
    with Rc01(server.res) if gate == "res" else MqBinary(server.mq) as connected:
        yield connected


@pytest.fixture
def older(server: Served) -> Iterator[Older]:
    with Older(server.res_legacy) as connected:
        yield connected


@pytest.fixture
def context() -> str:
    """The name of a context that no other test uses."""
    return f"shop-{next(_numbers):04}"
