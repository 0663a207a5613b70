"""Several hosts in one URL: which is tried when, what an error says, and what stays as with one host."""

import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client import hosts as hosts_module
from penstock.client.hosts import HOSTS_MAX, Host, Hosts
from penstock.client.transport import MqTransport, transport_to
from penstock.errors import BadUrl, CannotConnect, ConnectionLost, NotAuthenticated, Retry, TlsFailed
from penstock.testing import Server
from tests.certificates import Authority
from tests.client.conftest import NETWORKS, Connect, Way, end, url_of
from tests.client.fakes import COMMITTED, PATIENT_S, FakeMq, answering
from tests.client.support import numbers, one, some
from tests.gates.retries import free_port
from tests.gates.serving import Served

pytestmark = pytest.mark.over("penstock", both=True)


def joined(*urls: str, parameters: str = "") -> str:
    """One URL with the hosts of all."""
    scheme, places = urls[0].partition("://")[0], [re.sub(r"^.*://|\?.*", "", url) for url in urls]
    return f"{scheme}://{','.join(places)}{parameters}"


def dead() -> str:
    return f"penstock://127.0.0.1:{free_port()}"


def place(url: str) -> str:
    return url.rpartition("/")[2]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosts_module, "HOST_S_MAX", 0.2)


@pytest.fixture
def mute() -> Iterator[str]:
    """A host that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield f"penstock://127.0.0.1:{listening.getsockname()[1]}"


# ---------------------------------------------------------------- URLs


def hosts_of(url: str) -> list[tuple[str, int, str]]:
    transport = transport_to(url)
    assert isinstance(transport, MqTransport)
    return [tuple(host) for host, _ in transport.hosts.turns(0.0, lambda: 0.0)]  # type: ignore[misc]


def test_each_host_of_a_url_has_a_name_a_port_and_a_url_of_its_own() -> None:
    assert hosts_of("penstock://a:1,b.example,[::1]:3/?tls&tls_ca=/x,y") == [
        ("a", 1, "penstock://a:1/?tls&tls_ca=/x,y"),
        ("b.example", 8472, "penstock://b.example/?tls&tls_ca=/x,y"),
        ("::1", 3, "penstock://[::1]:3/?tls&tls_ca=/x,y"),
    ]
    assert hosts_of("penstock://a:1") == [("a", 1, "penstock://a:1")]


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("penstock://a,,b", "it names no host"),
        ("penstock://a:1,", "it names no host"),
        ("penstock://a:1,b:x", "port"),
        ("penstock://a:1,b:0", "port 0"),
        ("penstock://a:1,b:2/path", "more than a host"),
        ("penstock://a:1,b:2?x=1", "unknown parameter"),
        ("mysql://a,b", "use penstock://"),
        (f"penstock://{','.join('abcdefghijklmnopq')}", f"it names 17 hosts, and may name {HOSTS_MAX}"),
    ],
)
def test_a_url_with_a_host_that_cannot_be_is_refused(url: str, reason: str) -> None:
    with pytest.raises(BadUrl, match=reason):
        transport_to(url)


def test_a_secret_in_a_url_of_several_hosts_is_not_shown() -> None:
    for url in ("penstock://user:secret@a:1,b:2", "penstock://a:1,user:secret@b:2", "penstock://user:secret,x@a:1"):
        with pytest.raises(BadUrl) as caught:
            transport_to(url)
        assert "secret" not in str(caught.value)


# ---------------------------------------------------------------- turns


def turns(hosts: Hosts, seconds: float) -> list[tuple[str, float]]:
    return [(host.name, round(end, 3)) for host, end in hosts.turns(seconds, lambda: 0.0)]


def test_hosts_have_turns_from_the_last_one_used_on_and_a_share_of_the_time() -> None:
    a, b, c = (Host(name, 1, f"penstock://{name}:1") for name in "abc")
    hosts = Hosts("penstock://a,b,c", (a, b, c))
    assert turns(hosts, 1.5) == [("a", 0.5), ("b", 0.75), ("c", 10.0)]
    assert turns(hosts, 60.0) == [("a", 3.0), ("b", 3.0), ("c", 10.0)]
    hosts.use(b)
    assert [name for name, _ in turns(hosts, 1.0)] == ["b", "c", "a"]
    hosts.leave(a)
    assert [name for name, _ in turns(hosts, 1.0)] == ["b", "c", "a"]
    hosts.leave(b)
    hosts.leave(b)
    assert [name for name, _ in turns(hosts, 1.0)] == ["c", "a", "b"]


# ---------------------------------------------------------------- connecting


@pytest.mark.over(*NETWORKS, both=True)
def test_the_next_host_is_tried_when_one_does_not_answer(
    way: Way, connect: Connect, served: Served, context: str
) -> None:
    client = connect(f"{way.scheme}://{place(dead())},{place(url_of(served, way.scheme))}")
    client.append(context, "s", some(2))
    assert numbers(client.read_stream(context, "s")) == [1, 2]
    assert [event.json() for event in client.read_all(context=context)] == [1, 2]
    client.append_many([(context, "s", one())])


def test_a_host_that_says_nothing_takes_its_share_of_the_time(connect: Connect, mute: str, hasty: None) -> None:
    # Only an answer tells that a host is there: that to the token.
    with FakeMq(lambda fields: [b"IA", b"p", b"", b"", b"0", b"0"] if fields[0] == b"AU" else COMMITTED) as fake:
        client = connect(joined(mute, fake.url), token="a.token", timeout=PATIENT_S)
        assert client.append("c", "s", one()).count == 1
        assert [fields[0] for fields in fake.asked] == [b"AU", b"AB"]


@pytest.mark.over(*NETWORKS, both=True)
def test_an_error_names_each_host_and_why_it_failed(way: Way, connect: Connect) -> None:
    one_, two = place(dead()), place(dead())
    url = f"{way.scheme}://{one_},{two}"
    with pytest.raises(CannotConnect) as caught:
        connect(url, timeout=PATIENT_S)
    why = "connection refused" if way.scheme == "penstock" else "no server listens there"
    assert (caught.value.url, caught.value.retry) == (url, Retry.SAFE)
    assert re.fullmatch(rf"{one_}: .*{why}.*; {two}: .*{why}.*", caught.value.reason)


def test_one_deadline_is_for_all_hosts_and_those_that_did_not_answer_are_named(connect: Connect, mute: str) -> None:
    refused = dead()
    with pytest.raises(CannotConnect) as caught:
        connect(joined(mute, refused, mute), token="a.token", timeout=0.6)
    silent = f"{place(mute)}: the server does not answer"
    assert re.fullmatch(rf"{silent}; {place(refused)}: .*refused.*; {silent}", caught.value.reason)


# ---------------------------------------------------------------- after a lost connection


def test_after_a_lost_connection_the_client_goes_on_at_the_next_host_and_stays(connect: Connect) -> None:
    with FakeMq(answering(COMMITTED)) as first, FakeMq(answering(COMMITTED)) as second:
        client = connect(joined(first.url, second.url))
        client.append("c", "s", one())
        assert (len(first.asked), len(second.asked)) == (1, 0)
        first.drop_all()
        for _ in range(3):
            client.append("c", "s", one())
        assert (len(first.asked), len(second.asked)) == (1, 3)
        second.drop_all()
        client.append("c", "s", one())
        assert (len(first.asked), len(second.asked)) == (2, 3)


def test_a_repeat_at_another_host_has_the_mark_of_the_first_attempt(connect: Connect) -> None:
    def breaks(_fields: list[bytes]) -> None:
        raise RuntimeError("the connection ends here")

    with FakeMq(breaks) as first, FakeMq(answering(COMMITTED)) as second:
        client = connect(joined(first.url, second.url), timeout=PATIENT_S)
        assert client.append("c", "s", one()).count == 1
        (sent,), (again,) = first.asked, second.asked
        # The number of a request is that of its connection.
        assert sent[0] == again[0] == b"AB"
        assert sent[2:] == again[2:]
        assert sent[2]  # the producer


def test_what_may_not_be_repeated_is_in_doubt_as_with_one_host(connect: Connect) -> None:
    def breaks(_fields: list[bytes]) -> None:
        raise RuntimeError("the connection ends here")

    with FakeMq(breaks) as first, FakeMq(answering(COMMITTED)) as second:
        client = connect(joined(first.url, second.url), timeout=PATIENT_S)
        with pytest.raises(ConnectionLost) as caught:
            client.queue("c", "q").reset()
        assert caught.value.url == first.url
        assert second.asked == []


def test_reads_ahead_begin_at_the_host_that_works(served: Served, context: str) -> None:
    """They have a connection of their own."""
    with FakeMq(answering(COMMITTED)) as fake:
        client = penstock.connect(joined(fake.url, f"penstock://{served.mq}"))
        fake.drop_all()
        client.append(context, "s", one())
        assert len(list(client.read_all(context=context))) == 1
        assert fake.sessions == 0
        end(client)


# ---------------------------------------------------------------- tokens and certificates


def test_each_host_is_shown_the_token(connect: Connect) -> None:
    def guarded(fields: list[bytes]) -> list[bytes]:
        return [b"IA", b"p", b"", b"", b"0", b"0"] if fields[0] == b"AU" else COMMITTED

    shown: list[str] = []

    def token() -> str:
        shown.append(f"a.token-{len(shown)}")
        return shown[-1]

    with FakeMq(guarded) as first, FakeMq(guarded) as second:
        client = connect(joined(first.url, second.url), token=token)
        client.append("c", "s", one())
        first.drop_all()
        client.append("c", "s", one())
        found = [(fields[0], fields[-1]) for fake in (first, second) for fields in fake.asked if fields[0] == b"AU"]
        assert found == [(b"AU", b"a.token-0"), (b"AU", b"a.token-1")]


def test_a_refused_token_is_not_shown_to_other_hosts(connect: Connect) -> None:
    with FakeMq(answering(NotAuthenticated("no such token"))) as first, FakeMq(answering(COMMITTED)) as second:
        with pytest.raises(NotAuthenticated):
            connect(joined(first.url, second.url), token="a.token", timeout=PATIENT_S)
        assert second.asked == []


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def secure(authority: Authority, name: str) -> Server:
    files = authority.issue(name, name)
    return Server(tls_cert=str(files.cert), tls_key=str(files.key))


def test_each_host_needs_a_certificate_for_its_own_name(connect: Connect, authority: Authority) -> None:
    with secure(authority, "localhost") as wrong, secure(authority, "127.0.0.1") as right:
        tls = f"?tls&tls_ca={authority.cert}"
        client = connect(joined(wrong.url, right.url, parameters=tls))
        client.append("c", "s", one())
        with penstock.connect(right.url.partition("?")[0] + tls) as direct:
            assert direct.stats().head == 1
        with pytest.raises(TlsFailed) as caught:
            connect(joined(wrong.url, wrong.url, parameters=tls), timeout=PATIENT_S)
        assert caught.value.reason.count("the certificate is for localhost, not 127.0.0.1") == 2


# ---------------------------------------------------------------- where URLs are passed on


def test_a_store_takes_its_urls_as_they_are(tmp_path: Path) -> None:
    """A comma is part of a directory's name, and several hosts of PostgreSQL are libpq's matter."""
    with penstock.connect(f"sqlite:///{tmp_path}/a,b") as client:
        client.append("c", "s", one())
    assert (tmp_path / "a,b").is_dir()
