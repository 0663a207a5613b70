"""`penstock doctor`: what it finds in good and in bad places, what it says to do, and that it changes nothing."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from penstock import Client, event
from penstock.doctor import CheckResult, CheckStatus, machine, ports, stores
from penstock.settings import Settings
from penstock.spark import sessions
from penstock.store.sqlite import SqliteStore
from penstock.testing import Server
from tests.certificates import Authority
from tests.cli.support import called as penstock
from tests.postgres import Schemas
from tests.store.kit import append, some
from tests.test_cli import (
    be_newer,
    be_something_else,
    flip_a_byte,
    lose_a_commit,
    overwrite_everything,
    put_text_for_bytes,
)
from tests.test_server import fill

FREE = {"PENSTOCK_HTTP": "127.0.0.1:0", "PENSTOCK_MQ": "127.0.0.1:0", "PENSTOCK_REMITS": "127.0.0.1:0"}

Examined = dict[str, dict[str, str]]


@pytest.fixture(autouse=True)
def free_ports(no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """What listens on this machine's usual ports is no matter of ours."""
    monkeypatch.setenv("PENSTOCK_RES", "tcp://127.0.0.1:0")
    for name, value in FREE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a Java nor another Python is started, and the disk is asked a few times only."""
    monkeypatch.setattr(machine, "output_of", lambda _command: None)
    monkeypatch.setattr(sessions, "output_of", lambda _command: None)
    monkeypatch.setattr(machine, "SYNCED_WRITES", 3)


def doctor(*arguments: object) -> tuple[int, Examined]:
    """What it tells programs: the exit code, and its findings by check."""
    code, out, err = penstock("doctor", *arguments, "--json")
    assert err == ""
    document = json.loads(out)
    assert list(document) == ["ok", "checks"]
    assert document["ok"] is (code == 0)
    return code, {found["check"]: found for found in document["checks"]}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("filled") / "data"
    fill(data)
    return data


def contents(data: Path) -> dict[str, bytes]:
    """The files of a store; the index of its log is made anew by whoever comes first."""
    return {path.name: path.read_bytes() for path in data.iterdir() if not path.name.endswith("-shm")}


# ---------------------------------------------------------------- stores


def test_a_healthy_store_is_looked_at_and_left_as_it_is(filled: Path) -> None:
    before = contents(filled)
    code, found = doctor("--data", filled)
    assert contents(filled) == before
    assert code == 0
    assert all(list(each) == ["check", "status", "message", "advice"] for each in found.values())
    assert {each["status"] for each in found.values()} <= {"ok", "warning"}
    assert {"python", "libraries", "sqlite", "postgresql", "java", "pyspark", "workers"} <= set(found)
    assert {"clock", "open files", "port http", "port res", "port mq", "port remits"} <= set(found)
    assert {"file system", "free space", "directory", "fsync", "write-ahead log", "times"} <= set(found)
    assert ", timeline 1, schema " in found["store"]["message"]
    assert ": 6 events, 0 sealed" in found["store"]["message"]
    assert found["records"]["message"] == (
        f"all are whole, in a quick check; penstock verify --data {filled} checks everything"
    )
    assert found["served"]["message"] == "no server has it open"
    assert found["erasures"]["message"] == "none is unfinished"
    assert (found["access"]["status"], found["access"]["message"]) == ("ok", "only its owner can use the store's files")


@pytest.mark.usefixtures("quick")
def test_people_read_a_line_for_each_check_and_below_it_what_to_do(tmp_path: Path) -> None:
    code, out, err = penstock("doctor", "--data", tmp_path / "new")
    lines = out.splitlines()
    assert (code, err) == (0, "")
    assert lines[0].startswith("ok       python           Penstock ")
    assert f"ok       store            there is none in {tmp_path / 'new'} yet" in lines
    assert f"{'':26}→ penstock serve --data {tmp_path / 'new'} creates one" in lines
    assert lines[-1] == "nothing is wrong" or lines[-1].startswith("0 problems, ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_it_works_without_a_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code, found = doctor()
    assert code == 0
    assert found["directory"]["message"] == f"{tmp_path} can be written"
    assert found["store"]["message"] == "no store was named"
    assert "--data DIR" in found["store"]["advice"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("damage", "check", "message", "advice"),
    [
        (flip_a_byte, "records", "its checksum does not match", "penstock verify --data"),
        (put_text_for_bytes, "records", "", "penstock verify --data"),
        (lose_a_commit, "records", "the event at position 3 is missing", "penstock verify --data"),
        (overwrite_everything, "store", "", "restore a backup"),
        (be_newer, "store", "schema", "use the Penstock version that served it last"),
        (be_something_else, "store", "no SQLite database", "name the place of a store"),
    ],
)
def test_a_damaged_store_is_a_problem(
    damage: Callable[[Path], None], check: str, message: str, advice: str, filled: Path, tmp_path: Path
) -> None:
    data = shutil.copytree(filled, tmp_path / "data")
    damage(data)
    code, found = doctor("--data", data)
    assert code == 1
    assert found[check]["status"] == "problem"
    assert message in found[check]["message"]
    assert advice in found[check]["advice"]


@pytest.mark.usefixtures("quick")
def test_a_file_in_the_place_of_the_directory_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no store")
    code, out, err = penstock("doctor", "--data", tmp_path / "file")
    assert (code, err) == (1, "")
    assert f"problem  directory        {tmp_path / 'file'} is not a directory\n" in out
    assert out.endswith("\n1 problem, 0 warnings\n") or "1 problem, " in out.splitlines()[-1]


def test_a_restore_that_was_interrupted_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "restoring").mkdir()
    (found,) = stores.embedded_store(tmp_path, Settings())
    assert found.status is CheckStatus.PROBLEM
    assert "continues where it was" in str(found.advice)


def test_a_clock_that_went_back_is_a_warning(tmp_path: Path) -> None:
    with closing(SqliteStore(tmp_path, clock=lambda: time.time_ns() + 3600 * 10**9)) as store:
        append(store, "order-1", some(1))
    (found,) = (each for each in stores.embedded_store(tmp_path, Settings()) if each.check == "times")
    assert found.status is CheckStatus.WARNING
    assert "s in the future" in found.message
    until = found.message.rpartition(" ")[2]
    assert found.advice == (
        f"if the clock is right, wait: until {until} all events are recorded at that time; if it is wrong, set it"
    )


def test_a_long_log_and_unfinished_erasures_are_warnings(filled: Path) -> None:
    assert stores.wal(filled, Settings(wal_bytes_max=1)).status is CheckStatus.WARNING
    assert stores.wal(filled, Settings()).status is CheckStatus.OK
    assert stores.erasures(2).status is CheckStatus.WARNING


@pytest.mark.usefixtures("quick")
def test_a_store_that_others_can_read_and_lock_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    fill(data)
    data.chmod(0o755)
    (data / "penstock.lock").chmod(0o640)
    (data / "penstock.db").chmod(0o644)
    code, found = doctor("--data", data)
    assert (code, found["access"]["status"]) == (0, "warning")
    assert found["access"]["message"] == (
        "other users can read and lock the store: penstock.db is 0644, penstock.lock is 0640"
    )
    advice = "restart its server as the owner of the files, or chmod -R"
    assert found["access"]["advice"] == f"{advice} go= {data}"
    # A group may be let in, and nobody else.
    monkeypatch.setenv("PENSTOCK_GROUP_ACCESS", "true")
    found = doctor("--data", data)[1]
    assert found["access"]["message"] == "other users can read and lock the store: penstock.db is 0644"
    assert found["access"]["advice"] == f"{advice} o= {data}"
    data.chmod(0o770)
    assert doctor("--data", data)[1]["access"]["message"] == "only its owner and its group can use the store's files"
    monkeypatch.delenv("PENSTOCK_GROUP_ACCESS")
    assert doctor("--data", data)[1]["access"]["advice"].endswith("; if its group may use it, set group_access")


@pytest.mark.usefixtures("quick")
def test_a_store_that_is_closed_to_us_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(tmp_path / "data")
    # Root may do anything, so that the system has to be asked another way.
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    code, found = doctor("--data", tmp_path / "data")
    owner = (tmp_path / "data").stat().st_uid
    assert (code, found["store"]["advice"]) == (1, "run the doctor as that user")
    assert found["store"]["message"] == f"{tmp_path / 'data'} belongs to user {owner}, and you may not open it"


@pytest.mark.usefixtures("quick")
def test_a_store_on_postgresql_is_looked_at_as_well(schemas: Schemas) -> None:
    from penstock.store.postgres import PostgresStore

    with closing(PostgresStore(schemas.url())) as store:
        append(store, "order-1", some(2))
    code, found = doctor("--store", schemas.url())
    assert code == 0
    assert ": 2 events, " in found["store"]["message"]
    assert found["records"]["status"] == found["times"]["status"] == "ok"
    code, found = doctor("--store", "postgresql://127.0.0.1:1/nothing?connect_timeout=1")
    assert (code, found["store"]["status"]) == (1, "problem")
    assert "check the database" in found["store"]["advice"]
    code, found = doctor("--store", "postgresql://127.0.0.1/x?no_such_parameter=1")
    assert (code, found["store"]["status"]) == (1, "problem")
    assert "docs/postgresql.md" in found["store"]["advice"]


@pytest.mark.usefixtures("quick")
def test_a_database_that_would_lose_commits_is_a_problem(schemas: Schemas) -> None:
    from penstock.store.postgres import PostgresStore

    with closing(PostgresStore(schemas.url())) as store:
        append(store, "order-1", some(2))
    assert "writes" not in doctor("--store", schemas.url())[1]
    try:
        schemas.server.set("fsync", "off")
        deadline = time.monotonic() + 30
        while (seen := doctor("--store", schemas.url()))[0] == 0:
            assert time.monotonic() < deadline
    finally:
        schemas.server.set("fsync", "on")
    code, found = seen
    assert (code, found["writes"]["status"]) == (1, "problem")
    assert "the database has fsync = off" in found["writes"]["message"]
    assert "set it to on" in found["writes"]["advice"]
    assert found["records"]["status"] == "ok"


# ---------------------------------------------------------------- servers and ports


@pytest.mark.usefixtures("quick")
def test_a_running_server_is_asked(served: Server, client: Client) -> None:
    client.append("shop", "order-1", [event("Placed", {})])
    code, found = doctor("--url", served.url)
    assert code == 0
    assert found["server"]["message"].startswith(f"{served.url} answers in ")
    assert found["records"]["message"] == "the last event can be read: Placed in shop"
    assert "port http" not in found


@pytest.mark.usefixtures("quick")
def test_a_server_that_is_not_there_is_a_problem_and_what_to_do_is_said() -> None:
    code, found = doctor("--url", "penstock://127.0.0.1:1")
    assert (code, found["server"]["status"]) == (1, "problem")
    assert "penstock serve" in found["server"]["advice"]


def test_only_one_thing_is_looked_at(tmp_path: Path) -> None:
    code, out, err = penstock("doctor", "--data", tmp_path, "--url", "penstock://127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err == "penstock: only one of --url, --data and --store can be given\n"


@pytest.mark.usefixtures("quick")
def test_a_flag_beats_the_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_URL", "penstock://127.0.0.1:1")
    monkeypatch.setenv("PENSTOCK_STORE", "postgresql://127.0.0.1:1/nothing")
    code, found = doctor("--data", tmp_path)
    assert (code, found["store"]["message"]) == (0, f"there is none in {tmp_path} yet")
    assert "server" not in found


@pytest.mark.usefixtures("quick")
def test_a_server_whose_last_event_is_erased_is_well(served: Server, client: Client) -> None:
    client.append("erased", "s", [event("T")])
    client.erase_stream("erased", "s")
    code, found = doctor("--url", served.url)
    assert (code, found["records"]["message"]) == (0, "the last event was erased")


def test_an_address_that_is_none_is_wrong_use() -> None:
    code, out, err = penstock("doctor", "--url", "http://127.0.0.1:8472")
    assert (code, out) == (2, "")
    assert err.startswith("penstock: 'http://127.0.0.1:8472' is no address of a Penstock")


@pytest.mark.usefixtures("quick")
def test_no_store_is_made_whichever_way_it_is_named(tmp_path: Path) -> None:
    for flag, value in (
        ("--data", tmp_path / "new"),
        ("--store", f"sqlite:///{tmp_path / 'new'}"),
        ("--url", f"sqlite:///{tmp_path / 'new'}"),
    ):
        code, found = doctor(flag, value)
        assert (code, found["store"]["message"]) == (0, f"there is none in {tmp_path / 'new'} yet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("quick")
def test_a_penstock_on_the_usual_ports_is_known(served: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_HTTP", served.http.removeprefix("http://"))
    monkeypatch.setenv("PENSTOCK_RES", served.zmq_url.removeprefix("zmq+"))
    monkeypatch.setenv("PENSTOCK_MQ", served.url.removeprefix("penstock://"))
    monkeypatch.setenv("PENSTOCK_REMITS", served.remits)
    monkeypatch.setattr(ports, "ANSWER_S_MAX", 30.0)
    code, found = doctor("--data", served.data)
    assert code == 0
    for gate in ("http", "res", "mq"):
        assert "enstock" in found[f"port {gate}"]["message"]
        assert " with store " in found[f"port {gate}"]["message"]
    assert found["port remits"]["message"] == f"{served.remits}: a server of Remits, as Penstock is"
    assert found["served"]["message"] == "a server has it open"


def test_a_server_with_tls_is_known_by_its_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own, other = authority.issue("own", "127.0.0.1"), authority.issue("other", "127.0.0.1")
    with Server(tls_cert=str(own.cert), tls_key=str(own.key)) as server:
        mq = server.url.removeprefix("penstock://").partition("?")[0]
        places = {"mq": mq, "remits": server.remits, "http": server.http.removeprefix("https://")}
        for gate, place in places.items():
            found = ports.port(gate, place, own.cert)
            assert (found.status, "enstock" in found.message) == (CheckStatus.OK, True)
            found = ports.port(gate, place, other.cert)
            why = "the certificate of 127.0.0.1 is not trusted: give its CA with tls_ca=FILE"
            assert found.message == f"{place}: a server with TLS: {why}"


@pytest.fixture
def stranger() -> Iterator[str]:
    """Somebody who listens, and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"127.0.0.1:{listening.getsockname()[1]}"


