"""A DEALER and a REQ of azmq, which is pure Python, that each ask three times: azmq_client.py DIRECTORY ENDPOINT.

azmq is from 2018: this gives asyncio the `loop` parameters back that it had then. The caller has corrected its syntax.
"""

import asyncio
import functools
import sys
from collections.abc import Callable, Coroutine
from typing import Any

for name in ("wait_for", "gather", "shield", "sleep", "open_connection"):
    original: Callable[..., Any] = getattr(asyncio, name)
    setattr(
        asyncio, name, functools.partial(lambda call, *args, loop=None, **options: call(*args, **options), original)
    )
for name in ("Event", "Lock", "Queue"):
    base: Any = getattr(asyncio, name)

    class Older(base):  # type: ignore[misc]
        """As it was."""

        def __init__(self, *args: Any, loop: object = None, **options: Any) -> None:
            super().__init__(*args, **options)

    setattr(asyncio, name, Older)
wait_now: Callable[..., Coroutine[Any, Any, Any]] = asyncio.wait


async def wait(coroutines: Any, loop: object = None, **options: Any) -> Any:
    return await wait_now([asyncio.ensure_future(each) for each in coroutines], **options)


setattr(asyncio, "wait", wait)  # noqa: B010 - mypy knows what it was
sys.path.insert(0, sys.argv[1])


async def main() -> None:
    import azmq  # type: ignore[import-not-found]

    async with azmq.Context() as context:
        for kind, envelope in ((azmq.DEALER, [b""]), (azmq.REQ, [])):
            socket = context.socket(kind)
            socket.connect(sys.argv[2])
            for number in range(3):
                await socket.send_multipart([*envelope, b"Res01", b"GS", b"id-%d" % number])
                answer = (await asyncio.wait_for(socket.recv_multipart(), 20))[len(envelope) :]
                assert answer[:3] == [b"Res01", b"id-%d" % number, b"SG"], answer
            socket.close()
    print("azmq ok")


asyncio.run(main())
