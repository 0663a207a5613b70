"""MqFrames over loopback, a process on each side, compared with a bare socket that copies the same bytes.

The three sizes are those of the original's own performance test: messages of four frames each. The receiver parses
every message and hands it to a handler; the bare one only receives.
"""

import asyncio
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from bench import load
from bench.report import Report
from penstock.mq import Message, MqClient, MqServer, MqSession
from penstock.wire.mqframe import encode

SIZES = ((1_000_000, 40, 838_580), (100_000, 2_000, 81_851), (10_000, 60_048, 3_385))
"""Messages, the bytes of each, and the original's published messages per second."""
FRAMES = 4
BURST = 100
"""Messages sent before the sender looks whether the receiver keeps up."""
CHUNK_BYTES = 256 * 1024


def run(report: Report, _data: Path, scale: float) -> None:
    """All three sizes, each compared with the bare socket."""
    for total, size, original in SIZES:
        count = max(BURST, int(total * scale)) // BURST * BURST
        wire_bytes = len(encode(_message(size)))
        ours = _rate("messages", count, partial(_send_messages, size))
        bare = _rate("bytes", count * wire_bytes, _send_bytes) / wire_bytes
        what = f"{FRAMES} frames, {size:,} bytes"
        report.figure(what, ours, "messages/s", goal=original)
        report.figure(f"  {what}", ours * size / 1e6, "MB/s")
        report.figure(f"  {what}, bare socket", bare * size / 1e6, "MB/s")


def _message(size: int) -> Message:
    return [bytes(size // FRAMES)] * FRAMES


def _rate(kind: str, count: int, send: Callable[[int, int], None]) -> float:
    """Messages per second in the receiving process."""
    command = [sys.executable, "-m", "bench.mq", kind, str(count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as receiver:
        assert receiver.stdout is not None
        send(int(receiver.stdout.readline()), count)
        return float(receiver.stdout.readline())


# --- the sending side -----------------------------------------------------------------------------------------


def _send_messages(size: int, port: int, count: int) -> None:
    load.run(_send(port, count, size))


async def _send(port: int, count: int, size: int) -> None:
    message = _message(size)
    async with await MqClient.connect("127.0.0.1", port) as client:
        send = client.send
        for _ in range(count // BURST):
            for _ in range(BURST):
                send(message)
            await client.drain()
        await client.receive()


def _send_bytes(port: int, count: int) -> None:
    chunk = bytes(CHUNK_BYTES)
    with socket.create_connection(("127.0.0.1", port)) as sender:
        while count > 0:
            sender.sendall(chunk[:count])
            count -= CHUNK_BYTES
        sender.recv(1)


# --- the receiving process ------------------------------------------------------------------------------------


async def _receive_messages(count: int) -> None:
    came, began = 0, 0.0
    done = asyncio.Event()

    def connected(_session: MqSession) -> None:
        nonlocal began
        began = time.perf_counter()

    def received(session: MqSession, _message: Message) -> None:
        nonlocal came
        came += 1
        if came == count:
            print(count / (time.perf_counter() - began), flush=True)
            session.send([b"done"])
            done.set()

    async with MqServer(received, on_connect=connected) as server:
        await server.start("127.0.0.1", 0)
        print(server.port, flush=True)
        await done.wait()


def _receive_bytes(count: int) -> None:
    space = bytearray(CHUNK_BYTES)
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        began, left = time.perf_counter(), count
        with connection:
            while left:
                left -= connection.recv_into(space)
            print(count / (time.perf_counter() - began), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "messages":
        load.run(_receive_messages(int(sys.argv[2])))
    else:
        _receive_bytes(int(sys.argv[2]))
