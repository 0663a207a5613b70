"""`penstock replay`: once, whatever ends it in the middle, and told in a line what cannot be."""

import json
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import penstock
from penstock.cli.interchange import STALLED_S, ReplayProgress
from penstock.cli.signals import stop_signals
from penstock.model import stamp_of, ticks_of_datetime
from penstock.store import store_url
from penstock.testing import Server, server
from tests.cli.support import Done, called, variables
from tests.cli.test_import import history
from tests.cli.test_terminal import ended, terminal
from tests.postgres import Schemas
from tests.test_cli import flip_a_byte
from tests.test_server import PATIENCE_S, PENSTOCK, until

MANY = 3000
SLOWLY = ("--rate", 20)


@pytest.fixture(scope="module")
def other() -> Iterator[Server]:
    """Where events go."""
    with server() as own:
        yield own


@pytest.fixture(scope="module")
def shop(client: penstock.Client) -> str:
    """A context with many events, all of which its queue has handed out."""
    commits = ([penstock.event("Placed", {"number": n}) for n in range(m, m + 10)] for m in range(0, MANY, 10))
    client.append_many(("shop", f"order-{number % 7}", events) for number, events in enumerate(commits))
    queue = client.queue("shop", "mail", count=1000)
    while batch := queue.take():
        queue.acknowledge(batch)
    return "shop"


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state"


def replay(*arguments: object) -> Done:
    return called("replay", *arguments)


def begun(*arguments: object, url: str, state: Path) -> "subprocess.Popen[str]":
    """A replay in a process of its own."""
    command = [*PENSTOCK, "replay", *map(str, arguments)]
    env = variables(url, XDG_STATE_HOME=str(state))
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env)


def copied(own: Server, context: str) -> list[tuple[object, ...]]:
    """What a replay keeps of the events of a context."""
    return [rest for _, *rest in history(own.url, context)]  # type: ignore[misc]


# --- into a store ---------------------------------------------------------------------------------------------


def test_what_was_killed_goes_on_and_is_there_once(
    served: Server, other: Server, shop: str, state: Path, client: penstock.Client
) -> None:
    place = ("--context", shop, "--to-url", other.url, "--to-context", "killed")
    with begun(*place, *SLOWLY, url=served.url, state=state) as process:
        until(lambda: len(copied(other, "killed")) > 3)
        process.kill()
    there = len(copied(other, "killed"))
    assert 3 < there < MANY
    client.append(shop, "order-1", [penstock.event("Later")])
    done = replay(*place, "--url", served.url)
    resumed = re.fullmatch(rf"replay {name(state)} continues after position ([\d,]+)\n", done.err)
    assert (done.code, bool(resumed)) == (0, True), done.err
    assert resumed is not None
    # What was on its way when it was killed, a batch at most, may have been written since.
    assert there <= int(resumed[1].replace(",", "")) <= there + 2
    assert done.out == f"3,000 events into context killed of {other.url}, of positions 1 to 3,000\n"
    assert copied(other, "killed") == copied(served, shop)[:MANY]
    again = replay(*place, "--url", served.url)
    assert (again.code, len(copied(other, "killed"))) == (0, MANY)
    assert "this replay finished at" in again.out
    assert "--again" in again.out


def name(state: Path) -> str:
    (found,) = (state / "penstock" / "replays").glob("*.json")
    return found.stem


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_it_with_how_to_go_on(
    served: Server, other: Server, shop: str, state: Path, number: signal.Signals, code: int
) -> None:
    place = ("--context", shop, "--to-url", other.url, "--to-context", f"ended-{code}")
    with begun(*place, *SLOWLY, url=served.url, state=state) as process:
        until(lambda: bool(copied(other, f"ended-{code}")))
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE_S)
    there = len(copied(other, f"ended-{code}"))
    assert (process.returncode, out) == (code, "")
    assert f"up to position {there} of " in err
    assert "run the same command again to continue" in err
    # In batches of what goes out in a tenth of a second.
    assert there % 2 == 0


def test_progress_is_shown_at_a_terminal(served: Server, other: Server, shop: str, state: Path) -> None:
    place = ("--context", shop, "--to-url", other.url, "--to-context", "shown")
    with terminal("replay", *place, *SLOWLY, url=served.url, XDG_STATE_HOME=str(state), COLUMNS="150") as child:
        child.expect(r"\d+ events, [\d.]+/s, position \d+")
        child.sendintr()
        child.expect("interrupted: ")
        assert ended(child) == 130


