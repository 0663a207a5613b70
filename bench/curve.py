"""What CURVE costs: the same work over ZeroMQ in plain text and with CURVE, in turns, at two servers side by side.

Only ratios count: the other server and its clients take part of the machine. Both ends of a connection are here, so
the client's part of the encryption, which libzmq does in a thread of its own, is in the figures.
"""

import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import zmq
from nacl.bindings import crypto_box_easy_afternm

from bench import load, res01
from bench.report import Report
from penstock.wire import curve

ROUNDS: Final = 5
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
    seconds = 2 * scale / ROUNDS
    with (
        load.server(load.fresh(data / "plain")) as plain,
        load.server(load.fresh(data / "curve"), "--curve-secret-key", str(key)) as secured,
    ):
        works: dict[str, Callable[[str, res01.Options], float]] = {
            "64 clients x 1 event": lambda place, given: res01.appending(place, 64, 1, seconds, given),
            "1 client x 1,000 events": lambda place, given: res01.appending(place, 1, 1000, seconds, given),
        }
        for name, work in works.items():
            pairs = [(work(plain["res"], {}), work(secured["res"], options)) for _ in range(ROUNDS)]
            report.figure(f"{name}, plain", statistics.median(one for one, _ in pairs), "events/s")
            report.figure(f"{name}, CURVE", statistics.median(other for _, other in pairs), "events/s")
            ratio = statistics.median(other / one for one, other in pairs)
            report.figure(f"{name}, CURVE of plain", 100 * ratio, "%")


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
