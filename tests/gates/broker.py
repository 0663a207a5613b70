"""A ZeroMQ broker, as programs put between clients and servers."""

import contextlib
import threading
from collections.abc import Iterator

import zmq


@contextlib.contextmanager
def broker(endpoint: str) -> Iterator[str]:
    """A ROUTER/DEALER proxy in front of a server, or of another broker; where it listens."""
    context = zmq.Context()
    front, back = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (front, back):
        socket.setsockopt(zmq.LINGER, 0)
    front.bind("tcp://127.0.0.1:0")
    back.connect(endpoint)
    address = front.getsockopt_string(zmq.LAST_ENDPOINT)

    def pass_on() -> None:
        with front, back, contextlib.suppress(zmq.ContextTerminated):
            zmq.proxy(front, back)

    thread = threading.Thread(target=pass_on)
    thread.start()
    try:
        yield address
    finally:
        context.term()
        thread.join()
