"""What CURVE costs: the same work over ZeroMQ in plain text and with CURVE.

Both ends of a connection are here, so the client's part of the encryption, which libzmq does in a thread of its own, is
in the figures.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq
from nacl.bindings import crypto_box_easy_afternm

from bench import load, pairs, res01
from bench.report import Report
from penstock.wire import curve

ROUNDS: Final = 5
Side = tuple[str, res01.Options]
"""The address of a gate, and what its clients need."""
SIZES: Final = {"20 bytes": 20, "1 KiB": 1 << 10, "1 MiB": 1 << 20}


def run(report: Report, data: Path, scale: float) -> None:
    """Frames in one process, then appends."""
    _frames(report)
    public, secret = zmq.curve_keypair()
    key = data / "curve.key"
    key.write_bytes(secret)
    key.chmod(0o600)
    ours, our_secret = zmq.curve_keypair()
    options: res01.Options = {zmq.CURVE_SERVERKEY: public, zmq.CURVE_PUBLICKEY: ours, zmq.CURVE_SECRETKEY: our_secret}
    seconds = max(0.4, 2 * scale / ROUNDS)
    with (
        load.server(load.fresh(data / "plain")) as plain,
        load.server(load.fresh(data / "curve"), "--curve-secret-key", str(key)) as secured,
    ):
        works: dict[str, Callable[[Side], float]] = {
            "64 clients x 1 event": lambda side: res01.appending(side[0], 64, 1, seconds, side[1]),
            "1 client x 1,000 events": lambda side: res01.appending(side[0], 1, 1000, seconds, side[1]),
        }
        sides: dict[str, tuple[int, Side]] = {
            "plain": (int(plain["pid"]), (plain["res"], {})),
            "CURVE": (int(secured["pid"]), (secured["res"], options)),
        }
        pairs.compare(report, sides, works, ROUNDS, "events/s")


def _frames(report: Report) -> None:
    """Frames sealed and opened, by size."""
    shared = os.urandom(curve.KEY_BYTES)
    for name, size in SIZES.items():
        ours, body, count = curve.Box(shared, 0), os.urandom(size), max(20, (1 << 22) // (size + 200))
        began = time.process_time()
        for _ in range(count):
            ours.seal([body])
        report.figure(f"a frame of {name} sealed", 1e6 * (time.process_time() - began) / count, "us")
        sent = [_message(body, number, shared) for number in range(1, min(count, 1000) + 1)]
        theirs, began = curve.Box(shared, 0), time.process_time()
        for message in sent:
            theirs.open(message, 0, len(message))
        report.figure(f"a frame of {name} opened", 1e6 * (time.process_time() - began) / len(sent), "us")


def _message(body: bytes, number: int, shared: bytes) -> bytes:
    """A MESSAGE of a client."""
    nonce = number.to_bytes(curve.SHORT_NONCE_BYTES, "big")
    return curve.MESSAGE + nonce + crypto_box_easy_afternm(b"\0" + body, b"CurveZMQMESSAGEC" + nonce, shared)
