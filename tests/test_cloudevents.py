"""CloudEvents become events and events CloudEvents, both ways; an error names the attribute."""

import json
import subprocess
import sys
from base64 import b64encode
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID, uuid4

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_http_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.cloudevents import (
    BASE,
    MEDIA_TYPE,
    Incoming,
    NotACloudEvent,
    from_http,
    from_object,
    from_structured,
    to_binary,
    to_object,
    to_structured,
)
from penstock.model import Event, stamp_of
from penstock.model.times import KIND_LOCAL, TICKS_MAX
from tests.test_server import PATIENCE_S

ID = "5c0f4c4e-6a5d-4a53-8a6c-2f1d1f7c6f55"
PLACED = {"specversion": "1.0", "id": ID, "source": "penstock:shop", "subject": "order-1", "type": "OrderPlaced"}
WHERE = {"penstockposition": "7", "penstocksequence": "3"}


def recorded(incoming: Incoming) -> Event:
    """The event as a reader gets it after the append."""
    context, stream, new = incoming
    return Event(7, context, stream, 3, *new, recorded=0, commit=bytes(16))


def attributes_of(reason: pytest.ExceptionInfo[NotACloudEvent]) -> str:
    return reason.value.attribute


# ---------------------------------------------------------------- what becomes of them


def test_a_source_is_a_context_and_a_subject_a_stream() -> None:
    context, stream, event = from_structured({**PLACED, "time": "2026-11-15T06:00:00.1234567Z", "data": {"amount": 42}})
    assert (context, stream) == ("shop", "order-1")
    assert event.type == "OrderPlaced"
    assert UUID(bytes=event.id) == UUID(ID)
    assert event.body == b'{"amount":42}'
    assert event.headers is None
    assert to_structured(recorded(Incoming(context, stream, event))) == {
        **PLACED,
        "time": "2026-11-15T06:00:00.1234567Z",
        "datacontenttype": "application/json",
        "data": {"amount": 42},
        **WHERE,
    }


def test_names_of_contexts_are_quoted() -> None:
    incoming = from_structured({**PLACED, "source": "penstock:my%20shop%2F%C3%A9"})
    assert incoming.context == "my shop/é"
    assert to_structured(recorded(incoming))["source"] == "penstock:my%20shop%2F%C3%A9"


def test_sources_may_begin_with_something_else() -> None:
    incoming = from_structured({**PLACED, "source": "https://example.com/shop"}, base="https://example.com/")
    assert incoming.context == "shop"
    assert to_structured(recorded(incoming), base="https://example.com/")["source"] == "https://example.com/shop"


def test_a_foreign_event_comes_out_as_it_came_in() -> None:
    foreign = {
        "specversion": "1.0",
        "id": "A234-1234-1234",
        "source": "https://github.com/cloudevents",
        "type": "com.github.pull_request.opened",
        "time": "2018-04-05T17:31:00+02:00",
        "datacontenttype": "text/xml",
        "dataschema": "https://example.com/schema",
        "comexampleextension": "value",
        "comexampleothervalue": 5,
        "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "sampled": True,
        "data": '<much wow="xml"/>',
    }
    incoming = from_structured(foreign, context="github", stream="pulls")
    assert incoming.event.body == b'<much wow="xml"/>'
    headers = json.loads(incoming.event.headers or "")
    assert headers["ce-id"] == "A234-1234-1234"
    assert headers["ce-subject"] is None
    assert headers["traceparent"] == foreign["traceparent"]
    assert to_structured(recorded(incoming)) == {**foreign, **WHERE}


def test_the_same_foreign_event_has_the_same_id_each_time() -> None:
    one, again = (from_structured({**PLACED, "id": "A1"}).event for _ in range(2))
    assert one.id == again.id
    assert one.id != from_structured({**PLACED, "id": "A2"}).event.id
    assert one.id != from_structured({**PLACED, "id": "A1", "source": "penstock:other"}).event.id


@pytest.mark.parametrize("written", [ID.upper(), ID.replace("-", ""), "{" + ID + "}"])
def test_a_uuid_that_is_written_otherwise_is_kept_as_it_is(written: str) -> None:
    incoming = from_structured({**PLACED, "id": written})
    assert to_structured(recorded(incoming))["id"] == written


def test_an_event_without_a_time_has_none_when_it_comes_out() -> None:
    assert "time" not in to_structured(recorded(from_structured(PLACED)))


@pytest.mark.parametrize(
    "time",
    ["2026-11-15T06:00:00Z", "2026-11-15T06:00:00.5Z", "2026-11-15T06:00:00.123456789Z", "2016-12-31T23:59:60Z"],
)
def test_times_come_out_as_they_came_in(time: str) -> None:
    assert to_structured(recorded(from_structured({**PLACED, "time": time})))["time"] == time


