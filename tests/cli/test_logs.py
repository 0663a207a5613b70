"""`penstock log`: made, filled, read and deleted."""

import itertools
import json
import signal
import subprocess

import pytest

import penstock
from penstock.testing import Server
from tests.cli.support import called, run, shell, variables
from tests.test_server import PATIENCE_S, PENSTOCK, until

_numbers = itertools.count(1)


@pytest.fixture
def log() -> str:
    """The name of a log that nobody else uses."""
    return f"readings-{next(_numbers)}"


def test_a_log_is_made_filled_read_and_deleted(served: Server, log: str) -> None:
    assert run("log", "add", log, url=served.url).out == f"log {log} created\n"
    assert called("log", "add", log, "--url", served.url).out == f"log {log} exists already\n"
    assert run("log", "append", log, '{"celsius": 4}', url=served.url).out == "appended 1 message\n"
    assert run("log", "read", log, url=served.url).lines == [{"celsius": 4}]
    shown = called("log", "show", log, "--json", "--url", served.url)
    assert '"messages": 1' in shown.out
    listed = called("log", "list", "--json", "--url", served.url)
    assert (log, 1) in [(line["log"], line["messages"]) for line in listed.lines]
    assert f"{log}" in called("log", "list", "--url", served.url).out
    gone = called("log", "delete", log, "--yes", "--url", served.url)
    assert gone.out == f"deleted log {log}, with 1 message and 0 iterators\n"
    assert called("log", "show", log, "--url", served.url).err == f"penstock: no log {log}\n"


def test_json_lines_come_and_go_through_pipes(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    line = f"seq 0 2999 | penstock log append {log} && penstock log read {log} --all | head -1"
    assert shell(line, served.url).out == "appended 3,000 messages\n0\n"
    assert run("log", "read", log, "--all", url=served.url).lines == list(range(3000))


def test_messages_are_numbered_from_0_also_in_a_log_that_was_made_again(
    served: Server, client: penstock.Client, log: str
) -> None:
    for values in (["old"] * 5, list(range(20))):
        client.log(log).delete()
        client.log(log).create()
        client.log(log).append(values)
    for flags, found in (
        ((), range(10)),
        (("--from", 18), [18, 19]),
        (("--from", 20), []),
        (("--last", "-n", 3), [17, 18, 19]),
        (("--from", 4, "--count", 2), [4, 5]),
    ):
        assert called("log", "read", log, *flags, "--url", served.url).lines == list(found)


def test_lines_before_a_broken_one_are_appended(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    done = run("log", "append", log, url=served.url, stdin='1\n\n{"a": 2}\n{"a": 3,}\n4\n')
    assert (done.code, done.out) == (1, "")
    assert done.err == (
        "penstock: line 4: column 9: expecting property name enclosed in double quotes; "
        "3 lines before it are written, no more\n"
    )
    assert client.log(log).show().messages == 2


def test_a_line_that_would_lose_something_is_refused(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    done = run("log", "append", log, url=served.url, stdin='7\n{"a":1,"a":2}\n8\n')
    assert (done.code, done.out) == (1, "")
    assert done.err == ("penstock: line 2: a name is there twice; 1 line before it is written, no more\n")
    assert client.log(log).show().messages == 1


def test_ctrl_c_says_how_many_messages_are_appended(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    command = [*PENSTOCK, "log", "append", log]
    process = subprocess.Popen(command, env=variables(served.url), stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(b"1\n2\n")
    process.stdin.flush()
    until(lambda: client.log(log).show().messages == 2)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130
    # The answer may have been on its way.
    assert told in (
        b"penstock: interrupted: 2 lines written\n",
        b"penstock: interrupted: 0 lines written, and perhaps those up to line 2, all or none of them\n",
    )


def test_what_was_done_is_told_to_programs_too(served: Server, log: str) -> None:
    def told(*arguments: str) -> object:
        return json.loads(called("log", *arguments, "--json", "--url", served.url).out)

    assert told("add", log) == {"log": log, "made": True}
    assert told("add", log) == {"log": log, "made": False}
    assert told("append", log, "7") == {"log": log, "messages": 1}
    assert told("delete", log, "--yes") == {"log": log, "messages": 1, "iterators": []}


def test_what_json_does_not_have_is_shown_all_the_same(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    client.log(log).append([b"\x00\xff", {1: float("nan")}, "\x1b[31mred"])
    done = run("log", "read", log, url=served.url)
    assert done.lines == ["AP8", {"1": None}, "\x1b[31mred"]
    assert "\x1b" not in done.out


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("show", "nobody"), 1, "no log nobody"),
        (("append", "nobody", "1"), 1, "no log nobody; create it with: penstock log add nobody"),
        (("append", "nobody", "{"), 2, "the message is not JSON: column 2"),
        (("append", "nobody", "NaN"), 2, "NaN is not JSON"),
        (("append", "nobody", '{"a": 1, "a": 2}'), 2, "a name is there twice"),
        (("append", "nobody", "[1e999]"), 2, "1e999 is too large"),
        (("add", "two\nlines"), 2, "cannot be printed: two\\nlines"),
        (("add", ""), 2, "NAME is empty"),
        (("read", "nobody", "--last", "--all"), 2, "--last can be combined with --count only"),
        (("delete", "nobody", "--yes"), 1, "no log nobody"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(served: Server, arguments: tuple[str, ...], code: int, reason: str) -> None:
    done = called("log", *arguments, "--url", served.url)
    assert (done.code, done.out) == (code, "")
    assert reason in done.err
    assert done.err.count("\n") == 1


def test_nothing_is_deleted_without_being_asked(served: Server, client: penstock.Client, log: str) -> None:
    client.log(log).create()
    done = run("log", "delete", log, url=served.url)
    assert done.code == 2
    assert "use --yes" in done.err
    assert log in client.logs()
