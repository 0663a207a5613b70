"""`penstock import`: from files of all formats, once, whatever ends it in the middle."""

import json
import re
import resource
import signal
import subprocess
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from uuid import UUID

import pexpect  # type: ignore[import-untyped]
import pytest

import penstock
from penstock.event_json import Defaults
from penstock.interchange.formats import FileRefused, Format
from penstock.interchange.importer import Source, Spool, import_file, rehearsed, survey
from penstock.model import Event, NewEvent
from penstock.model.times import KIND_LOCAL, KIND_UTC, stamp_of
from penstock.testing import Server, server
from tests.cli.support import called, run, shell, variables
from tests.proxy import ASKED, Proxy
from tests.test_server import PATIENCE_S, PENSTOCK, until

MANY = 8_000
HALF_BYTES = 400_000
AWKWARD = [
    ("order-1", NewEvent(bytes(range(16)), stamp_of(639_000_000_000_000_001, KIND_UTC), "Placed", None, b'{"a":1}')),
    ("order-2", NewEvent(bytes(16), stamp_of(1), "Größe", '{"user":7}', b"\x00\xff binary")),
    ("order-1", NewEvent(b"\xff" * 16, stamp_of(2), "Paid", "plain, text", b'{ "spaced": 1.0e5 }')),
    ('o "x", y', NewEvent(b"\x01" * 16, stamp_of(3), "a b", '{"deep":{"x":[1]}}', "line\r\nline\u2028".encode())),
    ("empty", NewEvent(b"\x02" * 16, stamp_of(4), "Empty", None, b"")),
]


def kept(event: Event) -> tuple[object, ...]:
    """What an import keeps of an event."""
    return event.context, event.stream, event.id, event.stamp, event.type, event.headers, event.body


