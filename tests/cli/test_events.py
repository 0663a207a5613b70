"""Append, read, tail, contexts, streams and stats, for people, for programs and in pipes."""

import json
import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec import structs

import penstock
from penstock.model.times import TICKS_PER_SECOND, now_ticks
from penstock.testing import Server
from tests.cli.support import called as command
from tests.cli.support import run, run_process, shell, variables


def test_the_lines_of_the_first_five_minutes_work_as_they_stand(served: Server) -> None:
    done = shell(f"""penstock append shop order-2 OrderPlaced '{{"amount": 7}}' --url {served.url}""")
    assert (done.code, done.err) == (0, "")
    assert re.fullmatch(r"position \d+, event 1 of shop/order-2\n", done.out)
    done = shell(f"penstock read shop order-2 --json --url {served.url}")
    assert (done.code, done.err) == (0, "")
    (event,) = done.lines
    assert list(event) == [
        "position",
        "sequence",
        "context",
        "stream",
        "type",
        "id",
        "timestamp",
        "recorded_at",
        "headers",
        "body",
    ]
    assert (event["sequence"], event["type"], event["headers"], event["body"]) == (
        1,
        "OrderPlaced",
        None,
        {"amount": 7},
    )
    done = shell(f"penstock stats --json --url {served.url}")
    assert (done.code, done.err) == (0, "")
    assert "shop" in [found["name"] for found in json.loads(done.out)["contexts"]]


# ---------------------------------------------------------------- append


def test_everything_of_an_event_can_be_given(served: Server, client: penstock.Client, context: str) -> None:
    number, time = "5c0f4c4e-6a5d-4a53-8a6c-2f1d1f7c6f55", "2026-11-15T06:00:00.1234567Z"
    given = ("--headers", '{"user": 7}', "--id", number, "--time", time, "--expected", "new", "--json")
    code, out, err = command("append", context, "order-1", "Placed", "[1, 2]", *given, "--url", served.url)
    assert (code, err) == (0, "")
    (event,) = client.read_stream(context, "order-1")
    place = {"position": event.position, "sequence": 1, "context": context, "stream": "order-1", "id": number}
    assert json.loads(out) == place
    assert (event.type, event.body, event.headers) == ("Placed", b"[1, 2]", '{"user": 7}')
    shown = json.loads(command("read", context, "--json", "--url", served.url)[1])
    assert (shown["id"], shown["timestamp"], shown["headers"], shown["body"]) == (number, time, {"user": 7}, [1, 2])


@pytest.mark.parametrize("expected", ["1", "new"])
def test_a_conflicting_version_is_told_and_nothing_is_written(
    served: Server, client: penstock.Client, context: str, expected: str
) -> None:
    client.append(context, "order-1", [penstock.event("Placed")])
    done = run("append", context, "order-1", "Placed", "--expected", expected, url=served.url)
    found = f"stream {context}/order-1 is at version 1: its next event gets sequence 2, expected 1"
    assert done == (1, "", f"penstock: {found}; nothing was written, read it again and retry\n")
    assert len(list(client.read_stream(context, "order-1"))) == 1


def test_a_line_that_names_another_place_than_the_command_is_refused(
    served: Server, client: penstock.Client, context: str
) -> None:
    # Some editors put a mark before the first line.
    sound = b'\xef\xbb\xbf{"context": "%s", "stream": "s", "type": "T"}\n' % context.encode()
    other = b'{"context": "other", "stream": "s", "type": "T"}\n'
    done = run("append", context, "-", url=served.url, stdin=sound + other)
    reason = f'line 2: context is "other", but the command says "{context}"; 1 line before it is written, no more'
    assert (done.code, done.err) == (1, f"penstock: {reason}\n")
    done = run("append", context, "t", "-", url=served.url, stdin=sound.removeprefix(b"\xef\xbb\xbf"))
    assert (done.code, done.err) == (
        1,
        'penstock: line 1: stream is "s", but the command says "t"; nothing was written\n',
    )
    assert [event.stream for event in client.read_all(context=context)] == ["s"]


