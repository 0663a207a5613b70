"""Names that strangers chose: no command passes on what a terminal would obey, hide or turn around.

The table below has every command, with what makes it print names. A new command fails here until it has its line.
"""

import io
import json
import re
import shutil
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import apsw
import pytest
from rich.progress import Progress, TextColumn
from rich.table import Table
from rich.text import Text

import penstock
from penstock.cli import COMMANDS
from penstock.cli.root import loaded
from penstock.cli.screen import Screen
from penstock.model import IteratorKind
from penstock.testing import Server, server
from tests.cli.support import Done, run, terminal_output, variables
from tests.cli.test_erase import at_a_terminal

EVIL: Final = "\x1b]0;owned\x07\x9b31m\x7f\r\n\t\u2028\u202e\u2066\u200bx\u200dy\ufeff\U000e0041"
GONE: Final = f"{EVIL}gone"
ERASED: Final = f"{EVIL}erased"
NOWHERE: Final = f"/dev/null/{EVIL}"
SHOWN: Final = r"\x1b]0;owned\x07\x9b31m\x7f"
UNSEEN: Final = ("Cc", "Cf", "Cs", "Zl", "Zp")
PAINTED: Final = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
"""What Rich and we ourselves write to have colours and to move the cursor."""
EVENT: Final = json.dumps({"context": EVIL, "stream": EVIL, "type": EVIL, "body": EVIL}) + "\n"

Line = tuple[object, ...]

