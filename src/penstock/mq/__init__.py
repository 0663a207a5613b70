"""MqFrames over TCP: a message transport that limits its connections, as a server and as a client.

```python
async def main() -> None:
    async with MqServer(on_message=lambda session, frames: session.send(frames)) as server:
        await server.start("127.0.0.1", 5000)
        ...
```
"""

from penstock.mq.session import Ending, MqClient, MqLimits, MqServer, MqSession
from penstock.tcp import SessionInfo
from penstock.wire.mqframe import EmptyMessage, FrameTooLong, Message, Reason

__all__ = [
    "EmptyMessage",
    "Ending",
    "FrameTooLong",
    "Message",
    "MqClient",
    "MqLimits",
    "MqServer",
    "MqSession",
    "Reason",
    "SessionInfo",
]
