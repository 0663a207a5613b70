"""The worked notebook runs as it stands, in the environment that `make` sets up, though it is not activated."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "spark_shop.py"
PATIENCE_S = 280

SAID = """\
What happened:
+-----------+-----+
|       type|count|
+-----------+-----+
|  OrderPaid|    8|
|OrderPlaced|   12|
+-----------+-----+

Orders, hour by hour:
+-------------------+------+------+
|               hour|orders|amount|
+-------------------+------+------+
|2024-05-01 09:00:00|     6|    75|
|2024-05-01 10:00:00|     6|   111|
+-------------------+------+------+

Not paid yet:
+--------+----+
|customer|owes|
+--------+----+
|     Ada|  58|
+--------+----+

sold for 186 in all
sold for 333 in all
"""


def bare_environment() -> dict[str, str]:
    """Ours, without what would tell Spark which Python to run."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "SPARK", "PENSTOCK"))}
    folder = str(Path(sys.executable).parent)
    return {**ours, "PATH": os.pathsep.join(part for part in ours["PATH"].split(os.pathsep) if part != folder)}


@pytest.mark.timeout(300)
def test_the_notebook_runs_as_it_stands(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE)]
    done = subprocess.run(
        command, cwd=tmp_path, env=bare_environment(), capture_output=True, text=True, timeout=PATIENCE_S
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == SAID
