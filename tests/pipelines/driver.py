"""Runs rounds of a pipeline in one Spark, as it is told on standard input: a line of JSON for each, and one back."""

import json
import sys
from pathlib import Path

from pyspark import SparkContext

from penstock.errors import PenstockError
from penstock.pipelines.projects import read_project
from penstock.pipelines.runs import SERVICE, Runner, open_runner
from tests.spark import support as quick

MASTER = "local[2,4]"
QUICK = {
    **quick.QUICK,
    # No metastore outlives its test. Projects say 8 partitions, and what is given goes before that.
    "spark.driver.extraJavaOptions": f"{quick.JAVA} -Dderby.system.durability=test",
}


def sessions() -> int:
    """How many sessions the server has, with all that was ever defined in them."""
    service = getattr(getattr(SparkContext._jvm, SERVICE), "MODULE$")
    return int(service.sessionManager().listActiveSessions().size())


def done(runner: Runner, order: dict[str, list[str]]) -> dict[str, object]:
    if "sessions" in order:
        return {"sessions": sessions()}
    try:
        outcome = runner.round(order.get("full_refresh", []), dry="check" in order)
    except PenstockError as error:
        return {"refused": str(error)}
    return {"states": outcome.states, "failures": outcome.failures}


def main(folder: str) -> None:
    with open_runner(read_project(Path(folder)), MASTER, QUICK, "test") as runner:
        print(json.dumps({"ready": True}), flush=True)
        for line in sys.stdin:
            print(json.dumps(done(runner, json.loads(line))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
