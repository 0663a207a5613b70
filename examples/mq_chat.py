"""A chat over MqFrames: everybody hears what anybody says, and why somebody left.

python examples/mq_chat.py serve --port 5000
python examples/mq_chat.py join --port 5000 Ada
"""

import argparse
import asyncio
import sys
from contextlib import closing, suppress

from penstock.mq import Ending, Message, MqClient, MqServer, MqSession

LINE_BYTES_MAX = 1000


class Room:
    """Who is there. A member's first message is its name, the others are what it says."""

    def __init__(self) -> None:
        self.members: dict[MqSession, bytes] = {}

    def heard(self, session: MqSession, frames: Message) -> None:
        """Pass on what somebody says."""
        if session in self.members:
            self.say(self.members[session], frames[0])
        else:
            self.members[session] = frames[0]
            self.say(frames[0], b"is here")

    def left(self, session: MqSession, ending: Ending) -> None:
        """Somebody is gone; those who never said their name are not missed."""
        if name := self.members.pop(session, None):
            self.say(name, f"has left: {ending.reason.words}".encode())

    def say(self, name: bytes, line: bytes) -> None:
        """Tell everybody."""
        for member in self.members:
            member.send([name, line[:LINE_BYTES_MAX]])


async def serve(host: str, port: int) -> None:
    """Keep a room open, until Ctrl-C."""
    room = Room()
    async with MqServer(room.heard, on_close=room.left) as server:
        await server.start(host, port)
        print(f"chat on {server.address}", flush=True)
        await asyncio.Event().wait()


async def join(host: str, port: int, name: str) -> None:
    """Say each line that is typed and show each that is heard, until either side has enough."""
    async with await MqClient.connect(host, port, on_message=show) as client:
        client.send([name.encode()])
        typing = asyncio.create_task(say_lines(client))
        await asyncio.wait([typing, asyncio.create_task(client.gone())], return_when=asyncio.FIRST_COMPLETED)
        typing.cancel()
    print(f"left: {client.ending}", flush=True)


async def say_lines(client: MqClient) -> None:
    """Send what is typed, line by line."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    with closing(pipe):
        async for line in lines:
            client.send([line.strip()[:LINE_BYTES_MAX]])


def show(_session: MqSession, frames: Message) -> None:
    """Print a line of somebody."""
    name, line = frames
    print(f"{name.decode()}: {line.decode(errors='replace')}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A chat over MqFrames.")
    parser.add_argument("what", choices=["serve", "join"])
    parser.add_argument("name", nargs="?", default="somebody")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=5000, help="0 to serve on any free port")
    options = parser.parse_intermixed_args()
    with suppress(KeyboardInterrupt):
        if options.what == "join":
            asyncio.run(join(options.host, options.port, options.name))
        else:
            asyncio.run(serve(options.host, options.port))


if __name__ == "__main__":
    main()