def test_another_context_of_the_same_store_and_a_summary_for_programs(served: Server, shop: str) -> None:
    line = ("--context", shop, "--to-context", "twin", "--to-stream-prefix", "copy-", "--expected", "new", "--json")
    done = replay(*line, "--from", 11, "--to", 30, "--type", "Placed", "--filter", "order-1", "--url", served.url)
    told = json.loads(done.out)
    assert (told["events"], told["first"], told["last"], told["erased"]) == (10, 11, 30, 0)
    assert (told["resumed_at"], told["finished_before"]) == (None, False)
    assert {stream for stream, *_ in copied(served, "twin")} == {"copy-order-1"}


def test_a_time_window_is_of_the_times_of_events(served: Server, client: penstock.Client) -> None:
    for number, day in enumerate((3, 1, 2, 4)):
        stamp = stamp_of(ticks_of_datetime(datetime(2026, 1, day, tzinfo=UTC)))
        client.append("dated", "s", [penstock.event("Dated", number)._replace(stamp=stamp)])
    line = ("--context", "dated", "--to-context", "window", "--url", served.url)
    done = replay(*line, "--from", "2026-01-02", "--to", "2026-01-04")
    assert (done.code, done.out.split(",")[0]) == (0, "2 events into context window")
    assert [event.json() for event in client.read_all(context="window")] == [0, 2]


# --- through a queue ------------------------------------------------------------------------------------------


def test_a_queue_hands_a_range_out_once_more(served: Server, shop: str, client: penstock.Client) -> None:
    (before,) = (info for info in client.queues() if info.context == shop)
    done = replay("--queue", "mail", "--from", 101, "--to", 350, "--url", served.url)
    assert done.out == "250 events through queue mail, of positions 101 to 350; 250 events waiting for consumers\n"
    assert (done.code, done.err) == (0, "")
    queue = client.queue(shop, "mail")
    sizes: list[int] = []
    positions: list[int] = []
    while len(positions) < 250:
        batch = queue.take()
        sizes.append(len(batch))
        positions += [event.position for event in batch]
        queue.acknowledge(batch)
    assert (sizes, positions) == ([100, 100, 50], list(range(101, 351)))
    (after,) = (info for info in client.queues() if info.context == shop)
    assert (after.position, after.behind, after.allocations) == (before.position, before.behind, 0)


def test_it_is_said_that_consumers_are_waited_for_where_no_bar_is_seen(capsys: pytest.CaptureFixture[str]) -> None:
    shown = ReplayProgress(lambda *_: None)
    replay: Any = SimpleNamespace(waiting=1600, note=SimpleNamespace(done=4, events=4, first=1, last=9))
    for _ in range(3):
        shown.show(replay)
    assert not capsys.readouterr().err
    shown._moved = 4, -STALLED_S
    for _ in range(3):
        shown.show(replay)
    assert capsys.readouterr().err == "penstock: waiting for consumers: 1,600 events in the queue\n"


def test_stores_themselves_are_replayed_from_and_to(schemas: Schemas, tmp_path: Path) -> None:
    data, shared = store_url(tmp_path / "data"), schemas.url()
    with penstock.connect(data) as local:
        local.append("shop", "s", [penstock.event("Placed", number) for number in range(5)])
    assert replay("--data", tmp_path / "data", "--to-url", shared).out.startswith("5 events into ")
    with penstock.connect(shared) as client:
        assert [event.json() for event in client.read_all(context="shop")] == list(range(5))
        queue = client.queue("shop", "mail")
        queue.acknowledge(queue.take())
        done = replay("--url", shared, "--queue", "mail", "--from", 2, "--to", 3)
        assert done.out == "2 events through queue mail, of positions 2 to 3; 2 events waiting for consumers\n"
        assert [event.json() for event in queue.take()] == [1, 2]


# --- what cannot be -------------------------------------------------------------------------------------------

