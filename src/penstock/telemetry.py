"""A server's spans and metrics for OpenTelemetry, if the standard variables `OTEL_*` ask for them.

Each message that a gate has answered becomes a span, made when its times are known. It belongs to the trace of the
request's headers over HTTP, and of an append to the trace in the headers of its first event. The metrics are those of
`/metrics`; histograms stay there, but for the times of requests.

A server loads OpenTelemetry only if a setting asks for it. Otherwise it has no observer, and pays nothing.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from penstock import __version__
from penstock.engine import Engine
from penstock.engine.traffic import GONE, OK, Finished
from penstock.errors import Busy, Closed, OverLimit, PenstockError, StoreError, TimedOut, Unexpected, WorkerDied
from penstock.model import Append, Transact, new_event
from penstock.model.columns import Columns
from penstock.tracing import context_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
    from opentelemetry.trace import TracerProvider

log = logging.getLogger(__name__)

SCOPE: Final = "penstock"
HTTP: Final = "http"
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH"})
HEADERS_BYTES_MAX: Final = 4096
"""Headers of an event that are searched for a trace."""
STOP_S_MAX: Final = 2.0
"""How long a stopping server waits until what is collected is sent."""
COLLECT_S_MAX: Final = 5.0
"""How long the thread that sends metrics waits for the event loop to collect them."""
KEPT_S: Final = 1.0
"""How long one collection serves all metrics of an export."""
_FAULTS: Final = (Busy, Closed, StoreError, TimedOut, Unexpected, WorkerDied)


class Telemetry:
    """Sends what an engine's gates tell, until `stop`."""

    def __init__(
        self,
        engine: Engine,
        tracers: "TracerProvider | None",
        meters: "MeterProvider | None",
        shutdown: Callable[[], None] = lambda: None,
    ) -> None:
        self._engine = engine
        self._shutdown = shutdown
        if tracers is not None:
            engine.metrics.observers.append(Spans(tracers).observe)
        if meters is not None:
            engine.metrics.observers.append(Meters(engine, meters).observe)

    @classmethod
    def configured(cls, engine: Engine, environ: Mapping[str, str]) -> Self | None:
        """As the variables say. None if they ask for nothing, or OpenTelemetry is not installed."""
        wanted = [signal for signal in ("traces", "metrics") if _is_wanted(signal, environ)]
        if not wanted:
            return None
        try:
            providers = _Providers(wanted, environ)
        except ImportError as error:
            log.warning(
                "OTEL_* asks for %s, and they are not sent: %s is not installed; pip install 'penstock[otel]'",
                " and ".join(wanted),
                error.name,
            )
            return None
        log.info("%s go to OpenTelemetry", " and ".join(wanted))
        return cls(engine, providers.tracers, providers.meters, providers.shutdown)

    async def stop(self) -> None:
        """Send what is collected, if that is possible soon."""
        self._engine.metrics.observers.clear()
        # A receiver that does not answer must not keep the server: a process ends without waiting for daemon threads.
        sending = threading.Thread(target=self._shutdown, name="penstock-telemetry", daemon=True)
        sending.start()
        await asyncio.to_thread(sending.join, STOP_S_MAX)


def _is_wanted(signal: str, environ: Mapping[str, str]) -> bool:
    """Whether the variables of OpenTelemetry's specification ask for traces, or for metrics."""
    if environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    name = signal.upper()
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")
    exporter = environ.get(f"OTEL_{name}_EXPORTER") or ("otlp" if any(map(environ.get, endpoints)) else "none")
    if exporter not in ("otlp", "none"):
        log.warning("OTEL_%s_EXPORTER is %s, and this server knows otlp and none; nothing is sent", name, exporter)
    kind = environ.get(f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL") or environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if exporter == "otlp" and kind not in (None, "", "http/protobuf"):
        log.warning("the protocol of OTLP is %s, and this server knows http/protobuf; no %s are sent", kind, signal)
        return False
    return exporter == "otlp"


class _Providers:
    """OpenTelemetry's own parts. They take everything else from the variables themselves. Raises ImportError."""

    def __init__(self, wanted: Iterable[str], environ: Mapping[str, str]) -> None:
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

        about: dict[str, Any] = {"service.version": __version__}
        if not environ.get("OTEL_SERVICE_NAME") and "service.name=" not in environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
            about["service.name"] = "penstock"
        resource = Resource.create(about)
        self.tracers: Any = None
        self.meters: Any = None
        if "traces" in wanted:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
            from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
            from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

            self.tracers = TracerProvider(resource=resource, shutdown_on_exit=False)
            self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        if "metrics" in wanted:
            from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
            from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
            from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

            reader = PeriodicExportingMetricReader(OTLPMetricExporter())
            self.meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)

    def shutdown(self) -> None:
        for provider in (self.tracers, self.meters):
            if provider is not None:
                provider.shutdown()


# --- spans ----------------------------------------------------------------------------------------------------