COMMAND_LINES: Final[dict[str, list[Line]]] = {
    "stats": [(), ("--data", "{data}"), ("--data", NOWHERE)],
    "sessions": [("--http", f"{EVIL}:1")],
    "doctor": [("--url", f"penstock://{EVIL}:1"), ("--data", NOWHERE)],
    "access init": [("--data", "{folder}/first", "--name", EVIL), ("--data", NOWHERE)],
    "access add": [
        (EVIL, "read", "--data", "{access}"),
        ("ann", EVIL, "--data", "{access}"),
        ("ann", f"read:{EVIL}", "--data", "{access}"),
        ("bob", "read", "--certificate", EVIL, "--data", "{access}"),
    ],
    "access set": [("shop", EVIL, "--data", "{access}"), ("shop", "--limit", EVIL), (EVIL, "read")],
    "access list": [("--data", "{access}"), ("--data", NOWHERE)],
    "access show": [("shop", "--data", "{access}"), (EVIL, "--data", "{access}")],
    "access revoke": [(EVIL, "--data", "{access}"), ("--credential", EVIL, "--data", "{access}")],
    "access rotate": [(EVIL, "--data", "{access}"), ("shop", "--label", EVIL, "--data", "{access}")],
    "access check": [
        ("shop", EVIL, EVIL, "--data", "{access}"),
        ("shop", "append", f"{EVIL}/{EVIL}", "--data", "{access}"),
        ("shop", "read", f"log:{EVIL}", "--data", "{access}"),
    ],
    "access whoami": [(), ("--url", f"penstock://{EVIL}:1")],
    "access new-token": [("--label", EVIL), ("--expires", EVIL)],
    "access check-file": [(NOWHERE,), ("{file}",)],
    "access curve-keygen": [("--out", NOWHERE), ("--out", "{file}"), ("--out", f"{{folder}}/{EVIL}.key")],
    "bench": [("--context", f"{EVIL}bench", "--events", 1, "--clients", 1)],
    "kick": [(EVIL,)],
    "settings": [("--data", EVIL), ("--mq", EVIL), ("--config", NOWHERE)],
    "append": [(EVIL, "s", "T"), ("-",), ("shop", "-"), ("-", "--url", "penstock://127.0.0.1:1")],
    "read": [(), (EVIL,), (EVIL, EVIL), (EVIL, "none"), ("--since", EVIL)],
    "tail": [(), (EVIL, EVIL)],
    "contexts": [(), ("--url", f"sqlite:///{NOWHERE}")],
    "streams": [(EVIL,), (EVIL, "--filter", f"{EVIL}none")],
    "queue list": [(), (EVIL,)],
    "queue consume": [(EVIL, f"{EVIL}none"), (EVIL, EVIL, "--filter", f"{EVIL}none"), (EVIL, EVIL, "--count", 1)],
    "queue reset": [(EVIL, EVIL, "--to", "1"), (EVIL, "none", "--to", "1"), (EVIL, EVIL, "--to", EVIL)],
    "queue dead": [(EVIL, EVIL), (EVIL, "none"), (EVIL, EVIL, "--after", EVIL)],
    "queue requeue": [(EVIL, EVIL, 1), (EVIL, "none", "--all")],
    "queue show": [(EVIL, EVIL), (EVIL, "none")],
    "queue create": [(EVIL, EVIL), ("shop", "mail", "--ordered", EVIL), ("shop", "mail", "--start", EVIL)],
    "queue move": [(EVIL, EVIL, "--to", "1", "--yes"), (EVIL, "none", "--to", EVIL, "--yes")],
    "queue set": [(EVIL, EVIL, "--filter", EVIL, "--yes"), (EVIL, EVIL, "--dead-after", EVIL)],
    "queue pause": [(EVIL, EVIL), (EVIL, "none")],
    "queue resume": [(EVIL, EVIL), (EVIL, "none")],
    "queue rename": [(EVIL, EVIL, EVIL, "--yes"), (EVIL, "none", "some", "--yes")],
    "queue drop": [(EVIL, EVIL, "1", "--yes"), (EVIL, "none", "--all", "--yes")],
    "queue delete": [(EVIL, EVIL, "--yes"), (EVIL, "none", "--yes")],
    "subscription list": [(), (EVIL,)],
    "subscription set": [(EVIL, EVIL, "--to", "end"), (EVIL, "none", "--to", "end")],
    "subscription delete": [(EVIL, EVIL, "--yes"), (EVIL, "none", "--yes")],
    "log add": [(EVIL,)],
    "log list": [()],
    "log show": [(EVIL,), (f"{EVIL}none",)],
    "log append": [(EVIL, '"x"'), (f"{EVIL}none", '"x"'), (EVIL, f'["{EVIL}')],
    "log read": [(EVIL,), (f"{EVIL}none",)],
    "log delete": [(GONE, "--yes"), (f"{EVIL}none", "--yes")],
    "iterator add": [
        (EVIL, "--log", EVIL, "--kind", "map", "--file", "{function}"),
        ("new", "--log", f"{EVIL}none", "--kind", "map", "--file", "{function}"),
        ("new", "--log", EVIL, "--kind", "map", "--file", NOWHERE),
    ],
    "iterator list": [(), ("--log", EVIL)],
    "iterator show": [(EVIL,), (f"{EVIL}none",), (EVIL, "--data", "{data}")],
    "iterator next": [(EVIL,), (f"{EVIL}none",)],
    "iterator delete": [(GONE, "--log", f"{EVIL}none"), (GONE,)],
    "iterator try": [("{function}", "--log", EVIL), ("{function}", "--log", f"{EVIL}none")],
    "import": [("-", "--format", "jsonl"), (f"{NOWHERE}.csv",), ("{folder}", "--context", EVIL, "--format", "csv")],
    "sql": [
        ("FROM events", "--data", "{data}"),
        (f'SELECT 1 AS "{EVIL}"', "--data", "{data}"),
        ("FROM events", "--data", "{data}", "--output", "json"),
        (f"FROM read_text('{EVIL}')", "--data", "{data}"),
        (f'FROM "{EVIL}"', "--data", "{data}"),
    ],
    "export": [(f"{{folder}}/{EVIL}.csv",), (f"{NOWHERE}.csv",)],
    "replay": [
        ("--queue", EVIL, "--queue-context", "none"),
        ("--context", EVIL, "--to-context", f"{EVIL}copy", "--to", "2", "--state", "{folder}/state"),
        ("--context", EVIL, "--to-context", f"{EVIL}copy", "--to", "2", "--state", "{folder}/state"),
    ],
    "erase": [
        ("--stream", f"{EVIL}/{GONE}", "--url", "{url}", "--yes"),
        ("--subject", EVIL, "--context", f"{EVIL}none", "--url", "{url}", "--yes"),
        ("--stream", f"{EVIL}/{EVIL}", "--data", NOWHERE, "--yes"),
    ],
    "erasures": [(), ("--data", "{data}"), ("--data", NOWHERE)],
    "lake status": [("--lake", NOWHERE)],
    "lake restore": [("--lake", NOWHERE, "--data", "{folder}/restored")],
    "lake query": [(f"SELECT {EVIL}", "--lake", NOWHERE)],
    "pipeline init": [
        ("{folder}/project", "--url", "{store}", "--context", EVIL),
        (NOWHERE, "--url", "{store}"),
    ],
    "pipeline status": [(NOWHERE,)],
    "verify": [("--data", "{damaged}"), ("--data", NOWHERE)],
    "backup": [(f"{{folder}}/{EVIL}", "--data", "{data}"), (NOWHERE, "--data", "{data}")],
    "backups": [(f"{{folder}}/{EVIL}",), (NOWHERE,)],
    "restore": [(NOWHERE, "--data", "{folder}/none"), (f"{{folder}}/{EVIL}", "--data", "{data}")],
    "migrate-store": [(NOWHERE, "{folder}/copy"), (f"{{folder}}/{EVIL}", f"{{folder}}/{EVIL}copy")],
}
"""What is in braces is filled in."""
LEFT_OUT: Final = {
    "serve": "it runs until a signal; its log is tested in test_json.py",
    "demo": "it runs until a signal, and makes its own names",
    "iterator build": "it needs Spark",
    "lake archive": "it needs Spark",
    "lake compact": "it needs Spark",
    "lake verify": "it needs Spark",
    "pipeline run": "it needs Spark",
    "pipeline dry-run": "it needs Spark",
}
"""Commands that are left out, and why."""


