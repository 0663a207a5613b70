"""SQL in the console: what statements may see and do, how much, for how long, and for how many at once."""

import re
import threading
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Final

import httpx
import pytest

import penstock
from penstock import testing
from penstock.console import app, sql
from penstock.sql import worker
from tests.console.visitor import Guarded, Visitor
from tests.principals import issue, put
from tests.test_server import until

HOSTILE: Final = "<script>alert(1)</script>\u202e"
SLOW: Final = "SELECT count(*) FROM range(1000000) a, range(1000000) b, range(1000000) c"


@pytest.fixture(scope="module")
def stored() -> Iterator[Guarded]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            tokens = {"root": issue(client, "root").token}
        with penstock.connect(server.url, token=tokens["root"]) as root:
            for name, grant in {"reader": "read", "narrow": "read:shop/order-*", "writer": "append"}.items():
                put(root, name, grant)
                tokens[name] = issue(root, name).token
            # Large enough for whole records to be read as columns.
            root.append("shop", "order-1", [penstock.event("Placed", {"total": n}) for n in range(300)])
            root.append("shop", "secret", [penstock.event("Hidden", {"pin": 4711}) for _ in range(300)])
            root.append("other", HOSTILE, [penstock.event(HOSTILE, HOSTILE)])
        yield Guarded(server, tokens)


def run(visitor: Visitor, statement: str, **fields: str) -> httpx.Response:
    return visitor.submit(visitor.page("/sql"), "/sql", statement=statement, **fields)


