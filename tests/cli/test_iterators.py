"""`penstock iterator`: made, read, deleted; and tried on real messages before."""

import json
from pathlib import Path

import pytest

import penstock
from penstock.testing import Server
from tests.cli.support import called, run

LOG = "readings"
MESSAGES = [{"celsius": value} for value in (4, 17, -3, "cold", 21)]


@pytest.fixture(scope="module", autouse=True)
def log(client: penstock.Client) -> None:
    client.log(LOG).create()
    client.log(LOG).append(MESSAGES)


def lua(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "function.lua"
    path.write_text(text)
    return path


def test_an_iterator_is_made_read_and_deleted(served: Server, tmp_path: Path) -> None:
    file = lua(tmp_path, "return type(msg.celsius) == 'number' and msg.celsius > 0\n")
    flags = ("--log", LOG, "--kind", "filter", "--file", file, "--indexed")
    assert run("iterator", "add", "warm", *flags, url=served.url).out == "iterator warm over readings created\n"
    assert run("iterator", "next", "warm", url=served.url).lines == [MESSAGES[0], MESSAGES[1], MESSAGES[4]]
    assert called("iterator", "next", "warm", "--count", 1, "--from", 1, "--url", served.url).lines == [MESSAGES[1]]
    assert called("iterator", "next", "warm", "--from", -1, "--url", served.url).lines == [MESSAGES[4]]
    definition = {"iterator": "warm", "log": LOG, "over": "log", "kind": "filter", "indexed": True}
    assert called("iterator", "list", "--json", "--url", served.url).lines == [definition]
    shown = json.loads(called("iterator", "show", "warm", "--json", "--url", served.url).out)
    rest = {"items": 3, "behind": 0, "created": shown["created"], "function": file.read_text(), "readers": []}
    assert shown == {**definition, **rest}
    of_store = json.loads(called("iterator", "show", "warm", "--json", "--data", served.data).out)
    assert of_store == {**definition, **rest}
    text = called("iterator", "show", "warm", "--url", served.url).out
    assert "kind      filter\nindexed   true\nitems     3\nbehind    0\n" in text
    assert "function  return type(msg.celsius)" in text
    assert text.endswith("readers   none\n")
    assert called("iterator", "add", "warm", *flags, "--url", served.url).out.endswith("exists already\n")
    told = called("iterator", "add", "warm", *flags, "--json", "--url", served.url).out
    assert json.loads(told) == {"iterator": "warm", "log": LOG, "made": False}
    assert called("iterator", "delete", "warm", "--url", served.url).out == "deleted iterator warm\n"
    assert called("iterator", "show", "warm", "--url", served.url).err == "penstock: no iterator warm\n"


def test_iterators_over_iterators_and_streams_are_known(
    served: Server, client: penstock.Client, context: str, tmp_path: Path
) -> None:
    client.append(context, "s", [penstock.event("T", {"a": 1})])
    client.iterator("all").create(LOG, "map", "return msg", indexed=True)
    client.iterator("of-all").create("all", "map", "return msg")
    client.iterator("of-stream").create(f"{context}/s", "map", "return msg.body.a")
    rows = [line.split() for line in called("iterator", "list", "--url", served.url).out.splitlines()]
    assert ["all", "log", "readings", "map", "yes"] in rows
    assert ["of-all", "iterator", "all", "map", "no"] in rows
    assert ["of-stream", "stream", f"{context}/s", "map", "no"] in rows
    assert called("iterator", "next", "of-stream", "--url", served.url).lines == [1]
    wrong = called("iterator", "delete", "of-stream", "--log", LOG, "--url", served.url)
    assert (wrong.code, wrong.err) == (1, "penstock: no iterator of-stream\n")
    assert called("iterator", "delete", "of-stream", "--url", served.url).code == 0
    assert called("iterator", "delete", "of-all", "--url", served.url).code == 0
    assert called("iterator", "delete", "all", "--url", served.url).code == 0


def test_an_iterator_is_shown_without_running_it(served: Server, client: penstock.Client) -> None:
    client.log("mixed").create()
    client.log("mixed").append(MESSAGES[:4])
    client.iterator("failing").create("mixed", "map", "return msg.celsius * 2\n-- a \x07 bell")
    done = called("iterator", "show", "failing", "--url", served.url)
    assert (done.code, done.err) == (0, "")
    assert "function  return msg.celsius * 2\n          -- a \\x07 bell\n" in done.out
    assert "attempt to mul a 'string' with a 'number'" not in done.out
    # What becomes of its results, who reads them is told.
    done = called("iterator", "next", "failing", "--from", -1, "--url", served.url)
    assert (done.code, done.out) == (1, "")
    assert "attempt to mul a 'string' with a 'number'" in done.err
    assert called("iterator", "delete", "failing", "--url", served.url).code == 0


# --- trying ---------------------------------------------------------------------------------------------------


def tried(served: Server, file: Path, kind: str, *flags: object, log: str = LOG) -> tuple[int, str, str]:
    return called("iterator", "try", file, "--log", log, "--kind", kind, *flags, "--url", served.url)


def test_a_function_is_tried_on_the_messages_of_a_log(served: Server, client: penstock.Client, tmp_path: Path) -> None:
    file = lua(tmp_path, "return (acc or 0) + 1")
    before = client.iterators()
    done = run("iterator", "try", file, "--log", LOG, "--kind", "reduce", "--count", 2, url=served.url)
    assert done.out == '0  {"celsius":4}  →  1\n1  {"celsius":17}  →  2\n'
    assert done.err == "2 messages tried\n"
    assert client.iterators() == before


def test_a_function_maps_unless_somebody_says_otherwise(served: Server, tmp_path: Path) -> None:
    file = lua(tmp_path, "return msg.celsius")
    done = called("iterator", "try", file, "--log", LOG, "-n", 1, "--url", served.url)
    assert (done.code, done.out) == (0, '0  {"celsius":4}  →  4\n')


def test_a_filter_shows_what_it_drops(served: Server, tmp_path: Path) -> None:
    file = lua(tmp_path, "return msg.celsius ~= 'cold'")
    code, out, _ = tried(served, file, "filter", "--last", "-n", 2)
    assert (code, out) == (0, '3  {"celsius":"cold"}  →  (dropped)\n4  {"celsius":21}  →  {"celsius":21}\n')
    done = called("iterator", "try", file, "--log", LOG, "--kind", "filter", "--json", "--url", served.url)
    assert [line["kept"] for line in done.lines] == [True, True, True, False, True]
    assert done.lines[0] == {"message": 0, "in": {"celsius": 4}, "kept": True, "out": {"celsius": 4}}


def test_a_function_is_tried_on_a_stream_and_on_another_iterator(
    served: Server, client: penstock.Client, context: str, tmp_path: Path
) -> None:
    client.append(context, "s", [penstock.event("T", {"a": number}) for number in range(5)])
    stream = lua(tmp_path, "return msg.sequence .. msg.type .. msg.body.a")
    _, out, _ = tried(served, stream, "map", "--last", "-n", 1, "--json", log=f"{context}/s")
    assert '"message":4' in out
    assert out.endswith('"out":"5T4"}\n')
    client.iterator("doubled").create(LOG, "map", "return {msg.celsius, msg.celsius}", indexed=True)
    _, out, _ = tried(served, lua(tmp_path, "return msg[1]"), "map", "--last", "-n", 2, log="doubled")
    assert out == '3  ["cold","cold"]  →  "cold"\n4  [21,21]  →  21\n'


@pytest.mark.parametrize(
    ("function", "shown", "reason"),
    [
        ("local c = msg.celsius\nreturn c * 2", 3, ":2: at message 3: attempt to mul a 'string' with a 'number'"),
        ("\n\nretur msg", 0, ":3: syntax error near 'msg'"),
        ("return (('a'):rep(9999)):find(('.-'):rep(99) .. 'x')", 0, ": at message 0: ran for more than 1000 ms"),
        ("local t = {} while true do t[#t + 1] = ('x'):rep(9999) end", 0, ": at message 0: "),
    ],
)
def test_what_a_function_does_wrong_is_told_with_its_line(
    served: Server, tmp_path: Path, function: str, shown: int, reason: str
) -> None:
    file = lua(tmp_path, function)
    code, out, err = tried(served, file, "map")
    assert (code, out.count("\n")) == (1, shown)
    assert err.splitlines()[-1].startswith(f"penstock: {file}{reason}")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (("try", "{file}", "--log", "nobody", "--kind", "map"), 1, "no log nobody"),
        (("try", "nowhere.lua", "--log", LOG, "--kind", "map"), 1, "nowhere.lua: no such file or directory"),
        (("try", "{file}", "--log", LOG, "--kind", "sort"), 2, "'--kind': 'sort' is not one of"),
        (("try", "{file}", "--log", "empty", "--kind", "map"), 1, "there are no messages in empty"),
        (("add", "x", "--log", LOG, "--kind", "map", "--file", "{broken}"), 1, "broken.lua:1: syntax error"),
        (("add", "x\x07", "--log", LOG, "--kind", "map", "--file", "{file}"), 2, "cannot be printed: x\\x07"),
        (("add", "x", "--log", "nobody", "--kind", "map", "--file", "{file}"), 1, "nobody"),
        (("add", "x", "--log", LOG, "--file", "{file}"), 2, "option '--kind'; choose from map, filter, reduce (see"),
        (("next", "nobody"), 1, "no iterator nobody"),
        (("next", "nobody", "-n", "9" * 30), 2, "less than or equal to 9223372036854775807"),
        (("delete", "nobody"), 1, "no iterator nobody"),
        (("show", "nobody"), 1, "no iterator nobody"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    served: Server, client: penstock.Client, tmp_path: Path, arguments: tuple[str, ...], code: int, reason: str
) -> None:
    client.log("empty").create()
    (tmp_path / "broken.lua").write_text("retur 1")
    names = {"file": lua(tmp_path, "return msg"), "broken": tmp_path / "broken.lua"}
    done = called("iterator", *(argument.format(**names) for argument in arguments), "--url", served.url)
    assert done.code == code
    assert reason in done.err
    assert done.err.count("\n") == 1
