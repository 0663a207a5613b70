"""What a project's files define, as far as it is known without Spark."""

from pathlib import Path

import pytest

from penstock.errors import InvalidRequest
from penstock.pipelines.runs import Definitions, in_sql, naming_file


def test_a_file_in_sql_that_is_broken_is_named() -> None:
    file = Path("transformations/spent.sql")
    spark_says = "[PARSE_SYNTAX_ERROR] Syntax error at or near 'CRATE'. SQLSTATE: 42601 (line 1, pos 0)\n\n== SQL =="
    with (
        pytest.raises(InvalidRequest, match=r"^transformations/spent\.sql: Syntax error at or near 'CRATE'\."),
        naming_file(file),
    ):
        raise ValueError(spark_says)
    with (
        pytest.raises(InvalidRequest, match=r"^transformations/spent\.sql: table spent is defined twice$"),
        naming_file(file),
    ):
        raise InvalidRequest("table spent", "is defined twice")


def test_what_a_file_in_sql_defines_is_known_but_for_what_is_in_comments() -> None:
    text = """
    -- CREATE STREAMING TABLE never AS SELECT 1
    /* CREATE MATERIALIZED VIEW
       nor_this AS SELECT '*/' */
    CREATE OR REFRESH STREAMING TABLE a.`odd name` AS SELECT '-- ' || "/*" AS x FROM STREAM b;
    create materialized view if not exists spent as select 1 -- CREATE MATERIALIZED VIEW other
    """
    assert in_sql(text) == [("odd name", "STREAMING TABLE"), ("spent", "materialized view")]


def test_a_table_takes_one_flow_and_a_sink_several() -> None:
    found = Definitions(None, "graph", "storage")
    for name, kind in (("orders", "StreamingTable"), ("history", "Sink"), ("seen", "TemporaryView")):
        found.add(name, kind)
    for target in ("orders", "history", "history", "seen"):
        found.add_flow(f"flow {len(found.flows)}", target)
    with pytest.raises(InvalidRequest, match="table orders has two flows, and would lose rows of one"):
        found.add_flow("again", "orders")
    assert list(found.flows.values()) == ["orders", "history", "history"]