def test_a_leap_second_is_the_first_of_the_next_minute() -> None:
    leap, next_minute = (from_structured({**PLACED, "time": f"{text}Z"}).event.stamp for text in LEAP)
    assert leap == next_minute


LEAP = ("2016-12-31T23:59:60", "2017-01-01T00:00:00")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        (None, [1, 2.5, None, "é"]),
        (None, None),
        ("application/json", "text"),
        ("application/vnd.order+json; charset=utf-8", {"amount": 42}),
        ("text/plain", "é\n"),
        ("text/plain; charset=iso-8859-1", "é"),
        ("application/xml", "<é/>"),
    ],
)
def test_data_comes_out_as_it_came_in(kind: str | None, data: Any) -> None:
    about = {} if kind is None else {"datacontenttype": kind}
    out = to_structured(recorded(from_structured({**PLACED, **about, "data": data})))
    assert out["data"] == data
    assert out["datacontenttype"] == (kind or "application/json")


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/octet-stream", b"\x00\xff"),
        ("application/json", b"not JSON"),
        ("application/json", b"NaN"),
        ("application/json", b'"\\ud800"'),
        ("text/plain", b"\xff"),
        ("text/plain; charset=unheard-of", b"text"),
        ("text/plain; charset=base64", b"text"),
    ],
)
def test_bytes_come_out_as_they_came_in(kind: str, body: bytes) -> None:
    structured = {**PLACED, "datacontenttype": kind, "data_base64": b64encode(body).decode()}
    incoming = from_structured(structured)
    assert incoming.event.body == body
    out = to_structured(recorded(incoming))
    assert (out["datacontenttype"], out["data_base64"]) == (kind, structured["data_base64"])


def test_no_data_is_an_empty_body() -> None:
    incoming = from_structured(PLACED)
    assert incoming.event.body == b""
    assert not {"data", "data_base64", "datacontenttype"} & set(to_structured(recorded(incoming)))


# ---------------------------------------------------------------- headers of events


@pytest.mark.parametrize(
    "headers",
    [
        None,
        "{}",
        "plain text",
        '["a", "list"]',
        '{"user": {"id": 7}, "traceparent": "00-0af7"}',
        '{ "spaced" : "out" }',
        '{"type": "not an extension"}',
        '{"ce-id": 5}',
        '{"ce-id": "another"}',
        '{"ce-source": ""}',
        '{"Upper": "case"}',
        '{"large": 123456789012}',
        '{"penstockheaders": "e30="}',
        '{"line":"one\\ntwo"}',
    ],
)
def test_headers_come_back_as_they_were(headers: str | None) -> None:
    event = Event(7, "shop", "order-1", 3, UUID(ID).bytes, stamp_of(5), "OrderPlaced", headers, b"{}", 0, bytes(16))
    again = from_structured(json.dumps(to_structured(event)))
    assert again == ("shop", "order-1", (event.id, event.stamp, event.type, headers, event.body))


def test_members_of_headers_that_can_be_extensions_are() -> None:
    headers = '{"traceparent": "00-0af7", "user": {"id": 7}}'
    event = Event(7, "shop", "order-1", 3, UUID(ID).bytes, stamp_of(5), "OrderPlaced", headers, b"{}", 0, bytes(16))
    out = to_structured(event)
    assert out["traceparent"] == "00-0af7"
    assert "user" not in out


@pytest.mark.parametrize(("stream", "type", "named"), [("a\nb", "T", "subject"), ("a", "T\x07", "type")])
def test_an_event_that_can_be_no_cloudevent_is_refused(stream: str, type: str, named: str) -> None:
    event = Event(7, "shop", stream, 3, UUID(ID).bytes, stamp_of(5), type, None, b"{}", 0, bytes(16))
    with pytest.raises(NotACloudEvent) as refused:
        to_structured(event)
    assert attributes_of(refused) == named


# ---------------------------------------------------------------- what is refused

