"""The MQ gate's server killed and stopped under its clients, and where it can listen."""

import signal
import socket
import subprocess
import threading
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest
from typer.testing import CliRunner

from penstock.cli import app
from tests.gates.mq_client import SERVER_SHUTDOWN, Disconnected, MqClient, MqLarge
from tests.gates.res_client import PATIENCE_S
from tests.gates.res_frames import LONG_AGO, an_event
from tests.gates.serving import Served, environment, until
from tests.gates.test_res_restarts import has_ipv6, history
from tests.test_server import PENSTOCK

AHEAD = 200
"""Appends that a writer has under way."""


class Writer(threading.Thread):
    """Appends as fast as it can, many ahead of their answers, until the server is gone; remembers what was answered."""

    def __init__(self, address: str, stream: str) -> None:
        super().__init__()
        self.client = MqClient(address)
        self.stream = stream
        self.sent: dict[bytes, UUID] = {}
        self.answers: dict[bytes, bytes] = {}
        self.reason: int | None = None
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            self._send(AHEAD)
            while True:
                answer = self.client.receive()
                assert answer.request_id not in self.answers, "answered twice"
                self.answers[answer.request_id] = answer.command
                self._send(1)
        except Disconnected as told:
            self.reason = told.reason
        except ConnectionError:
            self._read_the_rest()
        except Exception as error:  # noqa: BLE001 - told by finish
            self.failure = error
        finally:
            self.client.close()

    def _read_the_rest(self) -> None:
        """What could not be sent any more may still have answers before it."""
        try:
            while True:
                answer = self.client.receive()
                self.answers[answer.request_id] = answer.command
        except Disconnected as told:
            self.reason = told.reason
        except ConnectionError:
            pass

    def _send(self, count: int) -> None:
        for _ in range(count):
            event = an_event()
            number = b"%d" % len(self.sent)
            self.sent[number] = event.id
            self.client.send("AC", *self.client.commit_fields("shop", self.stream, -1, [event]), request_id=number)

    def finish(self) -> None:
        self.join()
        if self.failure is not None:
            raise self.failure

    @property
    def confirmed(self) -> set[UUID]:
        """The events that were answered with a commit."""
        return {self.sent[number] for number, command in self.answers.items() if command == b"CR"}


def stopped_under(writers: list[Writer], server: Served, number: signal.Signals) -> int:
    """Send a signal when all writers are at it, and wait until they and the server have ended; its exit code."""
    for writer in writers:
        writer.start()
    until(lambda: all(len(writer.answers) > 3 * AHEAD for writer in writers))
    server.process.send_signal(number)
    code = server.process.wait(PATIENCE_S)
    for writer in writers:
        writer.finish()
    return code


def written(tmp_path: Path) -> list[UUID]:
    """The ids of all events, read from a server that is started anew; every stream must be whole."""
    with Served(tmp_path / "data") as server, MqLarge(server.mq) as client:
        found = history(client)
        assert server.stop() == 0
    assert [position for position, *_ in found] == list(range(1, len(found) + 1))
    for stream in {stream for _, stream, *_ in found}:
        sequences = [sequence for _, name, sequence, _ in found if name == stream]
        assert sequences == list(range(1, len(sequences) + 1))
    return [uuid for *_, uuid in found]


def all_of(sets: Iterable[set[UUID]]) -> set[UUID]:
    return set().union(*sets)


# ---------------------------------------------------------------- killed and stopped


