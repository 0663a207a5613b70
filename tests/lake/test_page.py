"""docs/lake.md: its recipes run, in the Spark session that all tests share, and say what they should."""

import contextlib
import io
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import penstock
from tests.lake.support import archive
from tests.test_readme import LAKE, PRINTED, blocks


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_recipes_run_and_agree(spark: SparkSession, tmp_path: Path) -> None:
    data, lake = tmp_path / "data", tmp_path / "lake"
    with penstock.connect(f"sqlite:///{data}") as client:
        for number in range(1, 7):
            client.append("shop", f"order-{number}", [penstock.event("OrderPlaced", {"amount": 10 * number})])
    archive(f"sqlite:///{data}", lake)
    names: dict[str, Any] = {"lake": lake, "data_dir": str(data)}
    printed, code = io.StringIO(), blocks(LAKE)
    with contextlib.redirect_stdout(printed):
        for block in code:
            exec(compile(block, str(LAKE), "exec"), names)
    said = printed.getvalue()
    assert said.splitlines()[:4] == ["[('shop', 6)]", "6", "210", "210.0"]
    assert said.endswith("".join(PRINTED.findall(LAKE.read_text(encoding="utf-8"))))
