"""Run the benchmarks: `python -m bench [SECTION …] [--dir DIR] [--quick] [--json FILE] [--docs PAGE]`.

Everything runs on real files with real fsyncs, in one run, so that figures can be compared as ratios. Put --dir on
the disk you want to know about; a memory file system would make every fsync free.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from bench import (
    access,
    appends,
    capacity,
    client,
    connections,
    console,
    curve,
    growth,
    http,
    lake,
    mq,
    mqgate,
    postgres,
    queues,
    reads,
    remits,
    res01,
    seal,
    spark,
    tls,
    zmtp,
)
from bench.report import Report, replace_section

SECTIONS: dict[str, Callable[[Report, Path, float], None]] = {
    "disk": appends.run_disk,
    "appends": appends.run,
    "mixed": appends.run_mixed,
    "reads": reads.run,
    "growth": growth.run,
    "connections": connections.run,
    "seal": seal.run,
    "res01": res01.run,
    "mq": mq.run,
    "mqgate": mqgate.run,
    "zmtp": zmtp.run,
    "curve": curve.run,
    "client": client.run,
    "remits": remits.run,
    "tls": tls.run,
    "access": access.run,
    "http": http.run,
    "console": console.run,
    "spark": spark.run,
    "lake": lake.run,
    "postgres": postgres.run,
    "queues": queues.run,
    "capacity": capacity.run,
}


def main() -> None:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of: {', '.join(SECTIONS)}")
    parser.add_argument("--dir", type=Path, default=Path(), help="where the data goes (default: here)")
    parser.add_argument("--quick", action="store_true", help="a fifth of the time and data, for a first look")
    parser.add_argument("--json", type=Path, help="a file that gets all figures")
    parser.add_argument("--docs", type=Path, help="a page that gets the tables of growth and connections")
    arguments = parser.parse_args()
    unknown = set(arguments.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    data = Path(tempfile.mkdtemp(prefix="bench-data-", dir=arguments.dir))
    report = Report()
    try:
        for name in arguments.sections or SECTIONS:
            report.section(name)
            SECTIONS[name](report, data, 0.2 if arguments.quick else 1.0)
    finally:
        shutil.rmtree(data)
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(report.figures, indent=1), encoding="utf-8")
    for name, table in report.tables.items() if arguments.docs is not None else ():
        replace_section(arguments.docs, name, table)
    report.summary()


if __name__ == "__main__":
    main()