def test_the_time_of_an_event_may_be_so_long_ago(served: Server, client: penstock.Client, context: str) -> None:
    assert command("append", context, "s", "T", "--time", "2h", "--url", served.url)[0] == 0
    (event,) = client.read_stream(context, "s")
    assert (now_ticks() - event.ticks) / TICKS_PER_SECOND == pytest.approx(7200, abs=60)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("s", "T", '{"amount": 7'), "BODY is not JSON: column 13: expecting ',' delimiter; use --text to keep"),
        (("s", "T", '{"a": 1, "a": 2}'), "BODY is not JSON: a name is there twice"),
        (("s", "T", "--expected", "soon"), "--expected 'soon' is not a version"),
        (("s", "T", "--expected", "0"), "--expected '0' is not a version"),
        (("s", "T", "--time", "yesterday"), "--time 'yesterday' is not a time"),
        (("s", "T", "--id", "7"), "invalid value for '--id'"),
        (("s", "T", "--headers", "{half"), "--headers is not JSON: column 2"),
        (("", "T"), "STREAM is empty (see penstock append --help)"),
        (("s", ""), "TYPE is empty"),
        (("s", "T", "--headers", "\udcff"), "--headers is not valid Unicode"),
        (("s", "\udcff"), "TYPE is not valid Unicode"),
        (("s", "T", "--data", ""), "'--data': must not be empty"),
        (("s",), "an event needs a CONTEXT, a STREAM and a TYPE"),
        (("-", "T"), "- for JSON lines must come last"),
    ],
)
def test_an_event_that_cannot_be_meant_is_wrong_use(arguments: tuple[str, ...], reason: str) -> None:
    # Nobody is asked: there is no server at this address.
    code, out, err = command("append", "shop", *arguments, "--url", "penstock://127.0.0.1:1")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_a_body_is_kept_as_it_is_given(served: Server, client: penstock.Client, context: str) -> None:
    run("append", context, "s", "T", "-", url=served.url, stdin=b"\xff\x00raw")
    for text in ("", "plain", " [1,\n2] "):
        assert command("append", context, "s", "T", text, "--url", served.url)[0] == 0
    assert command("append", context, "s", "T", "{half", "--text", "--url", served.url)[0] == 0
    bodies = [event.body for event in client.read_stream(context, "s")]
    assert bodies == [b"\xff\x00raw", b"", b"plain", b" [1,\n2] ", b"{half"]


def test_lines_are_appended_in_their_order(served: Server, client: penstock.Client, context: str) -> None:
    streams = [f"s{number % 3}" for number in range(1200)]
    lines = "".join(
        json.dumps({"stream": name, "type": "T", "body": number}) + "\n" for number, name in enumerate(streams)
    )
    done = run("append", context, "-", url=served.url, stdin=lines)
    assert done == (0, "appended 1,200 events\n", "")
    found = list(client.read_all(context=context))
    assert [(event.stream, event.json()) for event in found] == [(name, n) for n, name in enumerate(streams)]


def test_a_history_is_copied_through_a_pipe(
    served: Server, client: penstock.Client, context: str, tmp_path: Path
) -> None:
    events = [
        penstock.event("A", {"ä": [1.5, None]}, {"user": 7}),
        penstock.event("B", b"\xff\xfe"),
        penstock.event("C", "text\x1b[31m\n", "no JSON"),
        penstock.event("D", '"a JSON text"'),
        penstock.event("E"),
    ]
    client.append(context, "one", events)
    client.append(context, "two", [penstock.event("F", 1)])
    copying = f"penstock read {context} --json | penstock append - --json --data {tmp_path / 'copy'}"
    done = shell(copying, served.url)
    assert (done.code, done.err) == (0, "")
    assert [(line["position"], line["stream"]) for line in done.lines] == [
        *((n, "one") for n in range(1, 6)),
        (6, "two"),
    ]
    with penstock.connect(f"sqlite:///{tmp_path / 'copy'}") as copy:
        copied = [structs.astuple(event)[1:9] for event in copy.read_all()]
    assert copied == [structs.astuple(event)[1:9] for event in client.read_all(context=context)]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        (b'{"stream": "a", "type": }', "line 3: column 25: expecting value"),
        (b'{"stream": "a", "type": "T", "bdy": 1}', "line 3: bdy is no member of an event"),
        (b'{"type": "T"}', "line 3: stream is missing"),
        (b'{"stream": "a\xff", "type": "T"}', "line 3: column 14: it is not UTF-8"),
    ],
)
def test_a_line_that_is_no_event_is_named_and_those_before_it_are_written(
    served: Server, client: penstock.Client, context: str, broken: bytes, reason: str
) -> None:
    sound = b'{"stream": "a", "type": "T"}\n'
    done = run("append", context, "-", url=served.url, stdin=2 * sound + broken + b"\n" + sound)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert done.err.startswith(f"penstock: {reason}")
    assert done.err.endswith("; 2 lines before it are written, no more\n")
    assert len(list(client.read_stream(context, "a"))) == 2


