"""`penstock bench`: load on a server, and what it says of it."""

import json
import signal
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

import penstock
from penstock.cli.bench import BUCKET, Latencies
from penstock.testing import Server
from tests.cli.support import called, run, variables
from tests.cli.test_import import events_in
from tests.test_server import PATIENCE_S, PENSTOCK, until


def test_so_many_events_are_written_into_a_context_of_their_own(served: Server, client: penstock.Client) -> None:
    done = run("bench", "--events", 95, "--batch", 10, "--clients", 3, "--body-bytes", 20, "--json", url=served.url)
    assert (done.code, done.err) == (0, "")
    report = json.loads(done.out)
    assert (report["events"], report["clients"], report["batch"]) == (95, 3, 10)
    assert report["appends"] == 10
    times = report["latency_ms"]
    assert list(times) == ["p50", "p90", "p99", "p99.9", "max"]
    assert sorted(times.values()) == list(times.values())
    events = list(client.read_all(context=report["context"]))
    assert len(events) == 95
    assert {event.stream for event in events} <= {"client-1", "client-2", "client-3"}
    assert {len(event.body) for event in events} == {20}


def test_people_are_told_where_the_events_are(served: Server, client: penstock.Client) -> None:
    done = called("bench", "--seconds", 0.2, "--clients", 2, "--context", "loaded", "--url", served.url)
    assert done.code == 0
    assert "written into context loaded, where they stay" in done.out
    assert "events/s" in done.out
    assert "p99.9" in done.out
    assert f"{events_in(client, 'loaded'):,} events in " in done.out


def test_ctrl_c_ends_it_with_what_was_measured(served: Server, client: penstock.Client) -> None:
    command = [*PENSTOCK, "bench", "--seconds", "60", "--context", "interrupted", "--json"]
    process = subprocess.Popen(command, env=variables(served.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    until(lambda: events_in(client, "interrupted") > 0)
    process.send_signal(signal.SIGINT)
    out, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, told) == (130, b"penstock: interrupted\n")
    assert json.loads(out)["events"] <= events_in(client, "interrupted")


@pytest.mark.parametrize(
    ("flags", "code", "reason"),
    [
        (("--url", "penstock://127.0.0.1:1"), 1, "no server answers"),
        (("--clients", "0"), 2, "'--clients'"),
        (("--context", ""), 2, "--context is empty"),
        (("--body-bytes", "many"), 2, "'--body-bytes'"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(flags: tuple[str, ...], code: int, reason: str) -> None:
    done = called("bench", *flags)
    assert (done.code, done.out) == (code, "")
    assert reason in done.err
    assert done.err.count("\n") == 1


@given(st.lists(st.floats(1e-6, 100), min_size=1), st.sampled_from([50, 90, 99, 99.9]))
def test_a_percentile_is_right_within_its_bucket(times: list[float], percent: float) -> None:
    found = Latencies()
    for seconds in times:
        found.add(seconds)
    exact = sorted(times)[max(0, -(-len(times) * percent // 100).__int__() - 1)]
    assert exact * 0.999999 <= found.percentile(percent) <= exact * BUCKET * 1.000001