BAD: list[tuple[str, dict[str, Any]]] = [
    ("id", {"id": None}),
    ("id", {"id": ""}),
    ("id", {"id": 7}),
    ("source", {"source": None}),
    ("source", {"source": "/orders"}),
    ("source", {"source": "penstock:"}),
    ("source", {"source": "penstock:%FF"}),
    ("source", {"source": "penstock:" + "x" * 300}),
    ("type", {"type": None}),
    ("type", {"type": "x" * 1025}),
    ("type", {"type": "a\x00b"}),
    ("specversion", {"specversion": None}),
    ("specversion", {"specversion": "0.3"}),
    ("subject", {"subject": None}),
    ("subject", {"subject": ""}),
    ("subject", {"subject": "x" * 600}),
    ("time", {"time": "yesterday"}),
    ("time", {"time": "2026-13-01T00:00:00Z"}),
    ("time", {"time": "2026-11-15T06:00:00"}),
    ("time", {"time": "2026-11-15T06:00:61Z"}),
    ("time", {"time": "0001-01-01T00:00:00+10:00"}),
    ("time", {"time": "9999-12-31T23:59:60Z"}),
    ("time", {"time": 7}),
    ("data", {"datacontenttype": "text/plain", "data": {"a": 1}}),
    ("data", {"datacontenttype": "text/plain; charset=us-ascii", "data": "é"}),
    ("data", {"datacontenttype": "text/plain; charset=unheard-of", "data": "e"}),
    ("data", {"data": "\ud800"}),
    ("data", {"data": float("nan")}),
    ("data", {"data": object()}),
    ("data_base64", {"data_base64": "no base64!"}),
    ("data_base64", {"data_base64": 7}),
    ("data_base64", {"data_base64": "e30=", "data": {}}),
    ("datacontenttype", {"datacontenttype": 7, "data": "x"}),
    ("Upper", {"Upper": "case"}),
    ("withdash", {"withdash": 1.5}),
    ("ext", {"ext": {"a": 1}}),
    ("ext", {"ext": 1 << 31}),
    ("ext", {"ext": "a\nb"}),
    ("penstockheaders", {"penstockheaders": "no base64!"}),
    ("penstockheaders", {"penstockheaders": "/w=="}),
]


@pytest.mark.parametrize(("named", "change"), BAD)
def test_a_bad_one_is_refused_by_the_name_of_its_attribute(named: str, change: dict[str, Any]) -> None:
    with pytest.raises(NotACloudEvent) as refused:
        from_structured({**PLACED, **change})
    assert attributes_of(refused) == named
    assert named in str(refused.value)


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b'"text"', "[" * 100_000])
def test_what_is_no_json_object_is_refused(text: bytes | str) -> None:
    with pytest.raises(NotACloudEvent, match="the event"):
        from_structured(text)


@pytest.mark.parametrize("kind", ["application/cloudevents-batch+json", "application/cloudevents+avro"])
def test_other_formats_over_http_are_refused(kind: str) -> None:
    with pytest.raises(NotACloudEvent, match="one event at a time"):
        from_http({"Content-Type": kind}, b"[]")


# ---------------------------------------------------------------- over HTTP, and as objects


def test_binary_mode_has_attributes_in_headers_and_the_body_as_it_is() -> None:
    headers = {f"CE-{name.title()}": value for name, value in PLACED.items()}
    incoming = from_http({**headers, "Ce-Note": "Euro%20%E2%82%AC", "Content-Type": "application/json"}, b'{ "a": 1 }')
    assert incoming.event.body == b'{ "a": 1 }'
    assert incoming.event.headers == '{"ce-time":null,"note":"Euro €"}'
    out, body = to_binary(recorded(incoming))
    assert (out["ce-note"], out["content-type"], body) == ("Euro%20%E2%82%AC", "application/json", b'{ "a": 1 }')
    assert from_http(out, body).event.headers == incoming.event.headers


def test_structured_mode_over_http_is_told_by_its_content_type() -> None:
    body = json.dumps({**PLACED, "data": {"a": 1}}).encode()
    assert from_http({"content-type": f"{MEDIA_TYPE}; charset=utf-8"}, body).event.body == b'{"a":1}'


def test_a_header_that_is_not_utf_8_is_refused_by_its_name() -> None:
    headers = {f"ce-{name}": value for name, value in PLACED.items()}
    with pytest.raises(NotACloudEvent) as refused:
        from_http({**headers, "ce-note": "%FF"}, b"")
    assert attributes_of(refused) == "note"


@pytest.mark.parametrize("data", [{"amount": 42}, [1], "text", b"\x00\xff", None])
def test_objects_of_the_cloudevents_package_go_both_ways(data: Any) -> None:
    event = CloudEvent({"id": ID, "source": "penstock:shop", "type": "T", "subject": "order-1", "note": "n"}, data)
    incoming = from_object(event)
    out = to_object(recorded(incoming))
    assert out.get_data() == data
    assert out.get_time() == event.get_time()
    assert {**event.get_attributes(), **WHERE}.items() <= out.get_attributes().items()


def test_an_object_whose_time_has_no_time_zone_is_refused() -> None:
    attributes = {"id": ID, "source": "penstock:shop", "type": "T", "time": datetime(2026, 11, 15)}  # noqa: DTZ001
    event = SimpleNamespace(get_attributes=lambda: attributes, get_data=lambda: None)
    with pytest.raises(NotACloudEvent, match="2026-11-15T00:00:00 has no time zone"):
        from_object(event)


