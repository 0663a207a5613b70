"""`penstock export`: whole files or none, of what is wanted, and going on after whatever ended it."""

import json
import re
import resource
import signal
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.event_json import Defaults
from penstock.files import sealed
from penstock.history.source import open_history
from penstock.interchange.exporter import (
    ExportRange,
    FileTarget,
    Selection,
    export_events,
    for_terminal,
    pages,
)
from penstock.interchange.formats import FileRefused, Format
from penstock.interchange.parquet_format import from_parquet
from penstock.store import store_url
from penstock.store.postgres import PostgresStore
from penstock.testing import Server, server
from tests.cli.support import called, run, shell, terminal_output, variables
from tests.cli.test_import import Failing
from tests.postgres import Schemas
from tests.proxy import ANSWERED
from tests.store.kit import append, some
from tests.test_server import PATIENCE_S, PENSTOCK, until

MANY = 40_000
HALF_BYTES = 1_350_000
"""About half of what a server says of so many."""


@pytest.fixture(scope="module")
def many(client: penstock.Client) -> str:
    """A context with many events."""
    commits = ([penstock.event("Counted", {"number": n}) for n in range(m, m + 1000)] for m in range(0, MANY, 1000))
    client.append_many(("many", f"stream-{number % 7}", events) for number, events in enumerate(commits))
    return "many"


