"""Which bodies fit columns, and what is said of those that do not: without Spark."""

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidRequest
from penstock.pipelines.inference import infer
from penstock.spark.body_schema import body_check, schema_of

COLUMNS = """customer STRING NOT NULL, amount BIGINT, small TINYINT, price DECIMAL(5,2), exact DECIMAL(38),
    share DOUBLE, gift BOOLEAN, day DATE, at TIMESTAMP, any VARIANT, `with``tick` INT COMMENT 'odd, but a name',
    lines ARRAY<STRUCT<sku: STRING NOT NULL, count: INT>>, tags MAP<STRING, STRING>, money DECIMAL(18,2), part FLOAT"""
CHECK = body_check(schema_of(COLUMNS))


@pytest.mark.parametrize(
    "body",
    [
        '{"customer": "Ada"}',
        '{"customer": "", "amount": -9223372036854775808, "unknown": [1, {}]}',
        '{"customer": "Ada", "amount": null, "small": 127, "price": 999.99, "share": 1, "gift": false}',
        '{"customer": "Ada", "day": "2024-05-01", "at": "2024-05-01T12:00:00Z", "any": [1, "x"]}',
        '{"customer": "Ada", "lines": [{"sku": "a", "count": 1}, null, {"sku": "b"}], "tags": {"x": "y", "z": null}}',
        ' {"customer": "Ada", "with`tick": 3}\n',
        '{"customer": "Ada", "price": 0.0, "exact": 99999999999999999999999999999999999999}',
        '{"customer": "Ada", "money": 9999999999999999.99, "share": 1.7e308, "part": -3.4e38}',
    ],
)
def test_a_body_fits(body: str) -> None:
    assert CHECK(body) is None


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (None, "the body is no text"),
        ("", "the body is no JSON: expecting value: line 1 column 1 (char 0)"),
        ('{"customer": "Ada"} x', "the body is no JSON: extra data: line 1 column 21 (char 20)"),
        ('{"customer": NaN}', "the body is no JSON: NaN is no number"),
        ("[" * 100_000, "the body is nested too deeply"),
        ("7", "the body is a number, not an object"),
        ("null", "the body is null, not an object"),
        ("{}", "customer is missing"),
        ('{"customer": null}', "customer is null"),
        ('{"customer": 5}', "customer is 5, not STRING"),
        (
            '{"customer": {"name": "' + "x" * 50 + '"}}',
            'customer is {"name": "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxx…, not STRING',
        ),
        ('{"customer": "A", "amount": "1"}', 'amount is "1", not BIGINT'),
        ('{"customer": "A", "amount": 1.0}', "amount is 1.0, not BIGINT"),
        ('{"customer": "A", "amount": true}', "amount is true, not BIGINT"),
        ('{"customer": "A", "amount": 9223372036854775808}', "amount is 9223372036854775808, not BIGINT"),
        ('{"customer": "A", "small": 128}', "small is 128, not TINYINT"),
        ('{"customer": "A", "price": 1.234}', "price is 1.234, not DECIMAL(5,2)"),
        ('{"customer": "A", "price": 1000}', "price is 1000, not DECIMAL(5,2)"),
        ('{"customer": "A", "share": "1"}', 'share is "1", not DOUBLE'),
        ('{"customer": "A", "gift": 0}', "gift is 0, not BOOLEAN"),
        ('{"customer": "A", "day": "May"}', 'day is "May", not DATE'),
        ('{"customer": "A", "at": 17}', "at is 17, not TIMESTAMP"),
        ('{"customer": "A", "lines": {}}', "lines is {}, not an array"),
        ('{"customer": "A", "lines": [{"sku": "a"}, {}]}', "lines[1].sku is missing"),
        ('{"customer": "A", "lines": [{"sku": "a", "count": "2"}]}', 'lines[0].count is "2", not INT'),
        ('{"customer": "A", "tags": {"x": 1}}', "tags.x is 1, not STRING"),
        ('{"customer": "A", "money": 99999999999999999.99}', "money is 99999999999999999.99, not DECIMAL(18,2)"),
        ('{"customer": "A", "part": 1e300}', "part is 1E+300, not FLOAT"),
        ('{"customer": "A", "share": 1e400}', "share is 1E+400, not DOUBLE"),
        ('{"customer": "A", "share": 1' + "0" * 400 + "}", f"share is 1{'0' * 39}…, not DOUBLE"),
        ('{"customer": [1.5]}', "customer is [1.5], not STRING"),
        ('{"a": 1e99999999999999999999}', "the body has a number that is too large for anything"),
        (r'{"customer": "A", "amount": "\ud800"}', r'amount is "\ud800", not BIGINT'),
        (r'{"customer": "A", "tags": {"\udfff": 1}}', r"tags.\udfff is 1, not STRING"),
    ],
)
def test_a_body_does_not_fit_for_a_reason(body: str | None, reason: str) -> None:
    assert CHECK(body) == reason


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ("a", "a has the type nothing"),
        ("a BIGNT", "a has the type BIGNT, which is unknown"),
        ("a BINARY", "a has the type BINARY"),
        ("a INT b INT", "'b' stands where a comma or the end should be"),
        ("a INT, A STRING", "a is there twice"),
        ("a INT,", "a name is missing at the end"),
        ("a INT NOT", "NULL is missing after NOT"),
        ("a ARRAY<INT", "> is missing in ARRAY"),
        ("a DECIMAL(50)", "there is no DECIMAL(50,0)"),
        ("a INT; b INT", "'; b INT' is no part of a column"),
    ],
)
def test_columns_that_cannot_be_read_are_refused(columns: str, reason: str) -> None:
    with pytest.raises(InvalidRequest, match="columns cannot be read: ") as caught:
        schema_of(columns)
    assert reason in str(caught.value)