def test_the_cloudevents_package_reads_what_is_written_here_and_the_other_way_round() -> None:
    incoming = from_structured({**PLACED, "note": "Euro €", "time": "2026-11-15T06:00:00Z", "data": {"amount": 42}})
    written = from_http_event(HTTPMessage(*to_binary(recorded(incoming))))
    assert (written.get_data(), written.get_extension("note")) == ({"amount": 42}, "Euro €")
    for message in (to_binary_event(written), to_structured_event(written)):
        again = from_http(message.headers, message.body)
        assert again._replace(event=again.event._replace(body=b"")) == incoming._replace(
            event=incoming.event._replace(body=b"")
        )
        assert json.loads(again.event.body) == {"amount": 42}


def test_the_cloudevents_package_is_not_needed() -> None:
    code = (
        "import sys; sys.modules['cloudevents'] = None\n"
        "from penstock.cloudevents import from_structured\n"
        f"print(from_structured({PLACED!r}).stream)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (result.stdout, result.stderr) == ("order-1\n", "")


# ---------------------------------------------------------------- there and back, whatever they are

plain = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), min_size=1, max_size=40)
values = st.one_of(plain, st.booleans(), st.integers(-(1 << 31), (1 << 31) - 1))
extensions = st.dictionaries(st.from_regex("x[a-z0-9]{0,9}", fullmatch=True), values, max_size=4)
json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), plain),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(plain, inner, max_size=3),
    max_leaves=10,
)
data = st.one_of(
    st.just({}),
    st.fixed_dictionaries({"data": json_values, "datacontenttype": st.just("application/json")}),
    st.fixed_dictionaries({"data": plain, "datacontenttype": st.just("text/plain")}),
    st.fixed_dictionaries(
        {
            "data_base64": st.binary(min_size=1).map(lambda raw: b64encode(b"\xff" + raw).decode()),
            "datacontenttype": st.sampled_from(["image/png", "application/octet-stream", "text/plain"]),
        }
    ),
)
times = st.datetimes().map(lambda moment: {"time": moment.isoformat() + "Z"})
ids = st.one_of(st.uuids().map(str), plain)
subjects: st.SearchStrategy[dict[str, str]] = st.one_of(st.just({}), plain.map(lambda text: {"subject": text}))


@given(ids, plain, subjects, plain, st.one_of(st.just({}), times), data, extensions)
def test_any_cloudevent_comes_out_as_it_came_in(
    id: str, source: str, subject: dict[str, str], type: str, time: dict[str, str], carried: Any, more: dict[str, Any]
) -> None:
    event = {"specversion": "1.0", "id": id, "source": source, "type": type, **subject, **time, **carried, **more}
    incoming = from_structured(json.dumps(event), context="foreign", stream="all")
    assert to_structured(recorded(incoming)) == {**event, **WHERE}


names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=60)
headers = st.one_of(
    st.none(),
    st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1),
    st.dictionaries(st.one_of(plain, st.sampled_from(["ce-id", "ce-time", "id", "data"])), json_values).map(json.dumps),
    extensions.map(lambda members: json.dumps(members, separators=(",", ":"))),
)


@given(names, plain, st.integers(0, TICKS_MAX), plain, headers, st.one_of(st.binary(), plain.map(str.encode)))
@example("shop", "order-1", 0, "Placed", '{"ce-time":null}', b"")
def test_any_event_becomes_a_cloudevent_and_the_same_event_again(
    context: str, stream: str, ticks: int, type: str, headers: str | None, body: bytes
) -> None:
    event = Event(7, context, stream, 3, uuid4().bytes, stamp_of(ticks), type, headers, body, 0, bytes(16))
    made, again = from_http(*to_binary(event)), from_structured(json.dumps(to_structured(event)))
    if "time" not in to_structured(event):
        # It came from a CloudEvent without a time, and goes out without one: the present time is not its own.
        assert json.loads(headers or "{}")["ce-time"] is None
        made, again = (each._replace(event=each.event._replace(stamp=event.stamp)) for each in (made, again))
    assert made == (context, stream, (event.id, event.stamp, type, headers, body))
    assert again[:2] == (context, stream)
    assert again.event._replace(body=body) == (event.id, event.stamp, type, headers, body)
    assert again.event.body == body or json.loads(again.event.body) == json.loads(body)


def test_the_kind_of_a_time_is_not_carried() -> None:
    local = stamp_of(5, KIND_LOCAL)
    event = Event(7, "shop", "order-1", 3, UUID(ID).bytes, local, "OrderPlaced", None, b"", 0, bytes(16))
    assert from_structured(to_structured(event)).event.stamp == stamp_of(5)


def test_a_source_begins_with_penstock() -> None:
    assert BASE == "penstock:"
