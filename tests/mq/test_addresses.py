"""How many connections one address may have, and how often the log names it."""

import asyncio
import logging
import socket

import pytest

from penstock.mq import MqClient, Reason
from penstock.tcp import CloseReason, PeerLog, network_of, shown_peer
from penstock.tcp.server import LINES_MAX, LINES_PER_ADDRESS_MAX, WINDOW_S
from tests.mq.support import HOST, Raw, Serving, disconnect, serving, until

ELSEWHERE = "127.0.0.2"
"""Another address of this machine."""


async def raw_from(address: str, served: Serving) -> Raw:
    """A peer that has this address."""
    connection = socket.socket()
    connection.setblocking(False)
    connection.bind((address, 0))
    await asyncio.get_running_loop().sock_connect(connection, (HOST, served.server.port))
    raw = Raw(connection)
    served.raws.append(raw)
    return raw


# ---------------------------------------------------------------- what is one address


@pytest.mark.parametrize(
    ("address", "network"),
    [
        (("10.0.0.7", 51234), "10.0.0.7"),
        (("::ffff:10.0.0.7", 51234, 0, 0), "10.0.0.7"),
        (("2001:db8:1:2:3:4:5:6", 51234, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:2:ffff::1", 51234, 0, 0), "2001:db8:1:2::/64"),
        (("2001:db8:1:3::1", 51234, 0, 0), "2001:db8:1:3::/64"),
        (("fe80::1%eth0", 51234, 0, 2), "fe80::/64"),
        (("::1", 51234, 0, 0), "::/64"),
        (("somewhere", 1), "somewhere"),
        ("/run/penstock.sock", "/run/penstock.sock"),
        ((), "unknown"),
        (None, "unknown"),
    ],
)
def test_a_peer_counts_by_its_ipv4_address_or_the_64_of_its_ipv6_address(address: object, network: str) -> None:
    assert network_of(address) == network


def test_a_peer_is_shown_with_its_port() -> None:
    assert shown_peer(("10.0.0.7", 1)) == "10.0.0.7:1"
    assert shown_peer(("::1", 1, 0, 0)) == "[::1]:1"


# ---------------------------------------------------------------- too many from one


async def test_one_connection_too_many_from_an_address_is_refused_and_other_addresses_are_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with serving(connections_per_address_max=2, connections_max=4) as served:
        clients = [await served.client() for _ in range(2)]
        async with await served.raw() as refused:
            assert await refused.rest() == disconnect(Reason.CONNECTION_REFUSED)
            peer = shown_peer(refused.socket.getsockname())
        await until(lambda: served.endings)
        assert served.endings[0].why == "there were too many connections from its address"
        (line,) = caplog.records
        assert (line.levelname, line.getMessage()) == (
            "WARNING",
            f"mq refused {peer}: there were too many connections from its address (connections_per_address_max is 2)",
        )
        await raw_from(ELSEWHERE, served)
        await until(lambda: len(served.server.sessions()) == 3)
        clients.pop().close()
        await until(lambda: len(served.server.sessions()) == 2)
        clients.append(await served.client())
        await until(lambda: len(served.server.sessions()) == 3)
        await still_works(clients)


async def test_the_total_counts_whatever_the_addresses(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(connections_per_address_max=2, connections_max=3) as served:
        for address in (HOST, HOST, ELSEWHERE):
            await raw_from(address, served)
        refused = await raw_from(ELSEWHERE, served)
        assert await refused.rest() == disconnect(Reason.CONNECTION_REFUSED)
        refused.socket.close()
        await until(lambda: served.endings)
        assert "there were too many connections (connections_max is 3)" in caplog.text


async def test_addresses_that_are_gone_are_forgotten() -> None:
    async with serving() as served:
        for number in range(2, 12):
            (await raw_from(f"127.0.0.{number}", served)).socket.close()
        await until(lambda: len(served.endings) == 10)
        assert not served.server._addresses


async def still_works(clients: list[MqClient]) -> None:
    for client in clients:
        client.send([b"hello"])
        assert await client.receive() == [b"hello"]


# ---------------------------------------------------------------- lines in the log


@pytest.mark.parametrize(
    ("sent", "level", "words"),
    [
        (b"\x00", "WARNING", "protocol error: there is no frame type 0"),
        (b"", "INFO", "no byte came for too long (idle_ms_max is 200)"),
        (b"\x03\x05", "WARNING", "a message took too long (message_ms_max is 100)"),
        (b"\x03\xff\x3f" + bytes(2000), "WARNING", f"{CloseReason.HOARDED} (pending_bytes_total_max is 1000)"),
    ],
)
async def test_the_log_names_whom_the_server_has_cut_off(
    sent: bytes, level: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    limits = {"idle_ms_max": 200, "message_ms_max": 100, "pending_bytes_total_max": 1000}
    async with serving(**limits) as served, await served.raw() as raw:
        await raw.send(sent)
        await until(raw.has_ended)
        peer = shown_peer(raw.socket.getsockname())
        raw.socket.close()
        await until(lambda: served.endings)
    assert [(each.levelname, each.getMessage()) for each in caplog.records] == [
        (level, f"mq-1 of {peer} was ended: {words}")
    ]


async def test_the_log_names_whom_an_operator_has_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with serving() as served, await served.client() as client:
        await served.session()
        assert served.server.kick("mq-1")
        await client.closed()
        await until(lambda: served.endings)
    assert "was ended: an operator cut it off" in caplog.text


async def test_peers_that_are_cut_off_again_and_again_do_not_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    times = 3 * LINES_PER_ADDRESS_MAX
    async with serving() as served:
        for _ in range(times):
            async with await served.raw() as raw:
                await raw.send(b"\x00")
                await raw.rest()
        other = await raw_from(ELSEWHERE, served)
        await other.send(b"\x00")
        await other.rest()
        other.socket.close()
        await until(lambda: len(served.endings) == times + 1)
    lines = [each.getMessage() for each in caplog.records]
    assert len([line for line in lines if f" of {HOST}:" in line]) == LINES_PER_ADDRESS_MAX
    assert len([line for line in lines if f" of {ELSEWHERE}:" in line]) == 1
    assert lines[-1].startswith(f"mq ended {times - LINES_PER_ADDRESS_MAX} more connections, the last one from {HOST};")


def test_the_log_has_a_limited_number_of_lines_a_minute_about_all_peers_together(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now = 0.0
    peers = PeerLog(logging.getLogger("peers"), "mq", lambda: now)
    for number in range(5 * LINES_MAX):
        peers.write(logging.WARNING, f"10.0.0.{number}", "line %d", number)
    assert len(caplog.records) == LINES_MAX
    now = WINDOW_S
    peers.tick()
    assert caplog.records[-1].getMessage().startswith(f"mq ended {4 * LINES_MAX} more connections, the last one from ")
    peers.write(logging.WARNING, "10.0.0.1", "again")
    assert caplog.records[-1].getMessage() == "again"
    now = 2 * WINDOW_S
    peers.tick()
    assert caplog.records[-1].getMessage() == "again"
