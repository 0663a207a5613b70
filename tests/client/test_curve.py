"""The client over CURVE: keys in its URL, and errors that say which side has to change what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

import pytest

import penstock
from penstock import event, testing
from penstock.errors import BadUrl, CannotConnect, TlsFailed
from penstock.model import AddCredential, Done
from penstock.wire.curve import key_text, new_secret_key, public_key
from tests.principals import ask, issue, put

SECRETS: Final = {name: new_secret_key() for name in ("server", "ann", "unknown")}
PATIENT_S: Final = 20.0


def key(name: str) -> str:
    return key_text(public_key(SECRETS[name]))


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keys")
    for name, secret in SECRETS.items():
        (folder / name).write_text(key_text(secret), encoding="ascii")
        (folder / name).chmod(0o600)
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("data")
    with penstock.connect(f"sqlite:///{data}") as client:
        put(client, "root", "all")
        put(client, "ann", "read,append:shop")
        ask(client, AddCredential("ann", f"curve:{key('ann')}"), Done)
    return data


@pytest.fixture(scope="module")
def token(data: Path) -> str:
    with penstock.connect(f"sqlite:///{data}") as client:
        return issue(client, "ann").token


@pytest.fixture(scope="module")
def server(token: str, data: Path, keys: Path) -> Iterator[testing.Server]:
    with testing.server(data, curve_secret_key=keys / "server") as served:
        yield served


def who(client: penstock.Client) -> str:
    return client.whoami().principal


def test_a_client_with_a_key_is_its_principal(server: testing.Server, keys: Path) -> None:
    with penstock.connect(f"{server.zmq_url}&curve_key_file={keys / 'ann'}") as client:
        assert who(client) == "ann"
        client.append("shop", "s", [event("a", bytes(1 << 20))])
        assert [len(each.body) for each in client.read_stream("shop", "s")] == [1 << 20]


def test_a_client_without_a_key_may_send_a_token(server: testing.Server, token: str) -> None:
    with penstock.connect(server.zmq_url) as client:
        assert who(client) == "nobody"
    with penstock.connect(server.zmq_url, token=token) as client:
        assert who(client) == "ann"


def refusal(url: str) -> str:
    """How an attempt to connect fails; it must fail at once and for good."""
    with pytest.raises(TlsFailed) as caught, penstock.connect(url, timeout=PATIENT_S) as client:
        client.stats()
    return caught.value.reason


def test_a_wrong_server_key_is_named_as_what_to_check(server: testing.Server) -> None:
    url = f"{server.zmq_url.partition('?')[0]}?curve_server_key={quote(key('unknown'), safe='')}"
    with pytest.raises(CannotConnect) as caught, penstock.connect(url, timeout=0.5) as client:
        client.stats()
    assert "check that curve_server_key is the public key that its log names" in str(caught.value)


def test_both_sides_are_told_when_only_one_speaks_curve(server: testing.Server) -> None:
    plain = server.zmq_url.partition("?")
    assert "add ?curve_server_key=KEY, the public key that its log names" in refusal(plain[0])
    with testing.server() as other:
        assert "give it --curve-secret-key FILE, or drop curve_server_key" in refusal(f"{other.zmq_url}?{plain[2]}")


def test_a_key_that_a_gate_does_not_take_is_refused_at_once(data: Path, keys: Path) -> None:
    with testing.server(curve_secret_key=keys / "server", curve_known_only=True) as strict:
        assert "the server takes only keys of its principals" in refusal(strict.zmq_url)


def test_a_key_file_that_cannot_be_used_is_named(server: testing.Server, keys: Path, tmp_path: Path) -> None:
    assert "cannot be read: no such file" in refusal(f"{server.zmq_url}&curve_key_file={tmp_path / 'none'}")
    wrong = tmp_path / "wrong"
    wrong.write_text("x")
    wrong.chmod(0o600)
    assert "is not a key of CURVE" in refusal(f"{server.zmq_url}&curve_key_file={wrong}")
    wrong.write_text((keys / "ann").read_text())
    wrong.chmod(0o644)
    assert "can be read by other users" in refusal(f"{server.zmq_url}&curve_key_file={wrong}")


WRONG: Final = {
    "curve_key_file=x": "curve_key_file needs curve_server_key",
    "curve_server_key=x": "in a URL, & is %26, # is %23 and % is %25",
    "curve_server_key=": "curve_server_key has no value",
    "curve_secret_key=x": "it has an unknown parameter",
    f"curve_server_key={quote(key('server'))}&curve_server_key=x": "it has curve_server_key twice",
    "tls": "zmq+tcp:// has CURVE",
}


@pytest.mark.parametrize(("query", "why"), WRONG.items(), ids=range(len(WRONG)))
def test_a_wrong_url_is_refused_and_its_query_is_not_shown(query: str, why: str) -> None:
    with pytest.raises(BadUrl) as caught:
        penstock.connect(f"zmq+tcp://127.0.0.1:1?{query}")
    assert why in str(caught.value)
    assert key("server") not in str(caught.value)


def test_other_urls_have_no_keys_of_curve() -> None:
    with pytest.raises(BadUrl, match="unknown parameter"):
        penstock.connect("penstock://127.0.0.1:1?curve_server_key=x")
