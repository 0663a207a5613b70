"""The server: the engine and its gates, started in order, stopped in order, in one process.

If something cannot start, one line says so and nothing is left running. A stop finishes accepted requests; if that
takes too long, or at a second signal, the process ends at once, which the store survives like a power cut.
"""

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final, NoReturn

from penstock.engine import Engine
from penstock.errors import StoreError
from penstock.gates import Gate, HttpGate, MqGate, RemitsGate, TcpGate, ZeromqGate
from penstock.settings import Settings, store_address
from penstock.tcp import new_loop
from penstock.terminal import LogLines, print_error

log = logging.getLogger(__name__)

CLOSING_MS_MAX: Final = 2_000
"""What a stop may take beyond `shutdown_ms_max`: to close the store and the workers after the work is done."""

SWITCH_INTERVAL_S: Final = 0.001

Ready = Callable[[str], None]
"""Called with the ready line when every gate listens."""


def run(settings: Settings, ready: Ready) -> None:
    """Serve until a signal comes. Raises the error if it cannot start."""
    log_to_stderr(settings.log_level)
    # The loop's thread and the writer take turns at the interpreter. By default a busy loop keeps the
    # writer waiting for 5 ms after every call into SQLite; see bench/appends.py. Only here: the process is ours.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(settings, ready))


async def serve(settings: Settings, ready: Ready) -> None:
    """Serve until SIGTERM or SIGINT. Raises the error if it cannot start."""
    asked = _Signals(asyncio.get_running_loop())
    engine = Engine(store_address(settings), settings)
    gates = _gates(engine)
    await _start(engine, gates)
    _tune_garbage_collector()
    try:
        ready(" ".join(["penstock ready", *(f"{gate.name}={gate.address}" for gate in gates)]))
        await asked.to_stop()
    finally:
        await _stop_in_time(engine, gates)


def _gates(engine: Engine) -> list[Gate]:
    """The gates of the settings, in the order of the ready line."""
    settings = engine.settings
    gates: list[TcpGate[Any]] = []
    for endpoint, is_legacy in ((settings.res, False), (settings.res_legacy, True)):
        if endpoint is not None:
            gates.append(ZeromqGate(engine, endpoint, legacy=is_legacy))
    if settings.mq is not None:
        gates.append(MqGate(engine, settings.mq))
    if settings.remits is not None:
        gates.append(RemitsGate(engine, settings.remits))
    return [*gates, HttpGate(engine, gates)]


# --- start and stop -------------------------------------------------------------------------------------------


async def _start(engine: Engine, gates: Sequence[Gate]) -> None:
    try:
        await engine.start()
    except OSError as error:
        place = error.filename or "its directory"
        reason = "it is a file, not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StoreError(f"the store cannot be opened: {place}: {reason}") from error
    started: list[Gate] = []
    try:
        for gate in gates:
            await gate.start()
            started.append(gate)
    except BaseException:
        await _stop(engine, started)
        raise


async def _stop(engine: Engine, gates: Sequence[Gate]) -> None:
    """Refuse new requests, answer the accepted ones, close."""
    for gate in gates:
        gate.refuse()
    await engine.stop()
    await asyncio.gather(*(gate.stop() for gate in gates))


async def _stop_in_time(engine: Engine, gates: Sequence[Gate]) -> None:
    allowed_ms = engine.settings.shutdown_ms_max + CLOSING_MS_MAX
    try:
        async with asyncio.timeout(allowed_ms / 1000):
            await _stop(engine, gates)
    except TimeoutError:
        _end_now(f"could not finish within {allowed_ms} ms; ended with work unfinished", 1)
    log.info("stopped")


def _tune_garbage_collector() -> None:
    # The process has just made everything that it keeps.
    gc.collect()
    gc.freeze()
    # Requests and events are many, short-lived and without cycles: reference counts free them. The default of a
    # look for cycles at every 700 new objects would only interrupt the loop, longest when most is under way.
    gc.set_threshold(50_000, 20, 50)


class _Signals:
    """SIGTERM and SIGINT: the first asks for a stop, the second ends the process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._request_stop, number)

    def _request_stop(self, number: signal.Signals) -> None:
        if self._stop.is_set():
            _end_now(f"{number.name} again: ended at once, with work unfinished", 128 + number)
        log.info("%s: finishing accepted requests; a second signal ends the server at once", number.name)
        self._stop.set()

    async def to_stop(self) -> None:
        await self._stop.wait()


def _end_now(message: str, code: int) -> NoReturn:
    """End without waiting for any thread. The workers see the end of their sockets and follow."""
    print_error(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def log_to_stderr(level: str) -> None:
    """Log from `level` on to standard error, one line per record."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LogLines("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
