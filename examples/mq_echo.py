"""An echo over MqFrames: the server sends each message back.

python examples/mq_echo.py serve --port 5000
python examples/mq_echo.py send --port 5000 hello "a second frame"
"""

import argparse
import asyncio
import sys
from contextlib import suppress

from penstock.mq import MqClient, MqServer


async def serve(host: str, port: int) -> None:
    """Send every message back, until Ctrl-C."""
    async with MqServer(on_message=lambda session, frames: session.send(frames)) as server:
        await server.start(host, port)
        print(f"echo on {server.address}", flush=True)
        await asyncio.Event().wait()


async def send(host: str, port: int, frames: list[str]) -> int:
    """Send one message and print the answer. Return 1 without an answer."""
    async with await MqClient.connect(host, port) as client:
        client.send([frame.encode() for frame in frames])
        answer = await client.receive()
        if answer is None:
            print(f"no answer: {client.ending}", file=sys.stderr)
            return 1
        print(*(frame.decode() for frame in answer), sep="\n")
        return 0


def main() -> int | None:
    """The command line."""
    parser = argparse.ArgumentParser(description="An echo over MqFrames.")
    parser.add_argument("what", choices=["serve", "send"])
    parser.add_argument("frames", nargs="*", default=["hello"], help="the frames of the message to send")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000, help="0 to serve on any free port")
    options = parser.parse_intermixed_args()
    with suppress(KeyboardInterrupt):
        if options.what == "send":
            return asyncio.run(send(options.host, options.port, options.frames))
        asyncio.run(serve(options.host, options.port))
    return None


if __name__ == "__main__":
    sys.exit(main())
