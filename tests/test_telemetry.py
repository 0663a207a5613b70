"""Spans and metrics for OpenTelemetry: what a server sends, where to, and that it sends nothing unless it is asked."""

import gzip
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import penstock
from penstock import testing
from penstock.errors import VersionConflict
from penstock.telemetry import FAULTS, Telemetry
from penstock.tracing import traced
from tests.gates.remits_client import Remits
from tests.test_server import ONE_WORKER, PATIENCE_S, Served, until
from tests.test_tracing import PARENT, SPAN, TRACE
from tests.test_tracing import span as current_span

SECRET = "a body that no span has"


class Collected:
    """A server in this process, whose spans and metrics stay in memory."""

    def __init__(self, server: testing.Server) -> None:
        self.server = server
        self.exporter = InMemorySpanExporter()
        self._reader = InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        meters = MeterProvider([self._reader])
        running = server._running
        assert running is not None

        async def start() -> None:
            Telemetry(running.engine, tracers, meters)

        server._portal.run(start())

    def spans(self, **wanted: object) -> list[ReadableSpan]:
        """Those with all these attributes of ours."""
        attributes = {f"penstock.{name}": value for name, value in wanted.items()}.items()
        return [one for one in self.exporter.get_finished_spans() if attributes <= dict(one.attributes or {}).items()]

    def numbers(self) -> dict[str, list[tuple[dict[str, Any], Any]]]:
        data: Any = self._reader.get_metrics_data()
        found: dict[str, list[tuple[dict[str, Any], Any]]] = {}
        for metric in data.resource_metrics[0].scope_metrics[0].metrics:
            points = [(dict(point.attributes), point) for point in metric.data.data_points]
            found[metric.name] = points
        return found


@pytest.fixture
def collected() -> Iterator[Collected]:
    with testing.server() as server:
        yield Collected(server)


