"""A token is used over all gates, by commands and by Spark, and is in nothing that they leave behind or show."""

import base64
import contextlib
import json
import subprocess
import sys
import threading
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, Self

import pytest

import penstock
from penstock.errors import PenstockError
from tests.gates.remits_client import Remits
from tests.gates.serving import Served
from tests.principals import closed
from tests.test_server import PENSTOCK, environment

LOOK_S: Final = 0.05
TOKEN_REQUEST: Final = 32


class Secret:
    """A token, and how to find it in what should not have it."""

    def __init__(self, token: str) -> None:
        self.token = token
        name, _, self.secret = token.partition(".")
        whole, secret = token.encode(), self.secret.encode()
        # The id is public. A part of the secret is no better than all of it.
        self.traces = [secret[:12], secret[-12:], secret[16:28], secret.hex().encode()]
        self.traces += [base64.b64encode(each)[:-4] for each in (whole, secret)]
        assert name

    def is_in(self, content: bytes) -> bool:
        return any(trace in content for trace in self.traces)

    def leaks(self, texts: Mapping[str, bytes], *folders: Path) -> list[str]:
        """Which of these texts have it, and which files in folders."""
        found = [name for name, content in texts.items() if self.is_in(content)]
        files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
        return found + [str(path) for path in files if self.is_in(path.read_bytes())]


class Processes:
    """Looks at the command lines of all processes, again and again, while a `with` runs."""

    def __init__(self, secret: Secret) -> None:
        self._secret = secret
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: set[str] = set()
        self.leaks: list[str] = []

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            for process in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    line = (process / "cmdline").read_bytes() + (process / "comm").read_bytes()
                    self.seen.add(line.split(b"\0")[0].decode(errors="replace").rpartition("/")[2])
                    if self._secret.is_in(line):
                        self.leaks.append(process.name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Secret, Path]]:
    """A server that logs everything, a token, and the file that has it."""
    folder = tmp_path_factory.mktemp("guarded")
    secret = Secret(closed(folder / "data")("root"))
    file = tmp_path_factory.mktemp("token") / "token"
    file.write_text(secret.token)
    with Served(folder / "data", "--log-level", "debug") as server:
        with penstock.connect(f"penstock://{server.mq}", token=secret.token) as client:
            client.append("shop", "order-1", [penstock.event("OrderPlaced", {"amount": 42})])
        yield server, secret, file


