"""A driver as people write one, on the cluster: `python -m tests.cluster.source_driver PLAN` copies histories.

Tasks of a copy say that they have begun, and wait in the middle of their rows until they may go on.
"""

import json
import os
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import SparkSession

COPIED: Final = "copied"
"""The context of what is written."""


def held(batches: Iterator[pa.RecordBatch], folder: str) -> Iterator[pa.RecordBatch]:
    """The same rows. After the first of them, wait for the file `go`."""
    context = TaskContext.get()
    assert context is not None
    for batch in batches:
        yield batch
        (Path(folder) / f"begun-{context.partitionId()}-{context.attemptNumber()}").touch()
        while not (Path(folder) / "go").exists():
            time.sleep(0.02)


def copy(spark: SparkSession, url: str, folder: str) -> dict[str, Any]:
    """Read a history and write it to another context of the same; what was read."""
    events = spark.read.format("penstock").option("url", url).option("partitionBytes", "1").load()
    rows = events.drop("sequence", "recorded_at", "context", "event_id").selectExpr(f"'{COPIED}' AS context", "*")
    kept = rows.mapInArrow(partial(held, folder=folder), rows.schema)
    kept.write.format("penstock").mode("append").option("url", url).option("orderBy", "position").save()
    found = events.where("context = 'shop'").selectExpr("count(*)", "count(DISTINCT event_id)", "sum(position)").first()
    assert found is not None
    return {"parts": events.rdd.getNumPartitions(), "read": list(found)}


def main(path: str) -> None:
    """Copy what the plan says, one history after the other, and print what was read."""
    plan = json.loads(Path(path).read_text())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(plan["master"]).appName("copying")
    for key, value in plan["conf"].items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for url, folder in plan["copies"]:
        print(json.dumps(copy(spark, url, folder)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
