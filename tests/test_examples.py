"""The examples run as they stand, end by themselves, and say what they did."""

import re
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
