"""What gates tell of their messages: lines of the log, warnings of slow ones, and metrics."""

import asyncio
import logging
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock
from penstock import testing
from penstock.engine import traffic
from penstock.engine.access import Usage
from penstock.engine.metrics import OTHERS, PRINCIPALS_MAX, Metrics
from penstock.engine.traffic import CONNECTION, EVENTS, STORE, TURN, WRITER, Trace
from penstock.errors import OverLimit, PenstockError, VersionConflict
from penstock.model import Limits
from penstock.store import store_url
from penstock.store.contract import Outcome, Transaction
from penstock.store.sqlite import SqliteStore
from penstock.tcp.server import LINES_PER_ADDRESS_MAX
from tests.gates.remits_client import Failure, Remits
from tests.test_server import PATIENCE_S, until

SECRET = "a body that no line of a log has"
SLOW_S = 0.05


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, traffic.__name__)
    return caplog


def told(caplog: pytest.LogCaptureFixture, **wanted: object) -> list[dict[str, object]]:
    """The fields of all lines that have these."""
    found = [record.__dict__["fields"] for record in caplog.records if record.name == traffic.__name__]
    return [fields for fields in found if wanted.items() <= fields.items()]


def metrics(server: testing.Server) -> str:
    return httpx.get(f"{server.http}/metrics", timeout=PATIENCE_S).text


