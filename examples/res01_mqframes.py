"""Res01 over TCP, with the transport's own library: append an event and read it back.

    python examples/res01_mqframes.py [127.0.0.1:8472]

docs/protocols/mqframe.md has every byte, for clients without this library.
"""

import asyncio
import sys
import uuid

from penstock.mq import MqClient


async def main(address: str) -> None:
    """Send two requests, one after the other, and print both replies."""
    host, _, port = address.rpartition(":")
    stream = f"order-{uuid.uuid4()}".encode()
    event = [uuid.uuid4().bytes_le, b"2026-11-15T06:00:00Z", b"OrderPlaced", b"", b'{"amount": 7}']
    async with await MqClient.connect(host, int(port)) as client:
        client.send([b"Res01", b"AC", b"request-1", b"shop", stream, b"1", b"1", *event])
        print(await client.receive())  # CR: the event is on disk
        client.send([b"Res01", b"QS", b"request-2", b"shop", stream, b"1", b""])
        print(await client.receive())  # QR, the number of events, and the events


asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:8472"))
