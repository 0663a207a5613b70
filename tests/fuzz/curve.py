"""A fuzzer of CURVE: `python -m tests.fuzz.curve --seconds 60 --seed 1`.

A client that knows the keys goes through the handshake and sends frames. Bytes of it are changed at one step, before
they are encrypted or afterwards; the outcome must be an orderly end, or messages that were really sent.
"""

import random
from typing import Final

from penstock.wire.zmtp import Violation
from tests.fuzz.streams import command_line, mutated, run_streams
from tests.wire.curve_checks import GREETING, GREETING_BYTES, METADATA, MORE, Client, check, server
from tests.wire.zmtp_checks import SMALL, cut_at, ping

OCTETS: Final = b"\x00\x01\x02\x03\x04\x05\x06\x07\x7f\xff"
PIECES: Final = [ping(), METADATA, b"\x07MESSAGE", b"\x05READY", b"\x08INITIATE", bytes(33)]


def run(seed: int, count: int | None = None, seconds: float | None = None) -> str:
    """Fuzz so many connections, or so long; a line that says how it went."""
    return run_streams("curve", seed, lambda chance: chance.randbytes(8), _outcome, count, seconds, "connections")


def _outcome(data: bytes) -> list[str]:
    chance = random.Random(data)
    step = chance.choice(("hello", "metadata", "initiate", "inner", "frames"))

    def changed(at: str, content: bytes) -> bytes:
        return mutated(content, chance, OCTETS, PIECES) if at == step else content

    client, connection = Client(), server(SMALL)
    if step == "hello":
        events = check(connection, [GREETING + changed("hello", client.hello())])
        return [f"hello {'refused' if events else 'open'}"]
    connection.receive(GREETING + client.hello())
    client.welcome(connection.data_to_send()[GREETING_BYTES:])
    initiate = client.initiate(metadata=changed("metadata", METADATA))
    events = check(connection, [changed("initiate", initiate)])
    if not connection.is_ready:
        return [f"{step} {'refused' if events else 'open'}"]
    bodies = [chance.randbytes(chance.choice((0, 1, 30, 200, 270))) for _ in range(chance.randrange(1, 6))]
    flags = [chance.choice((0, 0, MORE)) for _ in bodies]
    inner = [changed("inner", body) for body in bodies]
    stream = b"".join(map(client.frame, inner, flags))
    wire = changed("frames", stream)
    size = chance.choice((0, 1, 7, 64))
    events = check(connection, cut_at(wire, range(size, len(wire), size) if size else ()))
    received = [body for event in events if isinstance(event, list) for body in event]
    # Nothing that was changed on its way is believed.
    assert received == inner[: len(received)]
    ended = events[-1] if events and isinstance(events[-1], Violation) else None
    return [f"{step} {'refused' if ended else 'open'}"]


if __name__ == "__main__":
    command_line("Fuzz CURVE.", run)