TWIN = ("--to-context", "twin")
WRONG = [
    ((), 2, "either --queue, or --to-url or --to-context"),
    (("--queue", "mail", *TWIN), 2, "--queue cannot be combined with --to-url or --to-context"),
    (("--queue-context", "shop", *TWIN), 2, "--queue-context belongs to --queue"),
    (("--queue", "mail", "--expected", "new"), 2, "belong to --to-url and --to-context"),
    (("--from", 5, "--to", 4, *TWIN), 2, "--from 5 comes after --to 4"),
    (("--from", "1h", "--to", "2h", *TWIN), 2, "--from 1h comes after --to 2h"),
    (("--from", 0, *TWIN), 2, "--from 0 is not a position"),
    (("--to", "soon", *TWIN), 2, "is not a time"),
    (("--rate", 0, *TWIN), 2, "--rate 0.0 is not a number of events"),
    (("--rate", "nan", *TWIN), 2, "is not a number of events"),
    (("--name", "a/b", *TWIN), 2, "--name must consist of letters"),
    (("--to-context", ""), 2, "--to-context"),
    (("--context", "shop", "--to-url", "ftp://x"), 2, "penstock://HOST:PORT"),
    (("--context", "nix", *TWIN), 1, "there is no context nix"),
    (TWIN, 1, "so that it does not feed on itself"),
    (("--context", "shop", "--to-context", "shop"), 1, "which would feed on itself"),
    (("--queue", "nix"), 1, "no queue nix; see penstock queue list"),
    (("--queue", "mail", "--queue-context", "nix"), 1, "no queue mail in context nix"),
    (("--queue", "mail", "--context", "elsewhere"), 1, "is of context shop"),
    (("--context", "shop", "--state", "/dev/null/x", *TWIN), 1, "name another file with --state"),
    (("--context", "shop", "--state", "/nowhere/x", *TWIN), 1, "/nowhere/x: there is no such folder; name another"),
]


@pytest.mark.usefixtures("shop")
@pytest.mark.parametrize(("line", "code", "said"), WRONG)
def test_what_cannot_be_is_told_in_a_line(served: Server, line: tuple[object, ...], code: int, said: str) -> None:
    done = replay(*line, "--url", served.url)
    assert (done.code, done.out) == (code, "")
    assert said in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_target_that_cannot_be_reached_is_named(served: Server, shop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.interchange.sender.TIMEOUT_S", 0.2)
    done = replay("--context", shop, "--to-url", "penstock://127.0.0.1:9", "--url", served.url)
    assert done.code == 1
    assert "no server answers at penstock://127.0.0.1:9: " in done.err
    assert "or name it with --to-url" in done.err


def test_any_rate_can_be_waited_for_and_be_interrupted() -> None:
    with stop_signals() as caught:
        waker = threading.Timer(0.01, signal.pthread_kill, [threading.main_thread().ident, signal.SIGTERM])
        waker.start()
        assert not caught.wait(1 / 1e-12)
        assert (caught.is_set, caught.exit_code) == (True, 143)
        waker.join()


def test_a_replay_of_nothing_says_so(served: Server, shop: str) -> None:
    done = replay("--context", shop, "--type", "Nothing", "--to-context", "none", "--url", served.url)
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("0 events into context none, of positions 1 to ")
    assert done.out.endswith("; no event there matches the options\n")


def test_a_source_that_was_restored_meanwhile_is_refused(other: Server, tmp_path: Path, state: Path) -> None:
    data = tmp_path / "data"
    with penstock.connect(store_url(data)) as local:
        local.append("shop", "s", [penstock.event("Placed", number) for number in range(200)])
    line = ("--context", "shop", "--to-url", other.url, "--to-context", "restored", "--url")
    with begun(*line, store_url(data), *SLOWLY, url=other.url, state=state) as process:
        until(lambda: bool(copied(other, "restored")))
        process.terminate()
    assert called("backup", tmp_path / "backup", "--data", data).code == 0
    assert called("restore", tmp_path / "backup", "--data", data, "--replace").code == 0
    done = replay(*line, store_url(data))
    assert (done.code, "timeline 2" in done.err) == (1, True)


def test_a_damaged_source_is_told_with_its_position(other: Server, tmp_path: Path) -> None:
    with penstock.connect(store_url(tmp_path)) as local:
        for number in range(5):
            local.append("shop", "s", [penstock.event("Placed", {"number": number})])
    flip_a_byte(tmp_path)
    done = replay("--data", tmp_path, "--to-url", other.url, "--to-context", "damaged")
    assert done.code == 1
    assert "position 3" in done.err
    assert "run the same command again" in done.err
