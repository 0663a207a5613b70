"""The server: the engine and its gates, started in order, stopped in order, in one process.

If something cannot start, one line says so and nothing is left running. A stop drains, then finishes accepted requests;
if that takes too long, or at a second signal, the process ends at once, which the store survives like a power cut.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NoReturn

from penstock.console import Console
from penstock.engine import Engine, memory
from penstock.engine.traffic import CURRENT
from penstock.errors import StoreError
from penstock.gates import Gate, HttpGate, MqGate, RemitsGate, ServerTls, ZeromqGate
from penstock.settings import Settings, store_address
from penstock.tcp import new_loop
from penstock.telemetry import Telemetry
from penstock.terminal import TIME, JsonLines, LogLines, print_error

log = logging.getLogger(__name__)

CLOSING_MS_MAX: Final = 2_000
"""What a stop may take beyond `shutdown_ms_max`: to close the store and the workers after the work is done."""

SWITCH_INTERVAL_S: Final = 0.001

Ready = Callable[[str], None]
"""Called with the ready line when every gate listens."""


def run(settings: Settings, ready: Ready, sources: Mapping[str, str] | None = None) -> None:
    """Serve until a signal comes. Raises the error if it cannot start. `sources` says where settings came from."""
    log_to_stderr(settings.log_level, settings.log_format)
    # The loop's thread and the writer take turns at the interpreter. By default a busy loop keeps the
    # writer waiting for 5 ms after every call into SQLite; see bench/appends.py. Only here: the process is ours.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(serve(settings, ready, sources))


async def serve(settings: Settings, ready: Ready, sources: Mapping[str, str] | None = None) -> None:
    """Serve until SIGTERM or SIGINT. Raises the error if it cannot start."""
    stopping = _stop_event()
    engine = Engine(store_address(settings), settings)
    gates = _gates(engine, sources)
    await start(engine, gates)
    telemetry = Telemetry.configured(engine, os.environ)
    memory.settle()
    try:
        ready(" ".join(["penstock ready", *(f"{gate.name}={gate.address}" for gate in gates)]))
        await stopping.wait()
        await drain(engine)
    finally:
        allowed_ms = settings.shutdown_ms_max + CLOSING_MS_MAX
        try:
            async with asyncio.timeout(allowed_ms / 1000):
                await stop(engine, gates)
                if telemetry is not None:
                    await telemetry.stop()
        except TimeoutError:
            _end_now(f"could not finish within {allowed_ms} ms; ended with work unfinished", 1)
        log.info("stopped")


def _gates(engine: Engine, sources: Mapping[str, str] | None) -> list[Gate]:
    """The gates of the settings, in the order of the ready line."""
    settings = engine.settings
    tls = ServerTls.of(settings)
    gates: list[ZeromqGate | MqGate | RemitsGate] = []
    if settings.res is not None:
        gates.append(ZeromqGate(engine, settings.res))
    if settings.res_legacy is not None:
        gates.append(ZeromqGate(engine, settings.res_legacy, legacy=True))
    if settings.mq is not None:
        gates.append(MqGate(engine, settings.mq, tls))
    if settings.remits is not None:
        gates.append(RemitsGate(engine, settings.remits, tls))
    return [*gates, http_gate(engine, gates, tls, sources)]


def http_gate(
    engine: Engine,
    others: Sequence[ZeromqGate | MqGate | RemitsGate],
    tls: ServerTls | None,
    sources: Mapping[str, str] | None = None,
) -> HttpGate:
    """The HTTP gate with the console, which shows all gates."""
    console = Console(engine, others)
    gate = HttpGate(engine, others, tls, console)
    console.gates = [*others, gate]
    console.sources = sources or {}
    return gate


async def start(engine: Engine, gates: Sequence[Gate]) -> None:
    try:
        await engine.start()
    except OSError as error:
        place = error.filename or "its directory"
        reason = "it is a file, not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StoreError(f"the store cannot be opened: {place}: {reason}") from error
    if engine.settings.insecure:
        log.warning("--insecure is deprecated: say --allow-plaintext, --allow-anonymous or both")
    started: list[Gate] = []
    try:
        for gate in gates:
            await gate.start()
            started.append(gate)
    except BaseException:
        await stop(engine, started)
        raise
    if not engine.access.is_closed:
        log.info("there are no principals, so every client may do everything; penstock access init makes the first")


async def drain(engine: Engine) -> None:
    """Give load balancers time to notice that this server stops; all gates stay open."""
    engine.drain()
    if (ms := engine.settings.drain_ms) > 0:
        log.info("draining for %d ms: /readyz answers 503, and everything else goes on", ms)
        await asyncio.sleep(ms / 1000)


async def stop(engine: Engine, gates: Sequence[Gate]) -> None:
    """Refuse new requests, answer the accepted ones, close."""
    for gate in gates:
        gate.refuse()
    await engine.stop()
    await asyncio.gather(*(gate.stop() for gate in gates))


def _stop_event() -> asyncio.Event:
    """An event that the first SIGTERM or SIGINT sets. The second ends the process."""
    stopping, loop = asyncio.Event(), asyncio.get_running_loop()

    def request_stop(number: signal.Signals) -> None:
        if stopping.is_set():
            _end_now(f"{number.name} again: ended at once, with work unfinished", 128 + number)
        log.info("%s: finishing accepted requests; a second signal ends the server at once", number.name)
        stopping.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop, number)
    return stopping


def _end_now(message: str, code: int) -> NoReturn:
    """End without waiting for any thread. The workers see the end of their sockets and follow."""
    print_error(message)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def log_to_stderr(level: str, form: str = "text") -> None:
    """Log from `level` on to standard error, one line per record, whichever library it comes from."""
    text = LogLines("%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s: %(message)s", TIME)
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else text)
    handler.addFilter(_name_request)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Python's own warnings too.
    logging.captureWarnings(capture=True)


def _name_request(record: logging.LogRecord) -> bool:
    """Give a record the id of the request that it is about."""
    trace = CURRENT.get()
    record.request = None if trace is None else trace.id
    return True
