"""docs/spark.md: its examples run as one session, in the Spark session that all tests share."""

import contextlib
import io
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from penstock.testing import server
from tests.test_readme import DEFAULT_URL, PRINTED, SPARK, blocks


@pytest.mark.timeout(300)
@pytest.mark.long
def test_the_examples_run_and_print_what_the_page_says(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    names: dict[str, Any] = {"data_dir": str(tmp_path / "data")}
    printed, code = io.StringIO(), blocks(SPARK)
    assert len(code) > 7
    with server(tmp_path / "data") as served, contextlib.redirect_stdout(printed):
        for block in code:
            exec(compile(block.replace(DEFAULT_URL, served.url), str(SPARK), "exec"), names)
        names["client"].close()
    assert printed.getvalue() == "".join(PRINTED.findall(SPARK.read_text(encoding="utf-8")))
