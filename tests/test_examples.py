"""The examples run as they stand, end by themselves, and say what they did."""

import re
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.testing import Server, server
from tests.test_server import PATIENCE_S, environment

EXAMPLES = Path(__file__).parent.parent / "examples"
URLS: dict[str, Callable[[Server], list[str]]] = {
    "alone": lambda served: [],
    "mq": lambda served: ["--url", served.url],
    "local": lambda served: ["--url", "sqlite:///shop-data"],
}


def run(name: str, *arguments: str, folder: Path) -> str:
    """Run an example in a folder of its own, warnings being errors; what it prints."""
    command = [sys.executable, "-W", "error", str(EXAMPLES / name), *arguments]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


@pytest.mark.parametrize("where", URLS)
def test_the_shop_sells_ships_and_counts_each_order_once(tmp_path: Path, where: str) -> None:
    with server() as served:
        said = run("shop.py", *URLS[where](served), folder=tmp_path)
        if where == "mq":
            # It can be run again on the same server, and over its other protocol.
            assert "shipped 30 orders" in run("shop.py", "--url", served.zmq_url, folder=tmp_path)
    assert said.count("sold 15 orders: 30 clicks, 15 payments") == 2
    assert "counted 30 events of orders\n" in said
    assert "counted 30 more\n" in said
    shipped = re.search(r"shipped 30 orders: (\d+) by worker-1, (\d+) by worker-2", said)
    assert shipped
    assert int(shipped[1]) + int(shipped[2]) == 30
    paid = {customer: sum(10 + number for number in range(index, 30, 3)) for index, customer in enumerate(CUSTOMERS)}
    assert [f"{customer} has paid {amount}" for customer, amount in paid.items()] == said.splitlines()[-3:]


CUSTOMERS = ("Ada", "Grace", "Linus")


def test_res01_needs_only_zeromq(tmp_path: Path) -> None:
    with server() as served:
        for _ in range(2):
            assert run("res01_zeromq.py", served.zmq_url.removeprefix("zmq+"), folder=tmp_path) == "b'CR'\n"


def test_res01_goes_over_tcp(tmp_path: Path) -> None:
    with server() as served:
        for _ in range(2):
            printed = run("res01_mqframes.py", served.url.removeprefix("penstock://"), folder=tmp_path)
            appended, read = printed.splitlines()
            assert appended.startswith("[b'Res01', b'request-1', b'CR'")
            assert read.startswith("[b'Res01', b'request-2', b'QR', b'1', ")
            assert "OrderPlaced" in read


def test_an_example_names_the_server_that_does_not_reply(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = "tcp://{}:{}".format(*silent.getsockname())
        command = [sys.executable, "-W", "error", str(EXAMPLES / "res01_zeromq.py"), address]
        result = subprocess.run(
            command, cwd=tmp_path, capture_output=True, text=True, env=environment(), timeout=PATIENCE_S
        )
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"no reply from {address} in 5 s; start a server with `make run`\n"
