"""The Spark session of the page's examples is that of `tests.spark`; pipelines run in processes of their own."""

from tests.spark.conftest import pytest_collection_modifyitems, shared_spark, spark

__all__ = ["pytest_collection_modifyitems", "shared_spark", "spark"]