def history(url: str, context: str) -> list[tuple[object, ...]]:
    found: list[tuple[object, ...]] = []
    with penstock.connect(url) as client:
        position, end = 1, False
        while not end:
            page = client.read_page(position, context=context)
            found += map(kept, page.events)
            position, end = page.next, page.end
    return found


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Many events of a few streams, without a context."""
    path = tmp_path_factory.mktemp("many") / "many.jsonl"
    with path.open("w") as file:
        for number in range(MANY):
            event = {"stream": f"order-{number // 3 % 100}", "type": "Placed", "id": str(UUID(int=number))}
            file.write(json.dumps({**event, "body": {"number": number}}) + "\n")
    return path


def assert_exactly_once(url: str, context: str) -> None:
    assert [UUID(bytes=row[2]).int for row in history(url, context)] == list(range(MANY))  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", list(Format))
def test_what_was_exported_comes_back_the_same(
    served: Server, client: penstock.Client, context: str, tmp_path: Path, kind: Format
) -> None:
    for stream, event in AWKWARD:
        local = event._replace(stamp=stamp_of(event.stamp & 0xFFFF, KIND_LOCAL))
        client.append(context, stream, [event if kind is Format.CLOUDEVENTS else local])
    path = tmp_path / f"all.{kind}"
    assert called("export", path, "--context", context, "--url", served.url).code == 0
    with server() as other:
        done = called("import", path, "--url", other.url)
        assert (done.code, done.out) == (0, f"{path}: 5 events imported\n")
        assert history(other.url, context) == history(served.url, context)


def test_what_read_prints_can_be_imported_from_a_pipe(served: Server, client: penstock.Client, context: str) -> None:
    for stream, event in AWKWARD:
        client.append(context, stream, [event])
    with server() as other:
        line = f"penstock read {context} --json --url {served.url} | penstock import - --json --url {other.url}"
        done = shell(line)
        assert done.code == 0, done.err
        assert done.lines == [{"file": "standard input", "format": "jsonl", "events": 5, "new_events": 5}]
        found = history(other.url, context)
    assert [row[:3] for row in found] == [row[:3] for row in history(served.url, context)]


def test_logs_are_made_for_their_messages(served: Server, client: penstock.Client, tmp_path: Path) -> None:
    client.log("imported").create()
    client.log("imported").append([1, {"a": [2]}])
    path = tmp_path / "logs.jsonl"
    assert called("export", path, "--context", "remits", "--filter", "imported", "--url", served.url).code == 0
    with server() as other, penstock.connect(other.url) as reader:
        assert called("import", path, "--url", other.url).code == 0
        assert reader.log("imported").show().messages == 2
        assert [info.name for info in reader.contexts()] == ["remits"]


def test_the_same_file_is_imported_once_also_by_two_at_a_time(served: Server, context: str, lines: Path) -> None:
    both = [begun(lines, context, served.url) for _ in range(2)]
    ended = [process.communicate(timeout=PATIENCE_S) for process in both]
    assert [(process.returncode, told) for process, (_, told) in zip(both, ended, strict=True)] == [(0, b"")] * 2
    assert_exactly_once(served.url, context)
    again = called("import", lines, "--context", context, "--url", served.url, "--json")
    assert again.lines == [{"file": str(lines), "format": "jsonl", "events": MANY, "new_events": 0}]


def test_a_file_is_imported_again_under_another_name(served: Server, context: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"stream":"s","type":"T"}\n')
    for name, new in (("", 1), ("", 0), ("again", 1), ("again", 0)):
        done = called("import", path, "--context", context, "--name", name, "--json", "--url", served.url)
        assert done.lines[0]["new_events"] == new


def begun(lines: Path, context: str, url: str) -> "subprocess.Popen[bytes]":
    command = [*PENSTOCK, "import", str(lines), "--context", context]
    return subprocess.Popen(command, env=variables(url), stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def events_in(client: penstock.Client, context: str) -> int:
    return next((info.events for info in client.contexts() if info.name == context), 0)


class Failing(Proxy):
    """A network that is gone for good after so many bytes."""

    def cut(self) -> None:
        self.is_refusing = True
        super().cut()

    @property
    def url(self) -> str:
        return f"penstock://127.0.0.1:{self.port}"


@pytest.fixture
def failing(served: Server) -> Iterator[Failing]:
    with Failing(int(served.url.rpartition(":")[2])) as proxy:
        # Of the many events, these bytes are about half.
        proxy.arm(ASKED, HALF_BYTES)
        yield proxy


def test_a_killed_import_goes_on_where_it_was(
    served: Server, client: penstock.Client, context: str, lines: Path, failing: Failing
) -> None:
    process = begun(lines, context, failing.url)
    until(lambda: failing.is_refusing)
    process.kill()
    process.communicate(timeout=PATIENCE_S)
    before = events_in(client, context)
    assert 0 < before < MANY
    done = called("import", lines, "--context", context, "--url", served.url, "--json")
    assert done.lines[0]["new_events"] == MANY - before
    assert_exactly_once(served.url, context)


def test_an_interrupted_import_says_how_to_go_on(
    served: Server, client: penstock.Client, context: str, lines: Path, failing: Failing
) -> None:
    process = begun(lines, context, failing.url)
    until(lambda: failing.is_refusing)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    assert told.startswith(b"penstock: interrupted: ")
    assert told.endswith(b"run the same command again to continue\n")
    assert told.count(b"\n") == 1
    assert called("import", lines, "--context", context, "--url", served.url).code == 0
    assert_exactly_once(served.url, context)


def test_a_server_that_stays_away_is_told_with_how_to_go_on(
    served: Server, context: str, lines: Path, failing: Failing, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as impatient:
        impatient.setattr("penstock.interchange.sender.TIMEOUT_S", 1.0)
        done = called("import", lines, "--context", context, "--url", failing.url)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert re.search(r": [1-9][\d,]+ of the 8,000 events of \S+ are imported; run the same command again", done.err)
    assert called("import", lines, "--context", context, "--url", served.url).code == 0
    assert_exactly_once(served.url, context)


def test_an_import_outlives_its_server(context: str, lines: Path) -> None:
    with server() as own, Failing(int(own.url.rpartition(":")[2])) as proxy:
        # So it is half-way for sure when its server is lost.
        proxy.arm(ASKED, HALF_BYTES)
        process = begun(lines, context, proxy.url)
        until(lambda: proxy.is_refusing)
        own.kill()
        own.restart()
        proxy.is_refusing = False
        _, told = process.communicate(timeout=PATIENCE_S)
        assert (process.returncode, told) == (0, b"")
        assert_exactly_once(own.url, context)


def test_a_store_without_a_server_can_be_filled(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("amount\n3\n4\n")
    flags = ("--context", "shop", "--stream", "s", "--type", "T", "--data", tmp_path / "data")
    assert run("import", path, *flags).out == f"{path}: 2 events imported\n"
    done = run("export", "-", "--data", tmp_path / "data")
    assert [line["body"] for line in done.lines] == [{"amount": "3"}, {"amount": "4"}]


def test_a_progress_bar_shows_the_rate_and_the_time_left(served: Server, context: str, lines: Path) -> None:
    arguments = ["-m", "penstock", "import", str(lines), "--context", context]
    process = pexpect.spawn(PENSTOCK[0], arguments, env=variables(served.url), timeout=PATIENCE_S, dimensions=(24, 120))
    process.expect(r"checking .*many.jsonl")
    process.expect(r"importing .*/8000.*\d/s.*\d:\d\d:\d\d")
    process.expect("8,000 events imported")
    process.expect(pexpect.EOF)
    process.close()
    assert process.exitstatus == 0


# --- what cannot be imported ----------------------------------------------------------------------------------


def test_nothing_of_a_broken_file_is_imported_and_all_of_it_after_a_fix(
    served: Server, client: penstock.Client, context: str, lines: Path, tmp_path: Path
) -> None:
    path, sound = tmp_path / "broken.jsonl", lines.read_text()
    path.write_text(sound + '{"stream": "s", "type": 7}\n')
    done = run("import", lines, path, "--context", context, url=served.url)
    assert done.code == 1
    assert done.err == (
        f"penstock: {path}, line 8001, column 25: 'type' is 7, where text belongs; nothing of this file was imported\n"
    )
    assert not events_in(client, context)
    path.write_text(sound)
    assert called("import", path, "--context", context, "--url", served.url).code == 0
    assert_exactly_once(served.url, context)


def test_an_event_that_the_server_would_refuse_is_found_before_anything_is_written(
    context: str, lines: Path, tmp_path: Path
) -> None:
    path = tmp_path / "large.jsonl"
    path.write_text(lines.read_text() + json.dumps({"stream": "s", "type": "T", "text": "x" * 5000}) + "\n")
    with server(event_bytes_max="4KiB") as own, penstock.connect(own.url) as client:
        done = called("import", path, "--context", context, "--url", own.url)
        reason = "5001 is more than event_bytes_max allows (4096); nothing of this file was imported"
        assert (done.code, done.err) == (1, f"penstock: {path}, line 8001, column 1: {reason}\n")
        assert not client.stats().head


def test_of_many_files_none_is_imported_if_the_server_would_refuse_one(context: str, tmp_path: Path) -> None:
    small, large = tmp_path / "small.jsonl", tmp_path / "large.jsonl"
    for path, text in ((small, "x"), (large, "x" * 5000)):
        path.write_text(json.dumps({"stream": "s", "type": "T", "text": text}) + "\n")
    with server(event_bytes_max="4KiB") as own, penstock.connect(own.url) as client:
        done = called("import", small, large, "--context", context, "--url", own.url)
        assert (done.code, done.out) == (1, "")
        assert f"{large}, line 1, column 1: 5001 is more than event_bytes_max allows" in done.err
        assert not client.stats().head


def test_of_many_files_only_what_is_said_of_them_is_kept(served: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"stream":"s","type":"T"}\n')
    found = survey(Source("a", path, Format.JSONL, Defaults("shop")), "", lambda _: None)
    assert any(found.largest)
    assert not rehearsed(found, served.url).largest


@pytest.mark.parametrize("room", [1 << 20, 300, 0])
def test_a_spool_without_room_only_costs_time(
    served: Server, context: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    monkeypatch.setattr("penstock.interchange.importer.SPOOL_BYTES_MAX", room)
    monkeypatch.setattr("penstock.interchange.importer.BATCH_EVENTS_MAX", 2)
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"stream":"s{at % 2}","type":"T","body":{at}}}\n' for at in range(7)))
    with closing(Spool()) as spool:
        found = survey(Source("a", path, Format.JSONL, Defaults(context)), "", lambda _: None, spool)
        assert (found.kept is not None) == (room == 1 << 20)
        assert [import_file(found, served.url, lambda _: None, spool) for _ in range(2)] == [7, 0]
    assert [row[-1] for row in history(served.url, context)] == [b"%d" % at for at in range(7)]


def test_a_full_disk_for_temporary_files_only_costs_time(context: str, served: Server, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("".join(f'{{"stream":"s","type":"T","body":{at}}}\n' for at in range(5000)))

    def tiny() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))

    command = [*PENSTOCK, "import", str(path), "--context", context]
    env = variables(served.url)
    done = subprocess.run(command, env=env, capture_output=True, preexec_fn=tiny, timeout=PATIENCE_S)
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(history(served.url, context)) == 5000


def test_a_wrong_address_is_told_before_anything_is_read(tmp_path: Path) -> None:
    done = called("import", tmp_path / "nowhere.jsonl", "--url", "http://x")
    assert done.code == 2
    assert "http://x" in done.err


def test_a_file_that_somebody_writes_to_is_not_imported(served: Server, context: str, tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"stream":"s","type":"T"}\n')
    found = survey(Source("a", path, Format.JSONL, Defaults(context)), "", lambda _: None)
    path.write_text('{"stream":"s","type":"T"}\n' * 2)
    with pytest.raises(FileRefused, match="changed it during"):
        import_file(found, served.url, lambda _: None)


def test_nothing_of_standard_input_is_left_when_it_is_ended(tmp_path: Path) -> None:
    command = [*PENSTOCK, "import", "-", "--context", "shop"]
    env = variables("penstock://127.0.0.1:1", TMPDIR=str(tmp_path))
    process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"{}\n" * 1_000_000)
    process.stdin.flush()
    until(lambda: any(file.stat().st_size for file in tmp_path.iterdir()))
    process.terminate()
    _, told = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, told) == (143, b"")
    assert list(tmp_path.iterdir()) == []


def test_a_temporary_folder_without_room_is_named(tmp_path: Path) -> None:
    command = [*PENSTOCK, "import", "-", "--context", "shop"]
    env = variables("penstock://127.0.0.1:1", TMPDIR=str(tmp_path))
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
    done = subprocess.run(command, env=env, input=b"{}\n" * 100_000, capture_output=True, preexec_fn=limit)
    assert (done.returncode, done.stdout) == (1, b"")
    assert re.fullmatch(rb"penstock: %b/penstock-import-\w+: file too large\n" % bytes(tmp_path), done.stderr)
    assert list(tmp_path.iterdir()) == []


def test_standard_input_is_read_once() -> None:
    done = called("import", "-", "-")
    assert (done.code, done.err) == (2, "penstock: standard input can be read only once\n")


def test_files_can_be_looked_through_without_a_server(tmp_path: Path, lines: Path) -> None:
    done = called("import", lines, "--context", "shop", "--check")
    assert (done.code, done.out) == (0, f"{lines}: 8,000 events, nothing wrong\n")


@pytest.mark.parametrize(
    ("name", "content", "flags", "code", "reason"),
    [
        ("a.jsonl", b"{}", (), 1, "line 1, column 1: 'context' is missing; say --context"),
        ("a.jsonl", b'{"context":', (), 1, "line 1, column 12: expecting value"),
        ("a.csv", b"stream\n\xff\n", ("--context", "c", "--type", "t"), 1, "line 2, column 1: it is not UTF-8"),
        ("a.ce", b'{"specversion":"1.0"}', (), 1, "line 1, column 1: 'id' is missing"),
        ("a.parquet", b"PAR1 no, it is not", (), 1, "the file as a whole: it cannot be read as Parquet"),
        ("a.txt", b"", (), 2, "say --format jsonl|csv|parquet|cloudevents"),
        ("a.jsonl", b"", ("--context", ""), 2, "--context is empty"),
        ("a.jsonl", None, (), 1, "no such file or directory"),
        (
            "a.jsonl",
            b'{"type":"t"}',
            ("--context", "c", "--stream", "s", "--url", "penstock://127.0.0.1:1"),
            1,
            "no server",
        ),
        ("a.jsonl", b'{"type":"t"}', ("--context", "c", "--stream", "s", "--url", "http://x"), 2, "no address"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path, name: str, content: bytes | None, flags: tuple[str, ...], code: int, reason: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    done = called("import", tmp_path / name, *flags)
    assert done.code == code
    assert reason in done.err
    assert done.err.count("\n") == 1