def test_a_line_that_the_server_refuses_is_named_and_those_before_it_are_written(
    served: Server, client: penstock.Client, context: str
) -> None:
    small = json.dumps({"stream": "a", "type": "T"}) + "\n"
    large = json.dumps({"stream": "a", "type": "T", "text": "x" * (9 << 20)}) + "\n"
    done = run("append", context, "-", url=served.url, stdin=small + small + large + small)
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1)
    assert re.match(r"penstock: line 3: .*event_bytes_max", done.err)
    assert done.err.endswith("; 2 lines before it are written, no more\n")
    assert len(list(client.read_stream(context, "a"))) == 2


def test_what_a_terminal_or_file_cannot_print_is_escaped(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "s", [penstock.event("T", {"name": "Zoë"})])
    ascii_only = variables(served.url, PYTHONIOENCODING="ascii")
    (event,) = run("read", context, "--json", env=ascii_only).lines
    assert event["body"] == {"name": "Zoë"}
    done = run_process("read", context, env=ascii_only)
    assert (done.code, done.err) == (0, "")
    assert r'{"name":"Zo\xeb"}' in done.out


# ---------------------------------------------------------------- read


@pytest.fixture(scope="module")
def history(client: penstock.Client) -> str:
    """Four events of known times in a context of their own."""

    def at(hour: int, kind: str, body: object) -> penstock.NewEvent:
        return penstock.event(kind, body, time=datetime(2026, 1, 1, hour, tzinfo=UTC))

    client.append("known", "order-1", [at(1, "Placed", 1), at(2, "Paid", 2)])
    client.append("known", "order-12", [at(3, "Placed", 3)])
    client.append("known", "cart", [at(4, "Filled", 4)])
    return "known"


@pytest.mark.parametrize(
    ("arguments", "bodies"),
    [
        ((), [1, 2, 3, 4]),
        (("order-1",), [1, 2]),
        (("order-1", "--backwards"), [2, 1]),
        (("order-1", "--backwards", "--limit", 1), [2]),
        (("order-1", "--from", 2), [2]),
        (("order-1", "--to", 1), [1]),
        (("order-1", "--type", "Paid"), [2]),
        (("--type", "Placed", "--type", "Filled"), [1, 3, 4]),
        (("--filter", "order-"), [1, 2, 3]),
        (("--since", "2026-01-01T02:00:00Z"), [2, 3, 4]),
        (("--until", "2026-01-01T02:00:00Z"), [1]),
        (("--since", "2026-01-01T03:00:00+01:00", "--until", "2026-01-01T04:00:00"), [2, 3]),
        (("--since", "1s"), []),
        (("--limit", 3), [1, 2, 3]),
        (("--limit", 0), []),
        (("nothing",), []),
    ],
)
def test_what_is_wanted_is_read(served: Server, history: str, arguments: tuple[object, ...], bodies: list[int]) -> None:
    code, out, err = command("read", history, *arguments, "--json", "--url", served.url)
    assert (code, err) == (0, "")
    assert [json.loads(line)["body"] for line in out.splitlines()] == bodies


