"""Commands at a terminal: what comes as it comes, colours, Ctrl-C."""

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pexpect  # type: ignore[import-untyped]
import pytest

import penstock
from penstock.cli import COMMANDS
from penstock.testing import Server, server
from tests.cli.support import run, terminal_output, variables
from tests.test_server import PATIENCE_S, PENSTOCK


@contextmanager
def terminal(*arguments: object, url: str, **more: str) -> Iterator[pexpect.spawn]:
    """A command at a terminal of 80 columns."""
    command = [*PENSTOCK, *map(str, arguments)]
    child = pexpect.spawn(
        command[0],
        command[1:],
        env=variables(url, **more),
        timeout=PATIENCE_S,
        dimensions=(24, 80),
        encoding="utf-8",
    )
    try:
        yield child
    finally:
        child.close(force=True)


def ended(child: pexpect.spawn) -> int:
    """Its exit code, once it has ended by itself."""
    child.expect(pexpect.EOF)
    child.wait()
    assert child.exitstatus is not None, child.signalstatus
    return int(child.exitstatus)


def test_tail_follows_what_comes_until_ctrl_c(served: Server, client: penstock.Client, context: str) -> None:
    client.append(context, "order-1", [penstock.event("Before", number) for number in range(20)])
    with terminal("tail", "-f", "-n", 1, context, url=served.url) as child:
        child.expect("Before")
        client.append("elsewhere", "order-1", [penstock.event("Elsewhere")])
        client.append(context, "order-1\x1b[31m", [penstock.event("After", {"amount": 7})])
        child.expect("After")
        shown = child.before
        child.sendintr()
        assert ended(child) == 130
    assert "Elsewhere" not in shown
    assert r"order-1\x1b[31m 1" in shown
    assert "Traceback" not in child.before
    assert child.before.count("\n") <= 2


def test_tail_waits_for_a_server_that_is_gone_and_goes_on(context: str) -> None:
    with server() as own, penstock.connect(own.url) as client:
        client.append(context, "s", [penstock.event("Before")])
        with terminal("tail", "-f", context, "--type", "Before", "--type", "After", url=own.url) as child:
            child.expect("Before")
            own.kill()
            child.expect("waiting for the server")
            own.restart()
            client.append(
                context, "s", [penstock.event("After", 1), penstock.event("Other"), penstock.event("After", 2)]
            )
            child.expect("After")
            child.expect("After")
            assert "Other" not in child.before
            child.sendintr()
            assert ended(child) == 130


def test_a_consumer_that_follows_acknowledges_what_it_has_printed(
    served: Server, client: penstock.Client, context: str
) -> None:
    with terminal("queue", "consume", "-f", context, "mail", url=served.url) as child:
        client.append(context, "s", [penstock.event("One")])
        child.expect("One")
        client.append(context, "s", [penstock.event("Two")])
        child.expect("Two")
        child.sendintr()
        assert ended(child) == 130
    done = run("queue", "consume", context, "mail", "--json", url=served.url)
    # The last one is acknowledged a moment after it was printed, and may come again if Ctrl-C was faster.
    assert [line["type"] for line in done.lines] in ([], ["Two"])


def test_lines_typed_at_a_terminal_are_appended_as_they_come(
    served: Server, client: penstock.Client, context: str
) -> None:
    with terminal("append", context, "-", "--json", url=served.url) as child:
        child.sendline('{"stream": "s", "type": "Typed"}')
        child.expect('"sequence":1')
        assert [event.type for event in client.read_stream(context, "s")] == ["Typed"]
        child.sendeof()
        assert ended(child) == 0


def test_ctrl_c_among_many_lines_says_how_many_are_written(
    served: Server, client: penstock.Client, context: str
) -> None:
    with terminal("append", context, "-", url=served.url) as child:
        child.sendline('{"stream": "s", "type": "Typed"}')
        next(client.follow(context=context))
        child.sendintr()
        assert ended(child) == 130
    said = child.before.strip().splitlines()[-1].removeprefix("^C")
    # The answer may have been on its way.
    assert re.fullmatch(
        "penstock: interrupted: (1 line written|0 lines written, and perhaps those up to line 1.*)", said
    )


@pytest.mark.parametrize(("more", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)])
def test_colours_are_for_terminals_that_want_them(
    served: Server, client: penstock.Client, context: str, more: dict[str, str], coloured: bool
) -> None:
    client.append(context, "s", [penstock.event("T", "\x1b[41m" + "x" * 200)])
    with terminal_output() as (number, shown):
        assert run("read", context, env=variables(served.url, **more), stdout=number).code == 0
        text = shown()
    assert bool(re.search(r"\x1b\[", text)) == coloured
    # Nothing of a long body is lost; the terminal breaks its line.
    assert r"\x1b[41m" + "x" * 200 in text


def test_a_table_fits_the_terminal_and_is_whole_in_a_pipe(
    served: Server, client: penstock.Client, context: str
) -> None:
    name = "n" * 200
    client.append(context, name, [penstock.event("T")])
    assert re.search(rf"^ +{name} +1 *$", run("streams", context, url=served.url).out, re.MULTILINE)
    with terminal("streams", context, url=served.url) as child:
        assert ended(child) == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", child.before).splitlines()
    assert max(map(len, lines)) <= 80
    assert "".join(re.findall("n+", "".join(line for line in lines if "stream" not in line))).count("n") == 200


@pytest.mark.parametrize("module", ["typer", "penstock.cli.root", "penstock.client"])
def test_ctrl_c_while_modules_are_imported_ends_it_quietly(module: str) -> None:
    # The interrupt comes when the module is looked for, as surely as no timing could have it.
    program = f"""
import os, signal, sys
class Interrupting:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
sys.argv = ["penstock", "contexts"]
from penstock.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        env=variables("penstock://127.0.0.1:1"),
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def test_completion_knows_commands_options_and_what_is_below() -> None:
    def completed(line: str) -> list[str]:
        variable = {
            "_PENSTOCK_COMPLETE": "complete_bash",
            "COMP_WORDS": line,
            "COMP_CWORD": str(len(line.split(" ")) - 1),
        }
        return run(env=variables() | variable).out.split()

    assert set(completed("penstock ")) >= set(COMMANDS)
    assert completed("penstock queue re") == ["reset", "resume", "rename", "requeue"]
    assert "--json" in completed("penstock read --")


def test_completion_is_shown_for_a_shell() -> None:
    script = f"{' '.join(PENSTOCK)} --show-completion"
    done = subprocess.run(
        ["bash", "-c", f"{script}; exit $?"], capture_output=True, env=variables(), timeout=PATIENCE_S
    )
    assert done.returncode == 0
    assert b"_PENSTOCK_COMPLETE=complete_bash" in done.stdout


def test_a_second_ctrl_c_ends_it_at_once(context: str) -> None:
    # Interrupted once, it would close its client in peace; this one takes for ever.
    program = """
import sys, time
import penstock.client
from penstock.cli import main
class Slow:
    def __init__(self, *given, **more): pass
    def __enter__(self): return self
    def __exit__(self, *error): print("closing", flush=True); time.sleep(1000)
    def contexts(self): print("asking", flush=True); time.sleep(1000)
penstock.client.connect = Slow
sys.argv = ["penstock", "contexts"]
main()
"""
    child = pexpect.spawn(
        sys.executable, ["-c", program], env=variables("penstock://x"), timeout=PATIENCE_S, encoding="utf-8"
    )
    child.expect("asking")
    child.sendintr()
    child.expect("closing")
    child.sendintr()
    assert ended(child) == 130
    assert child.before.replace("^C", "").strip() == ""