@pytest.fixture(scope="module")
def whole(served: Server, many: str, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """All of them, exported in one go."""
    path = tmp_path_factory.mktemp("whole") / "all.jsonl"
    assert called("export", path, "--context", many, "--url", served.url).code == 0
    assert not list(path.parent.glob("*.partial*"))
    return path.read_bytes()


def test_everything_is_there_once_and_in_order(whole: bytes) -> None:
    assert [json.loads(line)["body"]["number"] for line in whole.splitlines()] == list(range(MANY))


@pytest.fixture(scope="module")
def few(client: penstock.Client) -> int:
    """Four events of two streams, hours apart; the position before them."""
    before = client.stats().head
    for hour, (stream, kind) in enumerate((("a-1", "A"), ("b-1", "B"), ("a-1", "B"), ("a-2", "A"))):
        when = datetime(2026, 11, 15, hour, tzinfo=UTC)
        client.append("few", stream, [penstock.event(kind, hour, time=when)])
    client.append("other", "a-1", [penstock.event("A", 9)])
    return before


@pytest.mark.parametrize(
    ("flags", "bodies"),
    [
        (lambda before: ("--context", "few"), [0, 1, 2, 3]),
        (lambda before: ("--context", "few", "--filter", "a-"), [0, 2, 3]),
        (lambda before: ("--context", "few", "--type", "B"), [1, 2]),
        (lambda before: ("--context", "few", "--type", "A", "--type", "B", "--filter", "b"), [1]),
        (lambda before: ("--from", before + 2, "--to", before + 5), [1, 2, 3, 9]),
        (
            lambda before: ("--context", "few", "--since", "2026-11-15T01:00:00Z", "--until", "2026-11-15T03:00:00Z"),
            [1, 2],
        ),
        (lambda before: ("--from", before + 1, "--until", "2026-11-15T01:00:00"), [0]),
        (lambda before: ("--context", "nobody"), []),
        (lambda before: ("--to", 0), []),
    ],
)
def test_what_is_wanted_is_exported(
    served: Server, few: int, tmp_path: Path, flags: Callable[[int], tuple[object, ...]], bodies: list[int]
) -> None:
    path = tmp_path / "some.jsonl"
    done = called("export", path, *flags(few), "--json", "--url", served.url)
    assert done.code == 0, done.err
    assert [json.loads(line)["body"] for line in path.read_bytes().splitlines()] == bodies
    assert done.lines[0]["events"] == len(bodies)


def test_a_file_goes_to_a_pipe_too(served: Server, few: int, tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    called("export", path, "--context", "few", "--url", served.url)
    done = shell(f"penstock export - --format parquet --context few | cat > {tmp_path}/piped", served.url)
    assert (done.code, done.err.count("\n")) == (0, 1)
    assert (tmp_path / "piped").read_bytes() == path.read_bytes()


def test_standard_output_has_a_name_and_links_are_followed(served: Server, few: int, tmp_path: Path) -> None:
    flags = ("--context", "few", "--format", "csv")
    assert shell(f"penstock export /dev/stdout {' '.join(flags)} > {tmp_path}/piped", served.url).code == 0
    (tmp_path / "real").mkdir()
    (tmp_path / "link.csv").symlink_to(tmp_path / "real" / "some.csv")
    assert called("export", tmp_path / "link.csv", *flags, "--url", served.url).code == 0
    assert (tmp_path / "link.csv").is_symlink()
    rows = (tmp_path / "real" / "some.csv").read_bytes()
    assert (tmp_path / "piped").read_bytes() == rows


def test_a_pipe_that_closes_early_ends_it_quietly(served: Server, many: str) -> None:
    done = shell(f"penstock export - --context {many} | head -1", served.url)
    assert json.loads(done.out)["body"] == {"number": 0}
    assert done.err == ""


def test_a_store_is_exported_beside_its_server(served: Server, few: int) -> None:
    done = run("export", "-", "--context", "few", "--format", "csv", "--data", served.data)
    assert done.code == 0, done.err
    assert done.out.splitlines()[0] == (
        "position,sequence,context,stream,type,id,timestamp,recorded_at,headers,encoding,body"
    )
    assert done.out.count("\n") == 5


# --- what ends it in the middle -------------------------------------------------------------------------------


def test_ctrl_c_leaves_what_the_same_command_goes_on_with(
    served: Server, many: str, whole: bytes, tmp_path: Path
) -> None:
    path, partial = tmp_path / "all.jsonl", tmp_path / "all.jsonl.partial"
    command = [*PENSTOCK, "export", str(path), "--context", many]
    with Failing(int(served.url.rpartition(":")[2])) as proxy:
        proxy.arm(ANSWERED, HALF_BYTES)
        process = subprocess.Popen(command, env=variables(proxy.url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        # More than one write: the state of the first one is known then.
        until(lambda: proxy.is_refusing and partial.exists() and partial.stat().st_size > len(whole) // 10)
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, out) == (130, b"")
    assert told == b"penstock: interrupted: run the same command again to continue\n"
    assert not path.exists()
    done = called("export", path, "--context", many, "--url", served.url, "--json")
    assert done.lines[0]["events"] == MANY
    assert 0 < done.lines[0]["resumed_events"] < MANY
    assert path.read_bytes() == whole
    assert [file.name for file in tmp_path.iterdir()] == ["all.jsonl"]


def small_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, resource.RLIM_INFINITY))


@pytest.mark.parametrize("kind", [Format.JSONL, Format.PARQUET])
def test_a_full_disk_is_told_in_a_line_and_can_be_gone_on_from(
    served: Server, many: str, whole: bytes, tmp_path: Path, kind: Format
) -> None:
    path = tmp_path / f"all.{kind}"
    path.write_bytes(b"what was there")
    command = [*PENSTOCK, "export", str(path), "--context", many]
    limit = small_files if kind is Format.JSONL else tiny_files
    done = subprocess.run(command, env=variables(served.url), capture_output=True, preexec_fn=limit, timeout=PATIENCE_S)
    assert (done.returncode, done.stdout) == (1, b"")
    told = f"penstock: {path}: file too large; run the same command again when there is room, and it goes on\n"
    assert done.stderr.decode() == told
    assert path.read_bytes() == b"what was there"
    again = called("export", path, "--context", many, "--url", served.url, "--json").lines[0]
    assert again["events"] == MANY
    assert again["resumed_events"] > 0
    assert [file.name for file in tmp_path.iterdir()] == [path.name]
    if kind is Format.JSONL:
        assert path.read_bytes() == whole
    else:
        rows = from_parquet(path, Defaults())
        assert [json.loads(row.event.body)["number"] for row in rows] == list(range(MANY))


def tiny_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))