def commands() -> Iterator[str]:
    for name in COMMANDS:
        below = getattr(loaded(name), "commands", {})
        visible = [inner for inner, command in below.items() if not command.hidden]
        yield from (f"{name} {inner}" for inner in visible) if below else [name]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store in which all names are hostile."""
    found = tmp_path_factory.mktemp("hostile") / "data"
    with server(found) as own, penstock.connect(own.url) as client:
        about = {"subject": EVIL}
        client.append(EVIL, EVIL, [penstock.event(EVIL, EVIL, about), penstock.event(EVIL, EVIL.encode(), EVIL)])
        for name in (GONE, ERASED):
            client.append(EVIL, name, [penstock.event(EVIL)])
        client.erase_stream(EVIL, ERASED)
        queue = client.queue(EVIL, EVIL, subscriber=EVIL, count=1)
        queue.declare()
        queue.dead_after(1)
        queue.release(queue.take())
        client.subscription(EVIL, context=EVIL).fetch()
        for name in (EVIL, GONE):
            client.log(name).create()
            client.log(name).append([EVIL])
            client.iterator(name).create(EVIL, IteratorKind.MAP, f"--[[ {name} ]] return msg", indexed=True)
    return found


@pytest.fixture(scope="module")
def served(data: Path) -> Iterator[Server]:
    with server(data) as own:
        yield own


@pytest.fixture(scope="module")
def places(data: Path, served: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("places")
    (folder / "function.lua").write_text("return msg")
    shutil.copytree(data, folder / "damaged")
    with apsw.Connection(str(folder / "damaged" / "penstock.db")) as connection:
        connection.execute("UPDATE queues SET position = 1000; UPDATE subscriptions SET position = 1000")
    with penstock.connect(f"sqlite:///{folder / 'access'}") as client:
        client.access.put("admin", ["all"])
        client.access.put("shop", [f"read:{EVIL}/{EVIL}", f"consume:log:{EVIL}"])
        client.access.issue_token("shop", label="laptop")
    (folder / "access.toml").write_text(f"[principals.{json.dumps(GONE)}]")
    return {
        "access": str(folder / "access"),
        "data": str(data),
        "file": str(folder / "access.toml"),
        "damaged": str(folder / "damaged"),
        "folder": str(folder),
        "function": str(folder / "function.lua"),
        "store": f"sqlite:///{data}",
        "url": served.url,
    }


def ran(command: str, line: Line, places: dict[str, str], *, stdout: int | None = None) -> Done:
    words = [str(word).format(**places) for word in line]
    return run(*command.split(), *words, stdin=EVENT, stdout=stdout, env=variables(places["url"], COLUMNS="1000"))


def unseen(text: str) -> set[str]:
    return {letter for letter in text if letter != "\n" and unicodedata.category(letter) in UNSEEN}


def test_every_command_is_in_the_table() -> None:
    assert sorted(commands()) == sorted({**COMMAND_LINES, **LEFT_OUT})


@pytest.mark.parametrize("command", COMMAND_LINES)
def test_no_name_reaches_a_terminal_as_it_is(command: str, places: dict[str, str]) -> None:
    printed = [ran(command, line, places) for line in COMMAND_LINES[command]]
    assert [unseen(done.out + done.err) for done in printed] == [set()] * len(printed)
    assert SHOWN in "".join(done.out + done.err for done in printed), printed


@pytest.mark.parametrize(
    ("command", "line"),
    [
        ("read", (EVIL,)),
        ("stats", ()),
        ("erasures", ()),
        ("doctor", ("--data", f"{{folder}}/{EVIL}none")),
        ("sql", ("SELECT type, text FROM events", "--data", "{data}")),
        ("sql", ("SELECT type, text FROM events", "--data", "{data}", "--output", "csv")),
        ("sql", (f'SELECT 1 AS "{EVIL}"', "--data", "{data}", "--output", "csv")),
        ("export", ("-", "--format", "csv")),
        ("export", ("-", "--format", "jsonl")),
    ],
)
def test_with_colours_nothing_of_a_name_is_obeyed(command: str, line: Line, places: dict[str, str]) -> None:
    with terminal_output() as (number, shown):
        ran(command, line, places, stdout=number)
        text = PAINTED.sub("", shown())
    # The terminal itself puts a return before the end of a line, and CSV has another.
    assert unseen(re.sub(r"\r+\n", "\n", text)) == set()
    assert re.search(r"\\(x|u00)1b]0;owned", text)


def test_a_question_shows_names_escaped(places: dict[str, str]) -> None:
    code, out, asked = at_a_terminal("n", "erase", "--stream", f"{EVIL}/{EVIL}", "--url", places["url"])
    assert (code, out) == (1, "")
    assert f"of stream {SHOWN}" in asked
    assert unseen(asked) == set()


def test_json_has_the_names_as_they_are(places: dict[str, str]) -> None:
    done = ran("streams", (EVIL, "--json"), places)
    assert unseen(done.out) == set()
    assert EVIL in [line["name"] for line in done.lines]
    erased = json.loads(ran("erasures", ("--json",), places).out)
    assert (EVIL, ERASED) in [(one["context"], one["stream"]) for one in erased]
    report = json.loads(ran("verify", ("--data", "{damaged}", "--json"), places).out)
    assert any(EVIL in finding["where"] for finding in report["findings"])


def test_what_is_drawn_by_hand_is_escaped_too() -> None:
    drawn = io.StringIO()
    screen = Screen(file=drawn, force_terminal=True, width=1000)
    table = Table(EVIL, title=EVIL, caption=EVIL)
    table.add_row(EVIL)
    table.add_row(Text(EVIL))
    screen.print(EVIL, Text(EVIL), table)
    with Progress(TextColumn("{task.description}"), console=screen) as progress:
        progress.add_task(EVIL)
    with screen.status(EVIL):
        pass
    text = PAINTED.sub("", drawn.getvalue()).replace("\r", "")
    # Some control characters Rich leaves out by itself.
    assert text.count(r"\x1b]0;owned") >= 8
    assert unseen(text) == set()