def test_positions_bound_what_is_read_of_a_history(served: Server, client: penstock.Client, history: str) -> None:
    first = next(client.read_all(context=history)).position
    given = ("--from", first + 1, "--to", first + 2, "--json", "--url", served.url)
    code, out, _ = command("read", history, *given)
    assert (code, [json.loads(line)["body"] for line in out.splitlines()]) == (0, [2, 3])


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("shop", "--backwards"), "--backwards works on one STREAM only"),
        (("shop", "s", "--filter", "x"), "but STREAM names one already"),
        (("shop", "--since", "soon"), "'soon' is not a time"),
        (("shop", "--from", "0"), "invalid value for '--from'"),
        (("shop", "--jsn"), "no such option: --jsn; did you mean --json? (see penstock read --help)"),
        (("shop", "--url", "http://127.0.0.1"), "'http://127.0.0.1' is no address of a Penstock"),
        (("shop", "--url", "penstock://127.0.0.1:1", "--data", "x"), "only one of --url and --data can be given"),
    ],
)
def test_what_cannot_be_understood_is_wrong_use(arguments: tuple[str, ...], reason: str) -> None:
    code, out, err = command("read", *arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_people_get_a_line_for_each_event_and_no_control_characters(
    served: Server, client: penstock.Client, context: str
) -> None:
    name = "\x1b[31mred\u202e\x9b"
    events = [penstock.event("T\x07", "two\nlines"), penstock.event("Raw", bytes(range(200, 256)))]
    client.append(context, name, events)
    done = run("read", context, url=served.url)
    assert (done.code, done.err) == (0, "")
    first, second = done.out.splitlines()
    assert first.endswith(rf"Z  {context}/\x1b[31mred\u202e\x9b 1  T\x07  two\nlines")
    assert second.endswith("2  Raw  «56 bytes»")
    assert json.loads(command("read", context, "--json", "--url", served.url)[1].splitlines()[0])["stream"] == name
    streams = command("streams", context, "--url", served.url)[1]
    assert r"\x1b[31mred\u202e\x9b" in streams
    assert all(letter.isprintable() or letter == "\n" for letter in done.out + streams)
    assert command("read", context, "nothing", "--url", served.url) == (0, "", "no events\n")


# ---------------------------------------------------------------- tail, contexts, streams, stats


def test_tail_shows_the_last_events(served: Server, client: penstock.Client, context: str) -> None:
    # Far enough back that the search for it takes several steps.
    client.append(context, "old", [penstock.event("First", 0)])
    client.append_many((f"{context}-other", "s", [penstock.event("T", n) for n in range(100)]) for _ in range(30))
    client.append(context, "new", [penstock.event("Last", number) for number in range(1, 4)])
    bodies = [line["body"] for line in run("tail", context, "--json", url=served.url).lines]
    assert bodies == [0, 1, 2, 3]
    for arguments, expected in (
        (("-n", 2), [2, 3]),
        (("-n", 0), []),
        (("old",), [0]),
        (("new", "-n", 2), [2, 3]),
        (("new", "-n", 2, "--type", "First"), []),
        (("new", "--type", "Last"), [1, 2, 3]),
        (("--type", "First"), [0]),
        (("--filter", "n", "-n", 1), [3]),
    ):
        code, out, err = command("tail", context, *arguments, "--json", "--url", served.url)
        assert (code, err, [json.loads(line)["body"] for line in out.splitlines()]) == (0, "", expected)


def test_contexts_and_streams_are_listed(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "order-1", [penstock.event("T"), penstock.event("T")])
    client.append(context, "cart-[bold]1", [penstock.event("T")])
    done = run("contexts", url=served.url)
    assert (done.code, done.err) == (0, "")
    assert re.search(rf"{context} +3 +2 +2 +\d+ bytes", done.out)
    lines = command("contexts", "--json", "--url", served.url)[1].splitlines()
    found = {info["name"]: info for info in map(json.loads, lines)}
    assert (found[context]["events"], found[context]["streams"]) == (3, 2)
    done = run("streams", context, url=served.url)
    assert re.search(r"cart-\[bold\]1 +1 *\n +order-1 +2", done.out)
    code, out, _ = command("streams", context, "--filter", "order", "--json", "--url", served.url)
    assert (code, out) == (0, '{"name":"order-1","events":2}\n')
    assert command("streams", "nobody", "--url", served.url) == (0, "", "no streams in context nobody\n")
    filtered = command("streams", context, "--filter", "zzz", "--url", served.url)
    assert filtered == (0, "", f"no streams whose names begin with zzz in context {context}\n")


def test_stats_are_the_same_from_a_server_and_from_its_store(served: Server, client: penstock.Client) -> None:
    client.append("stats", "s", [penstock.event("T")])
    asked = json.loads(command("stats", "--json", "--url", served.url)[1])
    read = json.loads(command("stats", "--json", "--data", served.data)[1])
    assert asked["contexts"] == read["contexts"]
    assert asked["store"]["store_id"] == read["store"]["store_id"]
    assert f"{client.stats().head:,} in" in command("stats", "--url", served.url)[1]
    code, _, err = command("stats", "--url", served.url, "--data", served.data)
    assert (code, err) == (2, "penstock: only one of --url, --data and --store can be given\n")


# ---------------------------------------------------------------- pipes


def test_a_reader_that_has_enough_ends_it_quietly(served: Server, client: penstock.Client, context: str) -> None:
    client.append_many((context, "s", [penstock.event("T", "x" * 1000) for _ in range(100)]) for _ in range(20))
    done = shell(f"penstock read {context} --json | head -1", served.url)
    # Without a reader the command fails as others do, and says nothing.
    assert (done.code, done.err, len(done.lines)) == (1, "", 1)


def test_output_that_cannot_be_written_is_told(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "s", [penstock.event("T")])
    done = shell(f"penstock read {context} > /dev/full", served.url)
    assert (done.code, done.err) == (1, "penstock: standard output: no space left on device\n")