@pytest.mark.long
def test_every_append_that_a_killed_server_has_answered_is_there(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server:
        writers = [Writer(server.mq, f"s-{number}") for number in range(3)]
        assert stopped_under(writers, server, signal.SIGKILL) == -signal.SIGKILL
    found = written(tmp_path)
    assert len(found) == len(set(found))
    assert all_of(writer.confirmed for writer in writers) <= set(found)
    assert set(found) <= all_of(set(writer.sent.values()) for writer in writers)


def test_a_stop_answers_every_append_that_was_written_and_says_why_it_closes(tmp_path: Path) -> None:
    """Requests keep coming while the server stops: what is answered is written, what is written is answered."""
    with Served(tmp_path / "data") as server:
        writers = [Writer(server.mq, f"s-{number}") for number in range(3)]
        assert stopped_under(writers, server, signal.SIGTERM) == 0
        assert "Traceback" not in server.said()
    assert [writer.reason for writer in writers] == [SERVER_SHUTDOWN] * len(writers)
    found = written(tmp_path)
    assert len(found) == len(set(found))
    assert all_of(writer.confirmed for writer in writers) == set(found)


def test_a_stop_answers_those_who_wait_and_tells_those_who_do_not(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, MqClient(server.mq) as client, MqClient(server.mq) as idle:
        idle.stats()
        (number,) = client.register("ann", ("shop", "*", LONG_AGO))
        request = client.send_fetch_waiting(60_000, (number, 1))
        until(lambda: server.metric("penstock_waiting_polls") == 1)
        server.process.send_signal(signal.SIGTERM)
        assert client.batch(client.answer_to(request), number) == []
        assert client.connection.reason() == idle.connection.reason() == SERVER_SHUTDOWN
        assert server.process.wait(PATIENCE_S) == 0


def test_a_peer_that_never_reads_does_not_hold_up_a_stop(tmp_path: Path) -> None:
    with Served(tmp_path / "data") as server, MqLarge(server.mq) as client:
        client.append("shop", "s", 1, *(an_event(bytes(1_000_000)) for _ in range(8)))
        with MqLarge(server.mq, receive_bytes=1 << 16) as greedy:
            for _ in range(30):
                greedy.send("QS", b"shop", b"s", b"1", b"")
            until(lambda: any(info["unsent_bytes"] > 1 << 20 for info in server.sessions()))
            assert server.stop() == 0
        assert "unfinished" not in server.said()


# ---------------------------------------------------------------- addresses


def test_the_gate_may_listen_on_ipv6(tmp_path: Path) -> None:
    if not has_ipv6():
        pytest.skip("this machine has no IPv6")
    with Served(tmp_path / "data", "--mq", "[::1]:0") as server, MqClient(server.mq) as client:
        client.append("shop", "s", 1, an_event())
        (info,) = server.sessions()
        assert info["peer"].startswith("[::1]:")
        client.close()
        assert server.stop() == 0


def test_the_gate_may_listen_beyond_loopback_if_that_is_allowed(tmp_path: Path) -> None:
    code, said = refused(tmp_path, "--mq", "0.0.0.0:0")
    assert (code, "--mq 0.0.0.0:0 would listen beyond loopback" in said) == (1, True)
    with Served(tmp_path / "data", "--mq", "0.0.0.0:0", "--allow-plaintext", "--allow-anonymous") as server:
        assert server.mq.startswith("0.0.0.0:")
        with MqClient(server.mq) as client:
            client.append("shop", "s", 1, an_event())
        assert server.stop() == 0


def test_a_port_in_use_is_told_in_a_line(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        code, said = refused(tmp_path, "--mq", address)
    assert (code, said) == (1, f"penstock: cannot listen on --mq {address}: address already in use\n")


@pytest.mark.parametrize("address", ["", "127.0.0.1", "tcp://127.0.0.1:1", "127.0.0.1:99999"])
def test_what_is_no_address_is_wrong_use(tmp_path: Path, address: str) -> None:
    result = CliRunner().invoke(app, ["serve", "--data", str(tmp_path / "data"), "--mq", address])
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1)
    assert result.stderr.startswith("penstock: mq = ")


def refused(tmp_path: Path, *flags: str) -> tuple[int, str]:
    """Start a server that must not start; its exit code and the one line that it says."""
    result = subprocess.run(
        [*PENSTOCK, "serve", "--data", str(tmp_path / "data"), "--http", "127.0.0.1:0", *flags],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=PATIENCE_S,
    )
    assert (result.stdout, result.stderr.count("\n")) == ("", 1), result.stderr
    return result.returncode, result.stderr
