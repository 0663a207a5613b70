"""Traces go through the history, where there is OpenTelemetry; where there is none, nothing is different."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

import penstock
from penstock.testing import server
from penstock.tracing import context_of, continued, traced
from tests.test_server import PATIENCE_S

TRACE = 0x0AF7651916CD43DD8448EB211C80319C
SPAN = 0xB7AD6B7169203331
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@contextmanager
def span(state: TraceState | None = None) -> Iterator[None]:
    context = SpanContext(TRACE, SPAN, is_remote=False, trace_flags=TraceFlags(1), trace_state=state)
    with trace.use_span(NonRecordingSpan(context)):
        yield


def headers_of(event: penstock.NewEvent | penstock.Event) -> str | None:
    return event.headers


def test_an_event_carries_the_current_trace() -> None:
    with span():
        (event,) = traced([penstock.event("OrderPlaced")])
    assert event.headers == f'{{"traceparent":"{PARENT}"}}'


def test_its_state_goes_along() -> None:
    with span(TraceState([("vendor", "value")])):
        (event,) = traced([penstock.event("OrderPlaced")])
    assert json.loads(event.headers or "") == {"traceparent": PARENT, "tracestate": "vendor=value"}


def test_outside_of_a_span_nothing_is_added() -> None:
    assert traced([penstock.event("OrderPlaced")])[0].headers is None


@pytest.mark.parametrize("headers", ["{}", " { } ", '{"user": 7}', '{ "a" : 1.50 }\n', '{"a": {"traceparent": 1}}'])
def test_other_members_stay_as_they_are_written(headers: str) -> None:
    with span():
        (event,) = traced([penstock.event("OrderPlaced", headers=headers)])
    assert json.loads(event.headers or "") == {**json.loads(headers), "traceparent": PARENT}
    assert (event.headers or "").startswith(headers.rstrip().removesuffix("}").rstrip())


@pytest.mark.parametrize(
    "headers",
    [
        "plain text",
        "[1]",
        "null",
        "{broken",
        "[" * 100_000,
        '{"traceparent": "theirs"}',
        '{"Traceparent": "theirs"}',
        '{"tracestate": "theirs"}',
    ],
)
def test_headers_that_are_no_object_or_name_a_trace_are_not_touched(headers: str) -> None:
    with span():
        assert traced([penstock.event("OrderPlaced", headers=headers)])[0].headers == headers


def test_a_consumer_goes_on_with_the_trace() -> None:
    with span(TraceState([("vendor", "value")])):
        (event,) = traced([penstock.event("OrderPlaced")])
    with continued(event):
        found = trace.get_current_span().get_span_context()
        assert (found.trace_id, found.span_id, found.is_remote) == (TRACE, SPAN, True)
        assert found.trace_state["vendor"] == "value"
    assert not trace.get_current_span().get_span_context().is_valid


def test_a_consumer_that_fails_leaves_the_trace() -> None:
    with span():
        (event,) = traced([penstock.event("OrderPlaced")])
    with pytest.raises(ZeroDivisionError), continued(event):
        raise ZeroDivisionError
    assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize("headers", [None, "text", "{}", '{"traceparent": 7}', '{"tracestate": "a=b"}'])
def test_an_event_without_a_trace_changes_nothing(headers: str | None) -> None:
    event = penstock.event("OrderPlaced", headers=headers)
    assert context_of(event) is None
    with span(), continued(event):
        assert trace.get_current_span().get_span_context().span_id == SPAN


def test_a_trace_that_cannot_be_read_changes_nothing() -> None:
    with span(), continued(penstock.event("OrderPlaced", headers={"traceparent": "nonsense"})):
        assert trace.get_current_span().get_span_context().span_id == SPAN


def test_a_trace_goes_through_the_history() -> None:
    with server() as served, penstock.connect(served.url) as client:
        with span():
            client.append("shop", "order-1", traced([penstock.event("OrderPlaced", headers={"user": 7})]))
        (event,) = client.read_stream("shop", "order-1")
        with continued(event):
            assert trace.get_current_span().get_span_context().trace_id == TRACE


def test_what_a_client_appends_carries_the_trace() -> None:
    with server() as served, penstock.connect(served.url) as client:
        with span():
            client.append("shop", "order-1", [penstock.event("Appended")])
            client.append_many([("shop", "order-2", [penstock.event("AppendedMany")])])
            with client.transaction() as transaction:
                transaction.append("shop", "order-3", [penstock.event("Transacted")])
        assert [headers_of(event) for event in client.read_all()] == [f'{{"traceparent":"{PARENT}"}}'] * 3


@pytest.mark.parametrize("block", ["", "sys.modules['opentelemetry'] = None\n"])
def test_without_opentelemetry_nothing_is_different(block: str) -> None:
    code = (
        f"import sys\n{block}"
        "import penstock\nfrom penstock.tracing import context_of, continued, traced\n"
        "events = traced([penstock.event('OrderPlaced')])\n"
        "with continued(events[0]): print(events[0].headers, context_of(events[0]))\n"
        "print([name for name in sys.modules if name.startswith('opentelemetry.')])\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stdout, result.stderr) == ("None None\n[]\n", "")


def test_a_trace_is_left_alone_where_there_is_no_opentelemetry() -> None:
    code = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "import penstock\nfrom penstock.tracing import continued\n"
        f"with continued(penstock.event('OrderPlaced', headers={{'traceparent': '{PARENT}'}})): print('done')\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stdout, result.stderr) == ("done\n", "")