def test_each_request_has_a_span_without_its_body(collected: Collected) -> None:
    with penstock.connect(collected.server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced", {"about": SECRET})])
        with pytest.raises(VersionConflict):
            client.append("shop", "order-1", [penstock.event("OrderPlaced")], expected=7)
        until(lambda: len(collected.spans(context="shop")) == 2)
    written, failed = collected.spans(context="shop", gate="mq")
    assert (written.kind, written.parent) == (SpanKind.SERVER, None)
    attributes = dict(written.attributes or {})
    assert attributes["penstock.principal"] == "anonymous"
    assert attributes["penstock.command"] == written.name
    assert attributes["penstock.session"] == "mq-1"
    assert "error.type" not in attributes
    assert written.start_time is not None
    assert written.end_time is not None
    assert written.start_time < written.end_time
    assert dict(failed.attributes or {})["error.type"] == "VersionConflict"
    # The server has done what it should.
    assert failed.status.status_code == StatusCode.UNSET
    assert SECRET not in "".join(one.to_json() for one in collected.exporter.get_finished_spans())


@pytest.mark.parametrize("way", ["append", "append_many", "transaction"])
def test_an_append_belongs_to_the_trace_of_its_client(collected: Collected, way: str) -> None:
    events = [penstock.event("OrderPlaced", headers={"user": 7})]
    with penstock.connect(collected.server.url) as client:
        with current_span():
            if way == "append":
                client.append("shop", "order-1", traced(events))
            elif way == "append_many":
                client.append_many([("shop", "order-1", traced(events))])
            else:
                with client.transaction() as transaction:
                    transaction.append("shop", "order-1", traced(events))
        until(lambda: collected.spans(context="shop") != [])
    (found,) = collected.spans(context="shop")
    assert found.parent is not None
    assert (found.parent.trace_id, found.parent.span_id) == (TRACE, SPAN)


@pytest.mark.parametrize("headers", ["plain text", '{"traceparent": "nonsense"}', '{"a": "' + "x" * 5000 + '"}', None])
def test_headers_that_name_no_trace_begin_a_new_one(collected: Collected, headers: str | None) -> None:
    with penstock.connect(collected.server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced", headers=headers)])
        until(lambda: collected.spans(context="shop") != [])
    assert collected.spans(context="shop")[0].parent is None


def test_requests_over_http_and_of_logs_have_spans(collected: Collected) -> None:
    server = collected.server
    httpx.get(f"{server.http}/readyz?token={SECRET}", headers={"traceparent": PARENT}, timeout=PATIENCE_S)
    httpx.get(f"{server.http}/nothing", timeout=PATIENCE_S)
    with Remits(server.remits) as remits:
        remits.log_add("visits")
        until(lambda: len(collected.exporter.get_finished_spans()) == 3)
    ready, missing = collected.spans(gate="http")
    assert ready.parent is not None
    assert ready.parent.trace_id == TRACE
    attributes = dict(ready.attributes or {})
    assert (ready.name, attributes["url.path"]) == ("GET", "/readyz")
    assert dict(missing.attributes or {})["http.response.status_code"] == 404
    assert missing.status.status_code == StatusCode.UNSET
    assert [one.name for one in collected.spans(gate="remits")] == ["CreateLog"]
    assert SECRET not in "".join(one.to_json() for one in collected.exporter.get_finished_spans())


def test_what_the_server_is_at_fault_for_is_an_error() -> None:
    assert {"Unexpected", "StorageFull", "NotDurable", "WriterBusy", "ReaderTimeout", "WorkerDied"} <= FAULTS
    assert not {"VersionConflict", "OverLimit", "NotAllowed", "InvalidRequest", "LimitExceeded"} & FAULTS


def test_metrics_are_those_of_the_scrape(collected: Collected) -> None:
    with penstock.connect(collected.server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")] * 3)
        until(lambda: collected.spans(context="shop") != [])
        numbers = collected.numbers()
    assert numbers["penstock.events"][0][1].value == 3
    assert numbers["penstock.store_up"][0][1].value == 1
    assert {"gate": "mq"} in [labels for labels, _ in numbers["penstock.gate_sessions"]]
    durations = numbers["penstock.request.duration"]
    assert sum(point.count for labels, point in durations if labels["gate"] == "mq") >= 1


# ---------------------------------------------------------------- what is sent, and where to


class Receiver(BaseHTTPRequestHandler):
    """Takes OTLP."""

    spans: list[Any]
    metrics: list[Any]

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            content = gzip.decompress(content)
        if self.path == "/v1/traces":
            traces = ExportTraceServiceRequest.FromString(content)
            self.spans += [
                (resource.resource, one)
                for resource in traces.resource_spans
                for scope in resource.scope_spans
                for one in scope.spans
            ]
        else:
            sent = ExportMetricsServiceRequest.FromString(content)
            self.metrics += [
                one.name
                for resource in sent.resource_metrics
                for scope in resource.scope_metrics
                for one in scope.metrics
            ]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def receiver() -> Iterator[tuple[str, type[Receiver]]]:
    kind = type("Receiving", (Receiver,), {"spans": [], "metrics": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", kind
        finally:
            server.shutdown()
            thread.join()


def test_a_server_sends_what_the_standard_variables_ask_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with receiver() as (address, received):
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=tests")
        with Served(tmp_path / "data", *ONE_WORKER) as served:
            answer = served.get("/readyz")
            # What is collected is sent before the end.
            assert served.stop() == 0
            assert "traces and metrics go to OpenTelemetry" in served.said()
            assert "Traceback" not in served.said()
    resource, span = next((resource, one) for resource, one in received.spans if one.name == "GET")
    about = {one.key: one.value.string_value for one in resource.attributes}
    assert (about["service.name"], about["deployment.environment"]) == ("penstock", "tests")
    attributes = {one.key: one.value.string_value for one in span.attributes}
    assert attributes["penstock.request"] == answer.headers["x-request-id"]
    assert {"penstock.commits", "penstock.request.duration"} <= set(received.metrics)


def test_a_receiver_that_is_not_there_keeps_nothing_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with Served(tmp_path / "data", *ONE_WORKER) as served:
        assert served.get("/readyz").status_code == 200
        assert served.stop() == 0
        assert all(line[:4].isdigit() for line in served.said().splitlines()), served.said()


class NoEngine:
    """Nobody looks at it."""


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, ""),
        ({"OTEL_SERVICE_NAME": "shop"}, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"}, ""),
        (
            {
                "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9",
                "OTEL_TRACES_EXPORTER": "none",
                "OTEL_METRICS_EXPORTER": "none",
            },
            "",
        ),
        ({"OTEL_TRACES_EXPORTER": "zipkin"}, "this server knows otlp and none"),
        ({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, "knows http/protobuf"),
    ],
)
def test_nothing_is_sent_unless_the_variables_ask_for_it(
    environ: dict[str, str], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert Telemetry.configured(NoEngine(), environ) is None  # type: ignore[arg-type]
    assert said in caplog.text
    assert bool(said) == bool(caplog.text)


def test_a_server_without_the_extra_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with caplog.at_level(logging.WARNING):
        environ = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9"}
        assert Telemetry.configured(NoEngine(), environ) is None  # type: ignore[arg-type]
    assert "OTEL_* asks for traces, and they are not sent" in caplog.text
    assert "pip install 'penstock[otel]'" in caplog.text


def test_a_server_that_is_not_asked_loads_nothing_of_it() -> None:
    code = (
        "import sys, penstock.server\nfrom penstock.telemetry import Telemetry\n"
        "assert Telemetry.configured(None, {}) is None\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stdout, result.stderr) == ("[]\n", "")
