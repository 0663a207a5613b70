"""A chat over MqFrames: all members see each line, and why a member left.

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
    """The members of a chat. A member's first message is its name; each later message is a line."""

    def __init__(self) -> None:
        self.members: dict[MqSession, bytes] = {}

    def receive(self, session: MqSession, frames: Message) -> None:
        """Pass a line on to all members."""
        if session in self.members:
            self.send_to_all(self.members[session], frames[0])
        else:
            self.members[session] = frames[0]
            self.send_to_all(frames[0], b"is here")

    def leave(self, session: MqSession, ending: Ending) -> None:
        """Tell the others that a member has left, unless it never sent a name."""
        if name := self.members.pop(session, None):
            self.send_to_all(name, f"has left: {ending.reason.words}".encode())

    def send_to_all(self, name: bytes, line: bytes) -> None:
        for member in self.members:
            member.send([name, line[:LINE_BYTES_MAX]])


async def serve(host: str, port: int) -> None:
    """Keep a room open, until Ctrl-C."""
    room = Room()
    async with MqServer(room.receive, on_close=room.leave) as server:
        await server.start(host, port)
        print(f"chat on {server.address}", flush=True)
        await asyncio.Event().wait()


async def join(host: str, port: int, name: str) -> None:
    """Send each typed line and print each received one, until either side closes."""
    async with await MqClient.connect(host, port, on_message=show) as client:
        client.send([name.encode()])
        typing = asyncio.create_task(send_lines(client))
        await asyncio.wait([typing, asyncio.create_task(client.gone())], return_when=asyncio.FIRST_COMPLETED)
        typing.cancel()
    print(f"left: {client.ending}", flush=True)


async def send_lines(client: MqClient) -> None:
    """Send standard input, line by line."""
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    pipe, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    with closing(pipe):
        async for line in lines:
            client.send([line.strip()[:LINE_BYTES_MAX]])


def show(_session: MqSession, frames: Message) -> None:
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
