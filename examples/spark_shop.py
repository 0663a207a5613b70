"""A shop's history in Spark: sales as a batch query and as a stream. A notebook as a script.

python examples/spark_shop.py
python examples/spark_shop.py --data ./penstock-data

Without --data it fills a store in a temporary folder. With --data it reads the context `shop` of your store, also while
a server runs on it: OrderPlaced events with customer and amount. It needs penstock[spark] and Java 17.
"""

import argparse
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

import penstock
from penstock.spark import VARIANT, events, typed

CONTEXT = "shop"
CUSTOMERS = ("Ada", "Grace", "Linus")
OPENING = datetime(2024, 5, 1, 9, tzinfo=UTC)


def sell(client: penstock.Client, first: int, count: int) -> None:
    """Place orders ten minutes apart, and pay two of three at once."""
    for number in range(first, first + count):
        customer, amount, time = CUSTOMERS[number % 3], 10 + number, OPENING + timedelta(minutes=10 * number)
        happened = [penstock.event("OrderPlaced", {"customer": customer, "amount": amount}, time=time)]
        if number % 3:
            happened.append(penstock.event("OrderPaid", {"amount": amount, "by": "card"}, time=time))
        client.append(CONTEXT, f"order-{number}", happened)


def ask(spark: SparkSession, url: str) -> None:
    """Query sales in batch."""
    history = events(spark, url, context=CONTEXT, filter="order-")
    print("What happened:")
    history.groupBy("type").count().orderBy("type").show()

    # The columns come from the bodies of the events.
    placed = typed(history, "OrderPlaced")
    print("Orders, hour by hour:")
    placed.groupBy(f.window("timestamp", "1 hour").start.alias("hour")).agg(
        f.count("*").alias("orders"), f.sum("amount").alias("amount")
    ).orderBy("hour").show()

    # Bodies of any shape.
    paid = typed(history, "OrderPaid", VARIANT).selectExpr("stream", "data:amount::int AS paid")
    print("Not paid yet:")
    placed.join(paid, "stream", "left_anti").groupBy("customer").agg(f.sum("amount").alias("owes")).orderBy(
        "customer"
    ).show()


class Totals:
    """Sums per batch. Spark may deliver a batch again; it then replaces the first."""

    def __init__(self) -> None:
        self._batches: dict[int, int] = {}

    def take(self, batch: DataFrame, number: int) -> None:
        """Called by Spark for each batch."""
        (total,) = batch.agg(f.coalesce(f.sum("amount"), f.lit(0))).first() or (0,)
        self._batches[number] = total

    @property
    def sold(self) -> int:
        """The sum of all batches."""
        return sum(self._batches.values())


def follow(spark: SparkSession, url: str, checkpoint: Path, totals: Totals) -> None:
    """Process new events as a stream; the checkpoint holds the position."""
    rows = spark.readStream.format("penstock").option("url", url).option("context", CONTEXT).load()
    placed = typed(rows, "OrderPlaced", "customer string, amount bigint")
    query = placed.writeStream.foreachBatch(totals.take).option("checkpointLocation", str(checkpoint))
    query.trigger(availableNow=True).start().awaitTermination()
    print(f"sold for {totals.sold} in all")


def run(spark: SparkSession, url: str, folder: Path, client: penstock.Client | None) -> None:
    """Query in batch, then follow as a stream. With a client, sell more in between."""
    totals = Totals()
    if client is not None:
        sell(client, 0, 12)
    ask(spark, url)
    follow(spark, url, folder / "checkpoint", totals)
    if client is not None:
        sell(client, 12, 6)
        follow(spark, url, folder / "checkpoint", totals)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="the directory that was given to `penstock serve --data`")
    data = parser.parse_args().data
    spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).getOrCreate()
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{data or Path(folder) / 'data'}"
        if data is None:
            with penstock.connect(url) as client:
                run(spark, url, Path(folder), client)
        else:
            run(spark, url, Path(folder), None)
    spark.stop()


if __name__ == "__main__":
    main()
