"""Res01 with ZeroMQ and nothing else: append an event. docs/protocols/res01.md has every frame.

python examples/res01_zeromq.py [tcp://127.0.0.1:8471]
"""

import sys
import uuid

import zmq

address = sys.argv[1] if len(sys.argv) > 1 else "tcp://127.0.0.1:8471"
stream = f"order-{uuid.uuid4()}".encode()
event = [uuid.uuid4().bytes_le, b"2026-11-15T06:00:00Z", b"OrderPlaced", b"", b'{"amount": 7}']
with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
    socket.linger = 0
    socket.connect(address)
    socket.send_multipart([b"", b"Res01", b"AC", b"request-1", b"shop", stream, b"1", b"1", *event])
    if not socket.poll(5000):  # Without a server ZeroMQ waits; it raises no error.
        sys.exit(f"no reply from {address} in 5 s; start a server with `make run`")
    print(socket.recv_multipart()[3])  # b'CR': the event is on disk