def rows(answer: httpx.Response) -> list[list[str]]:
    assert answer.status_code == 200, answer.text
    body = answer.text.partition("<tbody>")[2].partition("</tbody>")[0]
    lines = re.findall(r"<tr>(.*?)</tr>", body, re.DOTALL)
    return [
        [unescape(re.sub("<[^>]+>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", one)] for one in lines
    ]


def test_a_statement_has_an_answer_with_exact_numbers(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        assert rows(
            run(visitor, "SELECT count(*), NULL, 170141183460469231731687303715884105727::HUGEINT FROM events")
        )[0][1:] == ["null", str(2**127 - 1)]
        assert rows(
            run(visitor, "SELECT sum((text::JSON->>'$.total')::INT)::INT FROM events WHERE type = 'Placed'")
        ) == [["44850"]]
        hostile = run(visitor, "SELECT stream AS \"<b>\", text FROM events WHERE context = 'other'")
        assert "<script>alert" not in hostile.text
        assert "&lt;b&gt;" in hostile.text
        assert rows(hostile) == [["<script>alert(1)</script>\\u202e"] * 2]
        assert rows(run(visitor, "SELECT 1 WHERE false")) == []


@pytest.mark.parametrize("who", ["reader", "narrow"])
def test_a_statement_sees_what_its_principal_may_read(stored: Guarded, who: str) -> None:
    with stored.visitor(who) as visitor:
        found = rows(run(visitor, "SELECT DISTINCT context, stream FROM events"))
        some = run(visitor, "SELECT count(*) FROM events WHERE stream = 'secret' OR text LIKE '%4711%'")
        count = run(visitor, "SELECT count(*) FROM events WHERE position > 0")
    assert not any(context == "$audit" for context, _ in found)
    if who == "narrow":
        assert found == [["shop", "order-1"]]
        assert rows(some) == [["0"]]
        assert rows(count) == [["300"]]
    else:
        assert len(found) == 3
        assert rows(count) == [["601"]]
        assert rows(some) == [["300"]]


def test_who_may_not_read_has_no_sql(stored: Guarded) -> None:
    with stored.visitor("writer") as visitor:
        assert visitor.get("/sql").status_code == 403
        csrf = visitor.hidden(visitor.page(), "/logout")["csrf"]
        assert visitor.post("/sql", {"csrf": csrf, "statement": "SELECT 1"}).status_code == 403


def test_a_link_fills_in_the_form_and_runs_nothing(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        text = visitor.page("/sql", statement="SELECT 42 AS answer")
        assert "SELECT 42 AS answer</textarea>" in text
        assert "<tbody>" not in text
        assert visitor.post("/sql", {"csrf": "wrong", "statement": "SELECT 1"}).status_code == 403


@pytest.mark.parametrize(
    "statement",
    [
        "COPY (SELECT 1) TO '{place}/written'",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SET enable_external_access = true",
        "SELECT getenv('HOME')",
        "SELEC",
        "",
    ],
)
def test_a_statement_only_reads_the_history(stored: Guarded, tmp_path: Path, statement: str) -> None:
    with stored.visitor() as visitor:
        answer = run(visitor, statement.format(place=tmp_path))
    assert answer.status_code == 422
    assert "It did not work." in answer.text
    assert "--" not in re.sub("<[^>]+>", "", answer.text)
    assert list(tmp_path.iterdir()) == []


def test_a_page_has_the_first_rows_and_says_so(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        many = run(visitor, "SELECT * FROM range(5000)")
        assert len(rows(many)) == worker.ROWS_MAX
        assert "the first 1,000 rows" in many.text
        exact = run(visitor, "SELECT * FROM range(1000)")
        assert "There are more rows" not in exact.text
        wide = run(visitor, f"SELECT {', '.join(f'{n} AS c{n}' for n in range(200))} FROM range(5000)")
        assert len(rows(wide)) == worker.CELLS_MAX // 200
        long = run(visitor, "SELECT repeat('x', 5000)")
        assert rows(long)[0][0].endswith("x… (4,000 more characters)")
        assert run(visitor, "SELECT " + "1," * 40_000 + "1").status_code == 413


def test_an_answer_is_downloaded_as_csv(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        answer = run(visitor, "SELECT 2::HUGEINT ** 1 AS n, 'a,\"b' AS t", **{"as": "csv"})
        assert answer.headers["content-type"] == "text/csv; charset=utf-8"
        assert answer.headers["content-disposition"] == 'attachment; filename="penstock.csv"'
        assert answer.text.splitlines()[1].endswith('"a,""b"')
        many = run(visitor, "SELECT * FROM range(150000)", **{"as": "csv"})
        assert len(many.text.splitlines()) == worker.CSV_ROWS_MAX + 1
        assert "first-100000-rows" in many.headers["content-disposition"]
        assert run(visitor, "SELEC", **{"as": "csv"}).status_code == 422


def test_memory_has_a_limit(stored: Guarded) -> None:
    with stored.visitor() as visitor:
        answer = run(visitor, "SELECT repeat('x', 3000000000)")
        assert answer.status_code == 422
        assert "256 MiB" in answer.text


def test_time_has_a_limit_and_the_statement_stays_in_its_form(stored: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql, "STATEMENT_S_MAX", 0.5)
    with stored.visitor() as visitor:
        answer = run(visitor, SLOW)
        assert answer.status_code == 422
        assert "longer than 0.5 s" in answer.text
        assert f"{SLOW}</textarea>" in answer.text


def test_some_statements_run_at_once_and_one_ends_when_its_browser_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "STATEMENTS_MAX", 1)
    with testing.server() as server, Visitor(server.http) as visitor, Visitor(server.http) as other:
        fields = {**other.hidden(other.page("/sql"), "/sql"), "statement": SLOW}
        leaving = threading.Thread(target=_leave, args=(other, fields))
        leaving.start()
        until(lambda: run(visitor, "SELECT 1").status_code == 503)
        leaving.join()
        until(lambda: run(visitor, "SELECT 1").status_code == 200)


def _leave(visitor: Visitor, fields: dict[str, str]) -> None:
    """Begin a statement, and close the connection while it runs."""
    while True:
        try:
            answer = visitor.http.post("/console/sql", data=fields, headers={"origin": visitor.origin}, timeout=3)
        except httpx.ReadTimeout:
            return
        # Another statement was there first.
        assert answer.status_code == 503
