"""A driver that reads and writes with a token, and prints all that Spark shows of it.

Run as `python -m tests.spark.token_driver URL FOLDER TOKEN_FILE`. The variable `PENSTOCK_TOKEN` has the token too.
"""

import sys
import traceback
import urllib.request
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from tests.spark.support import JAVA, QUICK

ROW = "context string, stream string, type string, text string"


def main(url: str, folder: Path, token: str) -> None:
    logs = folder / "event-log"
    logs.mkdir()
    builder = SparkSession.builder.master("local[2]").appName("tokens")
    for name, value in {
        **QUICK,
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.driver.extraJavaOptions": JAVA,
        "spark.ui.port": "0",
        "spark.ui.showConsoleProgress": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": logs.as_uri(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        # Everything, as the worst log there can be.
        "spark.log.level": "INFO",
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    explicit = {"url": url, "token": token, "context": "shop"}
    for options in (explicit, {"url": url, "context": "shop"}):
        rows = spark.read.format("penstock").options(**options).load()
        show(rows)
        print("rows", rows.count())
        new = spark.createDataFrame([("shop", "s", "T", "{}")], ROW)
        named = {name: value for name, value in options.items() if name != "context"}
        new.write.format("penstock").options(**named).mode("append").save()
    stream = spark.readStream.format("penstock").options(**explicit).load()
    changed = stream.selectExpr("'copy' AS context", "stream", "type", "text")
    query = (
        changed.writeStream.format("penstock")
        .options(url=url, token=token, checkpointLocation=str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    print("progress", query.lastProgress, query.status, query)
    query.explain(True)
    fail(lambda: spark.read.format("penstock").options(**explicit, nonsense="1").load())
    fail(lambda: spark.read.format("penstock").options(url=url, token=f"{token}\n").load())
    fail(lambda: spark.read.format("penstock").options(url=url, token=f"x{token}").load().count())
    fail(lambda: spark.read.format("penstock").options(url=f"penstock://{token}@127.0.0.1:1").load().count())
    ui = spark.sparkContext.uiWebUrl
    assert ui
    for path in (
        "/environment/",
        "/jobs/",
        "/stages/",
        "/SQL/",
        *(f"/SQL/execution/?id={number}" for number in range(6)),
        f"/api/v1/applications/{spark.sparkContext.applicationId}/sql?details=true&length=100",
        f"/api/v1/applications/{spark.sparkContext.applicationId}/environment",
    ):
        with urllib.request.urlopen(ui + path) as page:
            print("page", path, page.read().decode())
    spark.stop()
    print("done")


def show(rows: DataFrame) -> None:
    for mode in ("extended", "formatted", "cost", "codegen"):
        rows.explain(mode=mode)
    print(rows, repr(rows), rows.schema)


def fail(work: object) -> None:
    try:
        work()  # type: ignore[operator]
    except Exception:  # noqa: BLE001 - every error is printed
        print("failed", traceback.format_exc())
    else:
        raise AssertionError("it did not fail")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]).read_text(encoding="utf-8").strip())
