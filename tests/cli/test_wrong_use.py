"""What people do that nobody has thought of: closed files, empty names, narrow pipes, bodies without end."""

import subprocess
from pathlib import Path

import pytest

import penstock
from penstock.cli.read import BODY_LETTERS_MAX, body_text
from penstock.settings import TABLE
from penstock.testing import Server
from tests.cli.support import called as command
from tests.cli.support import run, shell, variables
from tests.test_server import PATIENCE_S, PENSTOCK

MANY = "9" * 30
"""More than anybody can count."""


def test_closed_standard_files_are_as_if_nobody_listened(served: Server, client: penstock.Client, context: str) -> None:
    for number, closed in enumerate(("<&-", "<&- >&- 2>&-"), 1):
        done = shell(f"penstock append {context} s T {number} {closed}", served.url)
        assert (done.code, done.err) == (0, "")
    assert shell(f"penstock read {context} >&-", served.url) == (0, "", "")
    assert [event.body for event in client.read_stream(context, "s")] == [b"1", b"2"]


def test_a_store_is_served_without_standard_input(tmp_path: Path) -> None:
    gates = ("--http", "127.0.0.1:0", "--res", "tcp://127.0.0.1:0", "--mq", "127.0.0.1:0", "--remits", "127.0.0.1:0")
    line = ["sh", "-c", 'exec "$@" <&-', "sh", *PENSTOCK, "serve", "--data", str(tmp_path / "data"), *gates]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=variables()) as process:
        assert process.stdout is not None
        said = process.stdout.readline()
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    assert said.startswith(b"penstock ready ")


@pytest.mark.parametrize(
    "arguments",
    [("append", "oops", "s", "T"), ("read",), ("erasures",), ("demo",), ("restore", "b"), ("sql", "select 1")],
    ids=" ".join,
)
def test_an_empty_directory_is_a_slip(
    arguments: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = command(*arguments, "--data", "")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "--data" in err
    assert "must not be empty" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("append", "", "s", "T"), "CONTEXT is empty"),
        (("read", ""), "CONTEXT is empty"),
        (("read", "shop", "\udcff"), "STREAM is not valid Unicode"),
        (("tail", "--type", ""), "--type is empty"),
        (("tail", "--filter", "\udcff"), "--filter is not valid Unicode"),
        (("queue", "consume", "shop", ""), "QUEUE is empty"),
        (("log", "add", ""), "NAME is empty"),
        (("iterator", "next", ""), "NAME is empty"),
    ],
    ids=str,
)
def test_names_that_are_none_are_wrong_use(arguments: tuple[str, ...], reason: str) -> None:
    # Nobody is asked: there is no server at this address.
    code, out, err = command(*arguments, "--url", "penstock://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith(f"penstock: {reason} (see penstock {arguments[0]}")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("read", "--limit", MANY), "'--limit': Input should be less than or equal to 9223372036854775807"),
        (("streams", "shop", "--limit", MANY), "less than or equal to"),
        (("tail", "-n", MANY), "less than or equal to"),
        (("log", "read", "x", "-n", MANY), "less than or equal to"),
        (("append", "shop", "s", "T", "--data", "\udcfe"), r"'--data': \udcfe is not valid Unicode"),
        (("serve", "--data", "\udcfe"), "is not valid Unicode"),
        (
            ("append", "shop", "s", "T", "--time", "0001-01-01T00:00:00+05:00"),
            "is not a time: in UTC it is outside the",
        ),
        (("append", "shop", "s\x1b", "T"), r"the name of a stream has characters that cannot be printed: s\x1b"),
        (("append", "shop\n", "-"), r"the name of a context has characters that cannot be printed: shop\n"),
        (("append", "shop", "s", "\u202eT"), "the name of a type has characters that cannot be printed"),
        (("sessions", "--http", "a..b:1"), "a..b:1 has no valid host name"),
    ],
    ids=lambda given: given if isinstance(given, str) else " ".join(map(ascii, given)),
)
def test_what_cannot_be_is_told_in_a_line(arguments: tuple[str, ...], reason: str) -> None:
    code, out, err = command(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert reason in err


def test_names_of_all_scripts_can_be_appended_to(served: Server, client: penstock.Client, context: str) -> None:
    name = "نامه\u200cها 👩\u200d🔬\u00a0é"
    assert command("append", context, name, name, "--url", served.url)[0] == 0
    assert [event.type for event in client.read_stream(context, name)] == [name]


def test_a_body_without_end_is_not_read_to_its_end(
    served: Server, client: penstock.Client, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.cli.append.LINE_BYTES_MAX", 1 << 20)
    given = ("append", context, "s", "T", "-", "--url", served.url)
    done = command(*given, stdin=b"x" * ((1 << 20) + 1))
    assert done == (1, "", "penstock: the body has more than 1 MiB; nothing was written\n")
    assert command(*given, stdin=b"x" * (1 << 20)).code == 0
    assert [len(event.body) for event in client.read_stream(context, "s")] == [1 << 20]


def test_what_is_no_session_is_not_asked_for() -> None:
    assert command("kick", "")[::2] == (2, "penstock: ID is empty (see penstock kick --help)\n")
    code, _, err = command("kick", "../x")
    assert (code, err) == (1, "penstock: there is no session ../x; list them with `penstock sessions`\n")


def test_completion_is_installed_for_one_shell_only() -> None:
    done = run("--install-completion", "zzz")
    assert (done.code, done.out) == (2, "")
    assert "takes no further arguments: 'zzz'" in done.err


def test_help_has_no_types_of_flags() -> None:
    for arguments in (("read", "--help"), ("queue", "--help"), ("queue", "list", "--help"), ("--help",)):
        assert "bool" not in command(*arguments)[1]


def test_piped_tables_are_not_wrapped(served: Server, client: penstock.Client, context: str) -> None:
    rows = run("settings").out.splitlines()
    # A row is a line, whatever it means: head, rule and one for each setting.
    assert len([row for row in rows if row.strip()]) == 2 + len(TABLE)
    stream = "s" * 100
    client.append(context, stream, [penstock.event("T")])
    client.erase_stream(context, stream)
    # Where nobody says it, it is the server of the variable.
    done = run("erasures", url=served.url)
    assert (done.code, done.err) == (0, "")
    assert f"{context}/{stream}" in done.out


def test_who_erases_says_where_or_has_said_it(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "s", [penstock.event("T")])
    done = run("erase", "--stream", f"{context}/s", "--yes", env=variables(served.url))
    assert (done.code, done.out) == (0, "erased 1 event; the erasure is finished\n")


def test_a_body_without_end_is_cut_for_people() -> None:
    whole = "ä" * BODY_LETTERS_MAX
    assert body_text(whole.encode()) == whole
    assert body_text(f"{whole}x".encode()) == f"{whole}… «{2 * BODY_LETTERS_MAX + 1:,} bytes»"


def test_sql_says_what_its_json_is_called(tmp_path: Path) -> None:
    code, _, err = command("sql", "select 1", "--json", "--data", tmp_path)
    assert (code, err) == (2, "penstock: use --output json instead of --json: sql has several formats\n")