def test_what_a_killed_export_wrote_after_its_last_note_is_cut_off(
    served: Server, many: str, whole: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after a kill: nobody tidies up, and there is more in the file than was noted."""
    path, left = str(tmp_path / "all.jsonl"), list[FileTarget]()
    half = Selection(many, last=json.loads(whole.splitlines()[24_999])["position"])
    monkeypatch.setattr("penstock.interchange.exporter.NOTE_S", 0.0)
    monkeypatch.setattr(FileTarget, "close", lambda self: left.append(self))  # noqa: PLW0108 - a method
    monkeypatch.setattr(FileTarget, "finish", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_events(served.url, path, Format.JSONL, half, lambda *_: None)
    monkeypatch.undo()
    left[0]._file.close()
    noted = json.loads((tmp_path / "all.jsonl.partial.json").read_bytes())
    with (tmp_path / "all.jsonl.partial").open("ab") as partial:
        partial.write(b'{"position": half of a li')
    exported = export_events(served.url, path, Format.JSONL, half, lambda *_: None)
    assert exported.resumed_events == noted["events"]
    assert whole.startswith((tmp_path / "all.jsonl").read_bytes())
    assert exported.events == (tmp_path / "all.jsonl").read_bytes().count(b"\n") == 25_000


def test_two_exports_do_not_write_the_same_file(served: Server, few: int, tmp_path: Path) -> None:
    identity = {"store": "store"}
    path = tmp_path / "some.csv"
    with closing(FileTarget(str(path), Format.CSV, identity, ExportRange(1), restart=False)):
        done = called("export", path, "--context", "few", "--url", served.url)
        assert (done.code, done.err) == (1, f"penstock: {path}.partial: another export is writing it\n")
    assert called("export", path, "--context", "few", "--url", served.url).code == 0


def test_another_export_is_not_mixed_with_one_that_was_not_finished(
    served: Server, few: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "some.csv"
    monkeypatch.setattr(FileTarget, "finish", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        export_events(served.url, str(path), Format.CSV, Selection("few"), lambda *_: None)
    monkeypatch.undo()
    other = called("export", path, "--context", "other", "--url", served.url)
    assert other.code == 1
    assert other.err == (
        f"penstock: {path}: {path}.partial is of another export, which was not finished; "
        "run that again, or say --anew\n"
    )
    assert called("export", path, "--context", "other", "--anew", "--url", served.url).code == 0
    assert path.read_bytes().count(b"\n") == 2


def test_what_was_so_long_ago_is_so_for_the_run_that_goes_on_too(
    served: Server, client: penstock.Client, context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, flags = tmp_path / "some.jsonl", ("--context", context, "--since", "1d", "--until", "1h", "--url", served.url)
    ago = [timedelta(days=1, seconds=-60), timedelta(hours=2), timedelta(hours=1, seconds=-60)]
    for number, each in enumerate(ago):
        client.append(context, "s", [penstock.event("T", number, time=datetime.now(UTC) - each)])
    with monkeypatch.context() as broken:
        broken.setattr(FileTarget, "finish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            called("export", path, *flags)
    # Two minutes later the first event would be too old, and the last one wanted.
    later = datetime.now(UTC) + timedelta(minutes=2)
    monkeypatch.setattr("penstock.cli.options.datetime", type("Later", (datetime,), {"now": lambda zone: later}))
    done = called("export", path, *flags, "--json")
    assert (done.code, done.err) == (0, "")
    assert done.lines[0]["resumed_events"] == 2
    assert [json.loads(line)["body"] for line in path.read_bytes().splitlines()] == [0, 1]
    assert called("export", path, *flags).code == 0
    assert [json.loads(line)["body"] for line in path.read_bytes().splitlines()] == [1, 2]


def test_a_file_below_dev_is_a_file(served: Server, few: int) -> None:
    if not Path("/dev/shm").is_dir():
        pytest.skip("this machine has no /dev/shm")
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        path = Path(folder) / "some.csv"
        path.write_bytes(b"what was there")
        assert called("export", path, "--context", "few", "--to", 0, "--json", "--url", served.url).code == 0
        assert path.read_bytes().startswith(b"position,")
        refused = called("export", path, "--context", "few", "--url", "penstock://127.0.0.1:1")
        assert refused.code == 1
        assert path.read_bytes().startswith(b"position,")


def test_a_device_without_room_is_named(served: Server, few: int) -> None:
    done = called("export", "/dev/full", "--format", "csv", "--context", "few", "--url", served.url)
    assert (done.code, done.err) == (1, "penstock: /dev/full: no space left on device\n")


def test_nothing_in_an_export_moves_a_terminal(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "s", [penstock.event("T", b"\x1b[31m \xc2\x9b \r up\r\n", headers="\x7f\u202e")])
    for kind in ("csv", "jsonl"):
        with terminal_output() as (number, shown):
            done = called("export", "-", "--format", kind, "--context", context, "--url", served.url, stdout=number)
            text = shown()
        assert (done.code, done.err.startswith("standard output: 1 event")) == (0, True), done.err
        assert not re.search(r"[\x1b\x9b\x7f\u202e]", text)
        assert "u001b[31m" in text


def test_what_is_escaped_for_a_terminal_is_the_same_json() -> None:
    line = '{"a":"\x9b\x7f\u2028é\U0001f600"}\r\n'
    fit = for_terminal(line.encode()).decode()
    assert fit == '{"a":"\\u009b\\u007f\\u2028é\U0001f600"}\r\n'
    assert json.loads(fit) == json.loads(line)


def test_parquet_is_not_for_terminals(served: Server) -> None:
    with terminal_output() as (number, _):
        done = called("export", "-", "--format", "parquet", "--url", served.url, stdout=number)
    assert (done.code, done.err.startswith("penstock: Parquet is binary")) == (2, True), done.err


def test_an_event_that_cannot_be_a_cloudevent_is_named(served: Server, client: penstock.Client, tmp_path: Path) -> None:
    position = client.append("odd", "a\x01b", [penstock.event("T")]).position
    done = called("export", tmp_path / "odd.ce", "--context", "odd", "--url", served.url)
    assert done.code == 1
    assert f"the event at position {position}: it cannot be a CloudEvent: subject has a control" in done.err


@pytest.mark.parametrize(
    ("path", "flags", "code", "reason"),
    [
        ("nowhere/a.jsonl", (), 1, "nowhere/a.jsonl: no such file or directory"),
        (".", ("--format", "csv"), 1, "is a directory"),
        ("a.txt", (), 2, "say --format"),
        ("a.csv", ("--since", "yesterday"), 2, "is not a time"),
        ("a.csv", ("--context", "x" * 300), 2, "--context has 300 bytes"),
        ("a.csv", ("--url", "penstock://127.0.0.1:1"), 1, "no server answers at penstock://127.0.0.1:1"),
        ("a.csv", ("--data", "nowhere"), 1, "nowhere"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    served: Server, tmp_path: Path, path: str, flags: tuple[str, ...], code: int, reason: str
) -> None:
    where = flags if "--url" in flags or "--data" in flags else (*flags, "--url", served.url)
    done = called("export", tmp_path / path, *where)
    assert done.code == code
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_an_export_of_another_store_is_not_gone_on_with(served: Server, few: int, tmp_path: Path) -> None:
    path = tmp_path / "some.jsonl"
    (tmp_path / "some.jsonl.partial").write_bytes(b"")
    note = {"export": {"store": "another"}, "next": 1, "events": 0, "bounds": {"last": 1}, "bytes": 0}
    (tmp_path / "some.jsonl.partial.json").write_text(sealed(note))
    with pytest.raises(FileRefused, match="of another export"):
        export_events(served.url, str(path), Format.JSONL, Selection("few"), lambda *_: None)


@pytest.mark.parametrize("kind", [Format.JSONL, Format.PARQUET])
def test_a_history_that_is_sealed_meanwhile_is_exported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format
) -> None:
    """Sealing merges records: one that holds where a page begins may hold what the page before had too."""
    with server(tmp_path / "data", seal=False) as own, penstock.connect(own.url) as client:
        client.append_many(("shop", "s", [penstock.event("T", number)]) for number in range(5000))
    monkeypatch.setattr("penstock.history.source.STEP_EVENTS_MAX", 1000)
    history = open_history(store_url(tmp_path / "data"))
    with closing(history):
        found = pages(history, kind, Selection(), 1, 5000)
        positions = positions_of(next(found)[0])
        with server(tmp_path / "data") as own, penstock.connect(own.url) as client:
            until(lambda: client.stats().sealed > 4000)
        positions += [position for events, _ in found for position in positions_of(events)]
    assert positions == list(range(1, 5001))


def positions_of(events: Any) -> list[int]:
    """Of a list of events, or of a batch of Arrow's."""
    return [event.position for event in events] if isinstance(events, list) else events["position"].to_pylist()


def test_a_store_on_postgresql_is_exported_and_filled_without_a_server(schemas: Schemas, tmp_path: Path) -> None:
    with closing(PostgresStore(schemas.url())) as store:
        append(store, "order-1", some(2))
    path = tmp_path / "all.jsonl"
    done = called("export", path, "--url", schemas.url())
    assert (done.code, done.out) == (0, f"{path}: 2 events, up to position 2\n")
    for new in (2, 0):
        assert called("import", path, "--url", schemas.url(), "--json").lines[0]["new_events"] == new
    again = called("export", "-", "--from", 3, "--url", schemas.url())
    ids = [json.loads(line)["id"] for line in path.read_bytes().splitlines()]
    assert [line["id"] for line in again.lines] == ids
