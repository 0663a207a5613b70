"""The log of a server, as text and as JSON: one line for each record, whatever is in it."""

import io
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.terminal import TIME, JsonLines, LogLines
from tests.test_server import ONE_WORKER, Served, connected

HOSTILE = '\x1b]0;owned\x07\u202e\nlevel=ERROR \u2028{"level": "error"}'
UNSEEN = re.compile("[\0-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e]")


class Written:
    """A log, and what it has written."""

    def __init__(self, formatter: logging.Formatter) -> None:
        self._stream = io.StringIO()
        handler = logging.StreamHandler(self._stream)
        handler.setFormatter(formatter)
        self.log = logging.Logger("test")  # noqa: LOG001 - nobody else shall hear of it
        self.log.addHandler(handler)

    def line(self) -> str:
        text = self._stream.getvalue()
        assert text.endswith("\n")
        assert text.count("\n") == 1
        assert not UNSEEN.search(text)
        return text[:-1]


def as_text() -> Written:
    return Written(LogLines("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", TIME))


def test_fields_stand_at_the_end_of_a_line() -> None:
    written = as_text()
    fields = {"peer": "127.0.0.1:5000", "bytes": 7, "outcome": "ok", "context": "two words"}
    written.log.info("done", extra={"fields": fields, "request": "1f2e3d-4"})
    end = ' INFO test: done (request=1f2e3d-4 peer=127.0.0.1:5000 bytes=7 outcome=ok context="two words")'
    assert written.line().endswith(end)


def test_a_value_cannot_look_like_another_field() -> None:
    written = as_text()
    written.log.info("done", extra={"fields": {"context": 'x" outcome=ok peer="y', "outcome": "VersionConflict"}})
    assert written.line().endswith(r'(context="x\" outcome=ok peer=\"y" outcome=VersionConflict)')


@pytest.mark.parametrize("formatter", [LogLines("%(message)s"), JsonLines()], ids=["text", "json"])
def test_nothing_in_a_record_can_forge_a_line(formatter: logging.Formatter) -> None:
    written = Written(formatter)
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        written.log.exception("no %s", HOSTILE, extra={"fields": {"context": HOSTILE, "list": [HOSTILE]}})
    assert "owned" in written.line()


def test_a_record_is_an_object_of_json() -> None:
    written = Written(JsonLines())
    written.log.warning("%s took %d ms", HOSTILE, 7, extra={"fields": {"duration_ms": 7.25}, "request": "1f2e3d-4"})
    document = json.loads(written.line())
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", document.pop("time"))
    message = document.pop("message")
    # What reads the objects may show the texts on a terminal.
    assert not UNSEEN.search(message)
    assert message.endswith(" took 7 ms")
    assert document == {"level": "warning", "logger": "test", "request": "1f2e3d-4", "duration_ms": 7.25}


def test_a_traceback_is_a_list_of_lines() -> None:
    written = Written(JsonLines())
    try:
        raise ValueError("no")
    except ValueError:
        written.log.exception("it failed")
    error = json.loads(written.line())["error"]
    assert (error[0], error[-1]) == ("Traceback (most recent call last):", "ValueError: no")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    flags = ("--log-format", "json", "--log-level", "debug")
    with Served(tmp_path_factory.mktemp("logs") / "data", *ONE_WORKER, *flags) as server:
        yield server


def test_every_line_of_a_server_is_json_whichever_library_it_comes_from(served: Served, tmp_path: Path) -> None:
    with connected(served) as hostile:
        hostile.sendall(b"GET /\x1b[31m HTTP/1.1\r\n\r\nno http\r\n")
        hostile.recv(1000)
    answer = served.get("/health")
    mq = served.ready.partition(" mq=")[2].split()[0]
    with penstock.connect(f"penstock://{mq}") as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced", "a body that no line has")])
    assert served.stop() == 0
    documents = [json.loads(line) for line in served.said().splitlines()]
    assert all({"time", "level", "logger", "message"} <= document.keys() for document in documents)
    (health,) = [one for one in documents if one.get("command") == "GET /health"]
    assert health["request"] == answer.headers["x-request-id"]
    (append,) = [one for one in documents if one.get("context") == "shop"]
    assert (append["gate"], append["principal"], append["outcome"]) == ("mq", "anonymous", "ok")
    assert "a body that no line has" not in served.said()
    assert not UNSEEN.search(served.said())


def test_lines_of_text_name_the_request_that_they_are_about(tmp_path: Path) -> None:
    with Served(tmp_path / "data", *ONE_WORKER, "--log-level", "debug") as served:
        answer = served.get("/readyz")
        assert served.stop() == 0
        pattern = r"^\S+Z DEBUG penstock\.engine\.traffic: GET /readyz was answered: ok \(request=(\S+) gate=http peer="
        found = re.findall(pattern, served.said(), re.MULTILINE)
        assert found == [answer.headers["x-request-id"]]
        assert all(re.match(r"\d{4}-\S+Z [A-Z]+ [\w.]+: ", line) for line in served.said().splitlines())
