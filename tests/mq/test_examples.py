"""The programs in examples/ do what they say."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from tests.mq.support import PATIENCE_S

EXAMPLES = Path(__file__).parents[2] / "examples"


@contextmanager
def program(name: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def read_line(file: IO[str] | None) -> str:
    assert file is not None
    return file.readline().rstrip("\n")


def type_line(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line + "\n")
    process.stdin.flush()


def port_of(server: subprocess.Popen[str]) -> str:
    found = re.fullmatch(r"(?:echo|chat) on 127\.0\.0\.1:(\d+)", read_line(server.stdout))
    assert found
    return found[1]


def stopped(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """How it ends when somebody presses Ctrl-C."""
    process.send_signal(signal.SIGINT)
    return ended(process)


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """How it ended, and what it had still to say."""
    said, complained = process.communicate(timeout=PATIENCE_S)
    return process.returncode, said, complained


def test_the_echo_sends_back_what_it_is_sent() -> None:
    with program("mq_echo", "serve", "--port", "0") as server:
        port = port_of(server)
        for frames in (["hello", "a second frame"], ["käse", ""]):
            with program("mq_echo", "send", "--port", port, *frames) as client:
                assert ended(client) == (0, "".join(f"{frame}\n" for frame in frames), "")
        assert stopped(server) == (0, "", "")


def test_a_chat_tells_everybody_who_comes_what_is_said_and_who_leaves() -> None:
    with program("mq_chat", "serve", "--port", "0") as server:
        port = port_of(server)
        with program("mq_chat", "join", "--port", port, "Ada") as ada:
            assert read_line(ada.stdout) == "Ada: is here"
            with program("mq_chat", "join", "--port", port, "Bob") as bob:
                assert read_line(ada.stdout) == read_line(bob.stdout) == "Bob: is here"
                type_line(ada, "good morning")
                assert read_line(ada.stdout) == read_line(bob.stdout) == "Ada: good morning"
                type_line(bob, "bye")
                assert read_line(ada.stdout) == read_line(bob.stdout) == "Bob: bye"
                # The end of what is typed is the end of the chat.
                assert ended(bob) == (0, "left: client closing (client closing)\n", "")
            assert read_line(ada.stdout) == "Bob: has left: client closing"
            assert stopped(server) == (0, "", "")
            assert read_line(ada.stdout) == "left: server shutdown (said by the peer)"
            assert ended(ada) == (0, "", "")


@pytest.mark.parametrize("name", ["mq_echo", "mq_chat"])
def test_an_example_says_how_it_is_run(name: str) -> None:
    with program(name, "--help") as helped:
        code, said, _ = ended(helped)
    assert code == 0
    for line in re.findall(rf"python examples/{name}\.py (\w+)", (EXAMPLES / f"{name}.py").read_text("utf-8")):
        assert line in said
