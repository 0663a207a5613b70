"""Every command that talks to a server can show it a token, and no command line has one."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import penstock
from penstock.cli import COMMANDS
from penstock.cli.root import loaded
from penstock.testing import Server
from tests.cli.support import Done, run, variables
from tests.client.fakes import FakeMq
from tests.principals import closed

NO_TOKEN = "this server has principals, and this connection has not authenticated"


class Guarded(NamedTuple):
    server: Server
    token: Callable[[str], str]
    files: Path

    def run(self, *arguments: object, token: str = "root", url: str | None = None, **more: Any) -> Done:
        """A command whose principal is named by `--token`."""
        return run(*arguments, "--token", f"@{self.file(token)}", url=url or self.server.url, **more)

    def file(self, name: str) -> Path:
        path = self.files / name
        path.write_text(f"{self.token(name)}\n")
        return path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data = tmp_path_factory.mktemp("guarded")
    token = closed(data, shop="read,append:shop")
    with Server(data) as server:
        with penstock.connect(server.url, token=token("root")) as client:
            client.append("shop", "order-1", [penstock.event("OrderPlaced", {"amount": 42})])
            client.log("visits").create()
        yield Guarded(server, token, tmp_path_factory.mktemp("tokens"))


def commands() -> Iterator[tuple[str, Any]]:
    for name in COMMANDS:
        command = loaded(name)
        for each in getattr(command, "commands", {"": command}).values():
            yield f"{name} {each.name}" if each.name != name else name, each


def test_every_command_that_talks_to_a_server_takes_a_token() -> None:
    flags = {name: {flag for parameter in each.params for flag in parameter.opts} for name, each in commands()}
    served = {name for name, found in flags.items() if "--url" in found} | {"sessions", "kick"}
    served |= {"pipeline run", "pipeline dry-run", "pipeline status"}
    assert {name for name, found in flags.items() if "--token" in found} == served


@pytest.mark.parametrize(
    "arguments",
    [
        ("stats",),
        ("contexts",),
        ("streams", "shop"),
        ("read", "shop"),
        ("tail",),
        ("append", "shop", "order-2", "OrderPlaced", "{}"),
        ("queue", "list"),
        ("subscription", "list"),
        ("log", "list"),
        ("log", "read", "visits"),
        ("iterator", "list"),
        ("sql", "SELECT count(*) FROM events"),
        ("export", "-", "--format", "jsonl"),
        ("erasures",),
        ("bench", "--events", "10"),
        ("replay", "--context", "shop", "--to-context", "copy"),
        ("doctor",),
    ],
    ids=lambda arguments: " ".join(arguments[:2]),
)
def test_a_command_shows_its_token(guarded: Guarded, tmp_path: Path, arguments: tuple[str, ...]) -> None:
    env = variables(guarded.server.url, XDG_STATE_HOME=str(tmp_path))
    done = guarded.run(*arguments, env=env)
    assert NO_TOKEN not in done.out + done.err
    assert done.code == 0 or arguments == ("doctor",), done
    done = run(*arguments, env=env)
    assert done.code != 0
    assert NO_TOKEN in " ".join((done.out + done.err).split())
    done = run(*arguments, env={**env, "PENSTOCK_TOKEN": guarded.token("root")})
    assert NO_TOKEN not in done.out + done.err


def test_sessions_are_listed_and_kicked_with_a_token(guarded: Guarded) -> None:
    http = guarded.server.http.removeprefix("http://")
    with penstock.connect(guarded.server.url, token=guarded.token("root")):
        refused = run("sessions", "--http", http)
        assert refused.code == 1
        assert "send the header Authorization: Bearer TOKEN (of commands --token or PENSTOCK_TOKEN)" in refused.err
        done = guarded.run("sessions", "--http", http, "--json")
        assert done.code == 0
        assert guarded.run("kick", "mq-999", "--http", http).err == "penstock: there is no session mq-999\n"


def test_an_import_shows_its_token(guarded: Guarded, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl"
    file.write_text('{"context": "shop", "stream": "s", "type": "T"}\n')
    assert NO_TOKEN in run("import", file, url=guarded.server.url).err
    assert guarded.run("import", file, token="shop").code == 0


def test_a_token_can_come_from_standard_input(guarded: Guarded) -> None:
    done = run("read", "shop", "--token", "@-", url=guarded.server.url, stdin=f"  {guarded.token('shop')}\r\n")
    assert done.code == 0


def test_a_replay_does_not_show_the_token_of_one_server_to_another(guarded: Guarded, tmp_path: Path) -> None:
    data = tmp_path / "other"
    token = closed(data)
    (tmp_path / "token").write_text(token("root"))
    asked = ("replay", "--context", "shop", "--state", tmp_path / "state.json")
    with Server(data) as other:
        done = guarded.run(*asked, "--to-url", other.url)
        assert (done.code, NO_TOKEN in done.err) == (1, True)
        done = guarded.run(*asked, "--to-url", other.url, "--to-token", f"@{tmp_path / 'token'}")
        assert done.code == 0, done
        with penstock.connect(other.url, token=token("root")) as client:
            assert [info.name for info in client.contexts() if info.name == "shop"] == ["shop"]
        refused = run("replay", "--context", "shop", "--to-context", "x", "--to-token", "@x", url=other.url)
        assert refused.err == "penstock: --to-token belongs to --to-url\n"


# ---------------------------------------------------------------- wrong use, which shows no token


def test_a_token_on_the_command_line_is_refused_and_not_repeated(guarded: Guarded) -> None:
    token = guarded.token("shop")
    for given in (token, "", "@"):
        done = run("read", "shop", "--token", given, url=guarded.server.url)
        assert done.code == 2
        assert "--token takes @FILE" in done.err
        assert token not in done.err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "does not hold a token"),
        (b"two words", "does not hold a token"),
        (b"x" * 300, "does not hold a token"),
        (b"line\nline", "does not hold a token"),
        (b"\xff\xfe", "does not hold a token"),
    ],
)
def test_a_file_that_holds_no_token_is_refused(guarded: Guarded, tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "token").write_bytes(content)
    done = run("read", "shop", "--token", f"@{tmp_path / 'token'}", url=guarded.server.url)
    assert done.code == 2
    assert said in done.err


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = run("stats", "--token", f"@{tmp_path / 'nothing'}", url="penstock://127.0.0.1:1")
    assert done == (2, "", f"penstock: --token @{tmp_path / 'nothing'}: no such file or directory\n")


@pytest.mark.parametrize("url", ["penstock://{}@127.0.0.1:1", "penstock://127.0.0.1:1?token={}"])
def test_a_token_in_a_url_is_refused_and_not_repeated(guarded: Guarded, url: str) -> None:
    done = run("stats", "--url", url.format(guarded.token("shop")))
    assert done.code == 2
    assert "PENSTOCK_TOKEN" in done.err
    assert guarded.token("shop") not in done.err


def test_a_revoked_or_wrong_token_is_told_in_a_line(guarded: Guarded) -> None:
    done = run("stats", env=variables(guarded.server.url, PENSTOCK_TOKEN="wrong.token"))
    assert done.code == 1
    assert done.err.startswith("penstock: the token is not valid here")
    assert "wrong.token" not in done.err


def test_the_doctor_asks_for_a_token_and_shows_it_to_no_stranger(guarded: Guarded) -> None:
    done = run("doctor", url=guarded.server.url)
    assert "give the token of an administrator: --token @FILE" in " ".join(done.out.split())
    gates = {
        "PENSTOCK_MQ": guarded.server.url.removeprefix("penstock://"),
        "PENSTOCK_RES": guarded.server.zmq_url.removeprefix("zmq+"),
        "PENSTOCK_REMITS": guarded.server.remits,
        "PENSTOCK_HTTP": guarded.server.http.removeprefix("http://"),
    }
    with FakeMq(lambda _: [b"IA", b"root", b"", b"", b"1", b"1"]) as stranger:
        env = variables(PENSTOCK_TOKEN=guarded.token("root"), **gates)
        found = " ".join(run("doctor", env=env).out.split())
        for said in (
            "a Penstock server with principals",
            "a server of Remits with principals",
            "a server with principals, as Penstock is",
        ):
            assert said in found
        assert "not Penstock listens" not in found
        run("doctor", env={**env, "PENSTOCK_MQ": stranger.url.removeprefix("penstock://")})
        assert stranger.asked
        assert all(guarded.token("root").encode() not in each for fields in stranger.asked for each in fields)