def http(server: Served, path: str, token: str) -> bytes:
    request = urllib.request.Request(f"http://{server.http}{path}", headers={"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        return f"{error} {error.headers}".encode() + error.read()


def test_a_token_that_is_used_over_all_gates_is_shown_by_none(guarded: tuple[Served, Secret, Path]) -> None:
    server, secret, _ = guarded
    shown: dict[str, bytes] = {"ready": server.ready.encode()}
    for token in (secret.token, f"{secret.token}x"):
        for url in (f"penstock://{server.mq}", f"zmq+{server.res}", f"zmq+{server.res_legacy}"):
            try:
                with penstock.connect(url, token=token) as client:
                    shown[f"{url} whoami"] = repr((client, client.whoami())).encode()
                    shown[f"{url} stats"] = repr(client.stats()).encode()
                    shown[f"{url} audit"] = repr(list(client.read_all(context="$audit"))).encode()
                    shown[f"{url} sessions"] = http(server, "/sessions", secret.token)
            except PenstockError:
                shown[f"{url} error"] = traceback.format_exc().encode()
        with Remits(server.remits) as remits:
            shown[f"remits {token[-1]}"] = repr(remits.ask(TOKEN_REQUEST, {"token": token})).encode()
            shown["remits list"] = repr(remits.ask(4, {})).encode()
        for path in ("/sessions", "/metrics", "/health", "/nothing"):
            shown[f"{path} {token[-1]}"] = http(server, path, token)
    assert len(shown) > 20
    assert b'"peer"' in b"".join(shown.values())
    assert b"penstock_gate_sessions" in b"".join(shown.values())
    assert secret.leaks(shown) == []
    assert secret.leaks({"log": server.said().encode()}, server.data) == []


def test_a_token_that_commands_use_is_shown_by_none(guarded: tuple[Served, Secret, Path], tmp_path: Path) -> None:
    server, secret, file = guarded
    named = {**environment(), "PENSTOCK_URL": f"penstock://{server.mq}", "XDG_STATE_HOME": str(tmp_path / "state")}
    events = tmp_path / "events.jsonl"
    shown = {}
    with Processes(secret) as processes:
        for arguments in (
            ("stats",),
            ("read", "shop"),
            ("export", str(events)),
            ("replay", "--context", "shop", "--to-context", "other"),
            ("sql", "SELECT * FROM events"),
            ("doctor",),
            ("sessions", "--http", server.http),
            ("read", "no", "such", "arguments", "at", "all"),
        ):
            for env, flags in ((named, ("--token", f"@{file}")), ({**named, "PENSTOCK_TOKEN": secret.token}, ())):
                done = subprocess.run([*PENSTOCK, *arguments, *flags], env=env, capture_output=True, check=False)
                assert b"authenticated" not in done.stderr
                shown[f"{arguments} {flags}"] = done.stdout + done.stderr
        refused = subprocess.run(
            [*PENSTOCK, "stats"], env={**named, "PENSTOCK_TOKEN": f"{secret.token}x"}, capture_output=True, check=False
        )
        assert b"is not valid here" in refused.stderr
        shown["refused"] = refused.stderr
    assert any("penstock" in name or "python" in name for name in processes.seen)
    assert processes.leaks == []
    assert events.stat().st_size
    assert secret.leaks({**shown, "log": server.said().encode()}, server.data, tmp_path) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_token_that_spark_uses_is_shown_nowhere(guarded: tuple[Served, Secret, Path], tmp_path: Path) -> None:
    server, secret, file = guarded
    folder = tmp_path / "spark"
    folder.mkdir()
    command = [sys.executable, "-m", "tests.spark.token_driver", f"penstock://{server.mq}", str(folder), str(file)]
    with Processes(secret) as processes:
        done = subprocess.run(
            command,
            env={**environment(), "PENSTOCK_TOKEN": secret.token, "SPARK_LOCAL_DIRS": str(tmp_path / "local")},
            capture_output=True,
            check=False,
            timeout=500,
        )
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.stdout.decode().endswith("done\n"), text[-5000:]
    assert "rows 1\n" in text
    assert text.count("failed Traceback") == 4
    assert any("java" in name for name in processes.seen)
    assert processes.leaks == []
    logged = b"".join(path.read_bytes() for path in (folder / "event-log").rglob("*") if path.is_file())
    assert b"SparkListenerSQLExecutionStart" in logged
    with penstock.connect(f"penstock://{server.mq}", token=secret.token) as client:
        assert sum(1 for _ in client.read_all(context="copy")) == 3
    assert secret.leaks({"driver": text.encode(), "log": server.said().encode()}, folder, server.data) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_token_that_an_archive_and_a_pipeline_use_is_shown_nowhere(
    guarded: tuple[Served, Secret, Path], tmp_path: Path
) -> None:
    server, secret, file = guarded
    logs = tmp_path / "event-log"
    logs.mkdir()
    given = ("enabled=true", "compress=false", f"dir={logs.as_uri()}")
    conf = [text for each in given for text in ("--conf", f"spark.eventLog.{each}")]
    url, lake = f"penstock://{server.mq}", tmp_path / "lake"
    with Processes(secret) as processes:
        archived = subprocess.run(
            [*PENSTOCK, "lake", "archive", "--url", url, "--lake", str(lake), "--token", f"@{file}", *conf],
            env=environment(),
            capture_output=True,
            check=False,
            timeout=500,
        )
        assert archived.returncode == 0, archived
        shown = {"archive": archived.stdout + archived.stderr}
        for name, *flags in (("init", "--url", url), ("run",), ("status",)):
            command = [*PENSTOCK, "pipeline", name, str(tmp_path / "p"), *flags, "--token", f"@{file}"]
            done = subprocess.run(command, env=environment(), capture_output=True, check=False, timeout=300)
            assert done.returncode == 0, done
            shown[name] = done.stdout + done.stderr
    assert processes.leaks == []
    assert b"SparkListenerApplicationStart" in b"".join(each.read_bytes() for each in logs.rglob("*") if each.is_file())
    assert secret.leaks({**shown, "log": server.said().encode()}, tmp_path, server.data) == []


# ---------------------------------------------------------------- that a leak would be found


def test_a_token_that_is_planted_is_found(guarded: tuple[Served, Secret, Path], tmp_path: Path) -> None:
    _, secret, file = guarded
    for planted in (
        secret.token,
        secret.secret[:12],
        f"Authorization: Bearer {secret.token}",
        json.dumps({"options": {"token": secret.token}}),
        secret.secret.encode().hex(),
        base64.b64encode(secret.token.encode()).decode(),
        repr(secret.token.encode()),
    ):
        assert secret.leaks({"text": planted.encode()}) == ["text"]
        (tmp_path / "planted.log").write_text(f"before {planted} after")
        assert secret.leaks({}, tmp_path) == [str(tmp_path / "planted.log")]
    assert secret.leaks({}, file.parent) == [str(file)]
    with Processes(secret) as processes:
        command = [sys.executable, "-c", "import sys; sys.stdin.read()", secret.token]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as shows:
            until_s = time.monotonic() + 60
            while str(shows.pid) not in processes.leaks:
                assert time.monotonic() < until_s
                time.sleep(LOOK_S)
    assert processes.leaks