def test_keys_of_maps_are_strings() -> None:
    with pytest.raises(InvalidRequest, match="keys of maps must be STRING"):
        body_check(schema_of("a MAP<INT, STRING>"))


def test_columns_are_found_in_bodies() -> None:
    bodies: list[Any] = [
        {"id": 1, "name": "a", "lines": [{"n": 1}, {"n": 2.5}], "when": None, "odd name": True, "Id": 3, "empty": {}},
        {"id": 2, "name": "b", "lines": [], "odd name": False, "map": 1, "empty": {}},
        {"id": "x", "name": "c", "lines": [], "odd name": False, "empty": {}},
    ]
    found = infer([*map(json.dumps, bodies), "garbage", None, "[]"])
    assert found.columns.splitlines() == [
        "id BIGINT NOT NULL,",
        "name STRING NOT NULL,",
        "lines ARRAY<STRUCT<n: DOUBLE>> NOT NULL,",
        "when STRING,",
        "`odd name` BOOLEAN NOT NULL,",
        "empty MAP<STRING, STRING> NOT NULL,",
        "`map` BIGINT",
    ]
    assert (found.objects, found.disputed) == (3, ("id",))


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**36), 10**36)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=5), values, max_size=5))
def test_a_body_fits_the_columns_that_were_found_in_it(body: dict[str, Any]) -> None:
    text = json.dumps(body)
    found = infer([text])
    assert found.objects == 1
    assert len(schema_of(found.columns)["fields"]) <= len(body)
    if not found.disputed and "ARRAY" not in found.columns:
        assert body_check(schema_of(found.columns))(text) is None


halves = st.text(st.characters(categories=["Cs", "L"]), max_size=5)
misfits = st.fixed_dictionaries(
    {"customer": halves},
    optional={
        "amount": halves,
        "gift": st.dictionaries(halves, halves),
        "tags": st.dictionaries(halves, st.booleans()),
    },
)


@given(st.text() | values.map(json.dumps) | misfits.map(json.dumps))
def test_whatever_a_body_is_the_check_ends_with_a_reason_that_can_be_stored_or_none(text: str) -> None:
    assert pa.array([CHECK(text)], pa.string()).to_pylist() == [CHECK(text)]