@pytest.mark.parametrize("gate", ports.GATES)
def test_a_stranger_on_a_port_is_a_problem(gate: str, stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ANSWER_S_MAX", 0.2)
    address = f"tcp://{stranger}" if gate == "res" else stranger
    found = ports.port(gate, address)
    assert found.status is CheckStatus.PROBLEM
    assert found.message == f"a program that is not Penstock listens on {address}"
    assert f"--{gate} " in str(found.advice)


@pytest.mark.usefixtures("quick")
def test_a_port_that_is_taken_makes_the_exit_code_1(stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "ANSWER_S_MAX", 0.2)
    monkeypatch.setenv("PENSTOCK_MQ", stranger)
    code, found = doctor()
    assert (code, found["port mq"]["status"]) == (1, "problem")


def test_a_port_may_be_free_or_impossible() -> None:
    # An address that is nobody else's: on the usual one somebody may get the port meanwhile.
    with socket.socket() as unused:
        unused.bind(("127.84.72.1", 0))
        free = f"127.84.72.1:{unused.getsockname()[1]}"
    assert ports.port("mq", free) == CheckResult("port mq", CheckStatus.OK, f"{free} is free")
    assert ports.port("mq", "192.0.2.1:8472").status is CheckStatus.PROBLEM
    assert ports.port("mq", "no-such-host.invalid:8472").status is CheckStatus.PROBLEM
    assert ports.port("mq", "a..b:8472").status is CheckStatus.PROBLEM


# ---------------------------------------------------------------- Java, Spark, and the rest of the machine


def test_no_java_on_the_path_is_a_warning_with_the_way_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, found = doctor()
    assert code == 0
    assert found["java"]["status"] == "warning"
    assert found["java"]["message"] == "Spark needs Java 17 or newer, and none was found"
    assert "apt-get install openjdk-17-jre-headless" in found["java"]["advice"]
    assert "set JAVA_HOME" in found["java"]["advice"]


def test_a_library_that_is_missing_or_too_old_is_a_problem_and_ends_the_examination(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "version_of", lambda name: {"cbor2": "6.1.9", "lupa": None}.get(name, "999"))
    monkeypatch.setattr(machine, "output_of", lambda _command: None)
    monkeypatch.setattr(sessions, "output_of", lambda _command: None)
    code, found = doctor()
    assert code == 1
    assert found["libraries"]["message"] == "cbor2 6.2 is needed, 6.1.9 found; lupa 2.8 is needed, none found"
    assert list(found)[-1] == "open files"


@pytest.mark.usefixtures("quick")
def test_a_password_in_an_address_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    code, out, err = penstock("doctor", "--store", "postgresql://me:secret@127.0.0.1:1/x?connect_timeout=1")
    assert (code, err) == (1, "")
    assert "secret" not in out
    assert os.environ.get("PENSTOCK_STORE") is None