@pytest.mark.parametrize("gate", ["mq", "res"])
def test_at_debug_level_each_request_has_a_line_without_its_body(lines: pytest.LogCaptureFixture, gate: str) -> None:
    with testing.server() as server, penstock.connect(server.url if gate == "mq" else server.zmq_url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced", {"about": SECRET})])
        with pytest.raises(VersionConflict):
            client.append("shop", "order-1", [penstock.event("OrderPlaced")], expected=7)
        list(client.read_stream("shop", "order-1"))
        until(lambda: len(told(lines, gate=gate, context="shop")) == 3)
    written, failed, read = told(lines, gate=gate, context="shop")
    assert written["session"] == f"{gate}-1"
    assert re.fullmatch(r"127\.0\.0\.1:\d+", str(written["peer"]))
    assert written["principal"] == "anonymous"
    assert re.fullmatch(r"[0-9a-f]{6}-[0-9a-f]+", str(written["request"]))
    assert int(str(written["received_bytes"])) > len(SECRET)
    assert (written["outcome"], failed["outcome"], read["outcome"]) == ("ok", "VersionConflict", "ok")
    assert int(str(read["sent_bytes"])) > len(SECRET)
    assert len({one["request"] for one in (written, failed, read)}) == 3
    assert SECRET not in "".join(f"{record.getMessage()} {record.__dict__}" for record in lines.records)


def test_requests_of_logs_have_lines_too(lines: pytest.LogCaptureFixture) -> None:
    with testing.server() as server, Remits(server.remits) as client:
        client.log_add("visits")
        client.add("visits", SECRET)
        with pytest.raises(Failure):
            client.log_show("nothing")
        until(lambda: len(told(lines, gate="remits")) == 3)
    assert [one["command"] for one in told(lines, gate="remits")] == ["CreateLog", "AddMessages", "ShowLog"]
    assert [one["outcome"] for one in told(lines, gate="remits")] == ["ok", "ok", "LogNotFound"]
    assert all(one["session"] == "remits-1" and int(str(one["sent_bytes"])) > 0 for one in told(lines, gate="remits"))
    assert SECRET not in "".join(f"{record.getMessage()} {record.__dict__}" for record in lines.records)


def test_requests_over_http_have_lines_and_ids(lines: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with penstock.connect(store_url(tmp_path)) as client:
        client.access.put("admin", ["all"])
        client.access.put("prometheus", ["read"])
        token = client.access.issue_token("prometheus").token
    with testing.server(tmp_path) as server:
        answer = httpx.get(
            f"{server.http}/metrics?q={SECRET}", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE_S
        )
        refused = httpx.get(f"{server.http}/metrics", headers={"Authorization": "Bearer wrong"}, timeout=PATIENCE_S)
        until(lambda: len(told(lines, gate="http")) == 2)
    first, second = told(lines, gate="http")
    assert (first["command"], first["principal"], first["outcome"]) == ("GET /metrics", "prometheus", "ok")
    assert (second.get("principal"), second["outcome"]) == (None, "401")
    assert [first["request"], second["request"]] == [one.headers["x-request-id"] for one in (answer, refused)]
    text = "".join(f"{record.getMessage()} {record.__dict__}" for record in lines.records)
    assert SECRET not in text
    assert token not in text


async def test_a_message_whose_client_goes_away_has_a_line(lines: pytest.LogCaptureFixture) -> None:
    with testing.server() as server:
        client = await penstock.aconnect(server.url)
        fetching = asyncio.create_task(client.subscription("reader", context="shop").fetch(wait=3600))
        await asyncio.to_thread(until, lambda: "\npenstock_waiting_polls 1.0\n" in metrics(server))
        await client.close()
        with pytest.raises(PenstockError):
            await fetching
        await asyncio.to_thread(until, lambda: told(lines, outcome=traffic.GONE) != [])


# ---------------------------------------------------------------- slow requests


@pytest.fixture
def slow_store(monkeypatch: pytest.MonkeyPatch) -> None:
    write = SqliteStore.write

    def slowly(store: SqliteStore, transactions: Sequence[Transaction]) -> list[Outcome]:
        time.sleep(SLOW_S)
        return write(store, transactions)

    monkeypatch.setattr(SqliteStore, "write", slowly)


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record for record in caplog.records if record.name == traffic.__name__]
    return [record.getMessage() for record in found if record.levelno == logging.WARNING]


@pytest.mark.usefixtures("slow_store")
def test_a_slow_request_has_a_warning_with_what_it_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    with testing.server(slow_request_ms=20) as server, penstock.connect(server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")])
        until(lambda: warnings(caplog) != [])
    line = warnings(caplog)[0]
    assert re.search(r" took [\d,]+ ms, and slow_request_ms is 20; it waited .*\d+ ms for the store's commit", line)
    (fields,) = told(caplog, context="shop")
    assert float(str(fields["store_ms"])) >= 1000 * SLOW_S
    assert float(str(fields["duration_ms"])) >= float(str(fields["store_ms"]))
    assert int(str(fields["sent_bytes"])) > 0


@pytest.mark.usefixtures("slow_store")
def test_a_request_behind_another_one_waits_in_the_queue_of_the_writer(caplog: pytest.LogCaptureFixture) -> None:
    limits: dict[str, Any] = {"slow_request_ms": 20, "batch_requests_max": 1, "inline_commit_us_max": 0}
    with testing.server(**limits) as server, penstock.connect(server.url) as client:
        client.append_many([("shop", f"order-{number}", [penstock.event("OrderPlaced")]) for number in range(3)])
        until(lambda: any("in the writer's queue" in line for line in warnings(caplog)))


@pytest.mark.usefixtures("slow_store")
def test_slow_requests_cannot_fill_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with testing.server(slow_request_ms=1) as server, penstock.connect(server.url) as client:
        for number in range(LINES_PER_ADDRESS_MAX + 3):
            client.append("shop", "order-1", [penstock.event("OrderPlaced", number)])
    assert len(warnings(caplog)) == LINES_PER_ADDRESS_MAX + 1
    assert warnings(caplog)[-1].startswith("mq had 3 more slow requests, the last one from 127.0.0.1; the log names ")


@pytest.mark.usefixtures("slow_store")
def test_no_request_is_slow_without_a_limit(caplog: pytest.LogCaptureFixture) -> None:
    with testing.server(slow_request_ms=0) as server, penstock.connect(server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")])
    assert warnings(caplog) == []


async def test_a_long_poll_waits_for_events_and_is_not_slow(lines: pytest.LogCaptureFixture) -> None:
    with testing.server() as server:
        async with await penstock.aconnect(server.url) as client:
            assert len(await client.subscription("reader", context="shop").fetch(wait=0.2)) == 0
            await asyncio.to_thread(until, lambda: len(told(lines, context="shop")) == 2 or bool(events_ms(lines)))
    assert events_ms(lines) >= 100


def events_ms(caplog: pytest.LogCaptureFixture) -> float:
    return sum(float(str(one.get("events_ms", 0))) for one in told(caplog, gate="mq"))


def test_waits_that_a_client_has_caused_do_not_make_a_request_slow() -> None:
    trace = Trace()
    assert trace.own_s(3.0) == 3.0
    for what, seconds in ((EVENTS, 1.0), (CONNECTION, 0.5), (STORE, 0.25), (EVENTS, 1.0)):
        trace.waited(what, seconds)
    assert trace.own_s(3.0) == 0.5


def test_several_writes_of_one_message_wait_together() -> None:
    trace = Trace()
    trace.written(0.5, 0.25)
    trace.waited(TURN, 1.0)
    trace.written(0.25, 0.25)
    assert trace.spent == {WRITER: 0.75, STORE: 0.5, TURN: 1.0}
    assert trace.own_s(3.0) == 3.0


# ---------------------------------------------------------------- metrics


def test_a_scrape_has_what_operators_alert_on(tmp_path: Path) -> None:
    with testing.server(tmp_path / "data") as server, penstock.connect(server.url) as client:
        client.append("shop", "order-1", [penstock.event("OrderPlaced")])
        text = metrics(server)
    for sample in (
        "penstock_commit_seconds_count 1.0",
        "penstock_writer_wait_seconds_count 1.0",
        "penstock_head_position 1.0",
        'penstock_gate_sessions{gate="http"} 1.0',
        'penstock_gate_sessions{gate="mq"} 1.0',
        'penstock_requests_in_flight{gate="http"} 1.0',
        'penstock_requests_in_flight{gate="mq"} 0.0',
    ):
        assert f"\n{sample}\n" in text
    assert re.search(r'\npenstock_build_info\{backend="sqlite",python="3[\d.]+\w*",version="[^"]+"\} 1\.0\n', text)
    assert re.search(r'\npenstock_request_seconds_count\{gate="mq"\} [1-9]', text)
    assert "\npenstock_event_loop_lag_seconds_bucket{" in text


def test_no_message_stays_in_flight_when_its_client_has_gone() -> None:
    with testing.server() as server:
        for url in (server.url, server.zmq_url):
            with penstock.connect(url) as client:
                client.append("shop", "order-1", [penstock.event("OrderPlaced")])
                list(client.read_all())
        samples = re.compile(r'penstock_requests_in_flight\{gate="(?:mq|res|remits)"\} (\S+)')
        until(lambda: set(samples.findall(metrics(server))) == {"0.0"})


def test_answers_busy_are_counted_by_reason_and_principal(tmp_path: Path) -> None:
    with penstock.connect(store_url(tmp_path)) as client:
        client.access.put("admin", ["all"])
        client.access.put("shop", ["read"], limits=Limits(requests_per_s_max=1))
        admin, token = (client.access.issue_token(name).token for name in ("admin", "shop"))
    with testing.server(tmp_path) as server:
        with penstock.connect(server.url, token=token, retries=False) as client, pytest.raises(OverLimit):
            tuple(client.stats() for _ in range(20))
        text = httpx.get(
            f"{server.http}/metrics", headers={"Authorization": f"Bearer {admin}"}, timeout=PATIENCE_S
        ).text
    found = re.search(r'\npenstock_busy_total\{principal="shop",reason="requests_per_s_max"\} ([\d.]+)', text)
    assert found
    assert float(found[1]) >= 1


def test_many_principals_do_not_make_many_series() -> None:
    counts = Metrics()
    usage = {f"principal-{number}": Usage() for number in range(PRINCIPALS_MAX + 50)}
    for name, one in usage.items():
        one.requests = 1
        counts.busy["writer_busy", name] += 1
    counts.usage = usage
    families = {family.name: family for family in counts.collect()}
    for family, label in (("penstock_principal_requests", "principal"), ("penstock_busy", "principal")):
        samples = [sample for sample in families[family].samples if sample.name.endswith("_total")]
        assert len(samples) == PRINCIPALS_MAX + 1
        assert sum(sample.value for sample in samples) == PRINCIPALS_MAX + 50
        (others,) = [sample.value for sample in samples if sample.labels[label] == OTHERS]
        assert others == 50