class Spans:
    def __init__(self, tracers: "TracerProvider") -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415

        self._tracer = tracers.get_tracer(SCOPE, __version__)
        self._propagator = TraceContextTextMapPropagator()

    def observe(self, told: Finished) -> None:
        from opentelemetry.context import Context  # noqa: PLC0415
        from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

        ended = time.time_ns()
        parent = self._propagator.extract(told.headers, Context()) if told.headers else _appended_in(told)
        span = self._tracer.start_span(
            told.command.partition(" ")[0],
            # The server has no other span that this one could belong to.
            context=parent or Context(),
            kind=SpanKind.SERVER,
            attributes=_attributes(told),
            start_time=ended - round(told.took_s * 1e9),
        )
        if _is_fault(told):
            span.set_status(Status(StatusCode.ERROR))
        span.end(ended)


def _attributes(told: Finished) -> dict[str, str | int | float]:
    """The facts of a message that its span gets: no bodies and no tokens."""
    found: dict[str, str | int | float | None] = {
        "penstock.gate": told.gate,
        "penstock.command": told.command,
        "penstock.principal": told.principal,
        "penstock.context": told.context,
        "penstock.session": told.peer.id,
        "penstock.request": told.id,
        "penstock.received_bytes": told.received_bytes,
        "penstock.sent_bytes": told.sent_bytes,
        "network.peer.address": told.peer.peer,
        "error.type": None if told.outcome == OK else told.outcome,
        **{f"penstock.{what}_ms": round(1000 * seconds, 3) for what, seconds in told.waits.items()},
    }
    if told.gate == HTTP:
        method, _, path = told.command.partition(" ")
        found |= {"http.request.method": method, "url.path": path}
        if told.outcome.isdecimal():
            found["http.response.status_code"] = int(told.outcome)
    return {name: value for name, value in found.items() if value not in (None, "")}


def _is_fault(told: Finished) -> bool:
    """Whether the server is at fault, and not what the client has asked for."""
    if told.gate == HTTP:
        return told.outcome.isdecimal() and int(told.outcome) >= 500
    return told.outcome in FAULTS


def _appended_in(told: Finished) -> "Context | None":
    """The trace that the headers of the first event name which a message appends."""
    for request in told.requests[:1]:
        append = request.commits[0] if isinstance(request, Transact) and request.commits else request
        if not isinstance(append, Append):
            continue
        if isinstance(events := append.events, Columns):
            length = events.numbers()[2][0] if events.length else 0
            headers = events.headers[: min(length, HEADERS_BYTES_MAX + 1)].decode(errors="replace")
        else:
            headers = (events[0].headers or "") if events else ""
        if len(headers) <= HEADERS_BYTES_MAX:
            return context_of(new_event("", b"", headers))
    return None


# --- metrics --------------------------------------------------------------------------------------------------


class Meters:
    """The engine's counters and gauges, and the times of requests."""

    def __init__(self, engine: Engine, meters: "MeterProvider") -> None:
        self._engine = engine
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._collected: dict[str, list[tuple[dict[str, str], float]]] = {}
        self._collected_at = float("-inf")
        meter = meters.get_meter(SCOPE, __version__)
        self._seconds = meter.create_histogram("penstock.request.duration", "s", "Time until a message was answered")
        for family in engine.metrics.collect():
            create: Any = {"counter": meter.create_observable_counter, "gauge": meter.create_observable_gauge}.get(
                family.type
            )
            if create is not None:
                name = family.name.replace("_", ".", 1)
                create(name, [self._callback(family.name)], description=family.documentation)

    def observe(self, told: Finished) -> None:
        method = told.command.partition(" ")[0]
        # A client may send any method and any path.
        command = told.command if told.gate != HTTP else method if method in METHODS else "other"
        attributes = {"gate": told.gate, "command": command}
        if told.outcome != OK:
            attributes["error.type"] = "gone" if told.outcome == GONE else told.outcome
        self._seconds.record(told.took_s, attributes)

    def _callback(self, name: str) -> "Callable[[CallbackOptions], Iterable[Observation]]":
        def observed(_options: "CallbackOptions") -> "Iterable[Observation]":
            from opentelemetry.metrics import Observation  # noqa: PLC0415

            return [Observation(value, labels) for labels, value in self._latest().get(name, [])]

        return observed

    def _latest(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """The numbers, collected once for an export. Runs on the thread that sends them."""
        with self._lock:
            if time.monotonic() - self._collected_at > KEPT_S:
                try:
                    collecting = asyncio.run_coroutine_threadsafe(self._collect(), self._loop)
                    self._collected = collecting.result(COLLECT_S_MAX)
                except (TimeoutError, RuntimeError, PenstockError):
                    # The loop is busy, or has ended.
                    self._collected = {}
                self._collected_at = time.monotonic()
            return self._collected

    async def _collect(self) -> dict[str, list[tuple[dict[str, str], float]]]:
        """Counts are changed on the loop, so they are read there."""
        await self._engine.refresh_metrics()
        return {
            family.name: [(dict(sample.labels), float(sample.value)) for sample in family.samples]
            for family in self._engine.metrics.collect()
            if family.type in ("counter", "gauge")
        }


def _fault_names(kinds: Iterable[type[PenstockError]]) -> Iterable[str]:
    for kind in kinds:
        if not issubclass(kind, OverLimit):
            yield kind.__name__
            yield from _fault_names(kind.__subclasses__())


FAULTS: Final = frozenset(_fault_names(_FAULTS))
"""Names of errors for which the client is not to blame."""
