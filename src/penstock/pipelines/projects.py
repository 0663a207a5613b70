"""A pipeline project: a folder that Spark Declarative Pipelines can run, and where things are in it.

spark-pipeline.yml      what Spark's pipelines want to know
spark.conf              settings that must be there when Spark starts: catalog, tables, metastore
penstock.yml            the source and the columns of each type
transformations/        bronze.py, silver.py, gold.py, and whatever else people add
tables/                 made by runs: a folder for each table
storage/                made by runs: checkpoints
metastore/              made by runs: which tables there are
.penstock/              made by runs: how the last one went, and a lock
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from penstock.errors import InvalidRequest
from penstock.pipelines.declaring import FILE, EventTables, read_declared, read_yaml

SPECS: Final = ("spark-pipeline.yml", "spark-pipeline.yaml")
CONF: Final = "spark.conf"
OWN: Final = ".penstock"
CHECKPOINTS: Final = "_checkpoints"
WAREHOUSE: Final = "spark.sql.warehouse.dir"
METASTORE: Final = "spark.hadoop.javax.jdo.option.ConnectionURL"
_DERBY: Final = "databaseName="


@dataclass(frozen=True)
class Project:
    """What is in a project's files."""

    folder: Path
    spec: Path
    name: str
    storage: str
    conf: Mapping[str, str]
    declared: EventTables

    @property
    def own(self) -> Path:
        """Where we keep what we know of runs."""
        return self.folder / OWN

    @property
    def checkpoints(self) -> Path | None:
        """Where checkpoints are, if that is on this machine."""
        storage = local_path(self.storage)
        return storage / CHECKPOINTS if storage else None

    @property
    def tables(self) -> Path | None:
        """Where tables are, if that is on this machine."""
        return local_path(self.conf.get(WAREHOUSE, ""))

    @property
    def metastore(self) -> Path | None:
        """Where the metastore is, if it is a folder."""
        found = self.conf.get(METASTORE, "").partition(_DERBY)[2].partition(";")[0]
        return Path(found) if found and "\0" not in found else None


def local_path(url: str) -> Path | None:
    """The path of a place on this machine: `file:///…` or a path."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    if parts.scheme not in ("", "file") or not parts.path.startswith("/") or "\0" in unquote(parts.path):
        return None
    return Path(unquote(parts.path))


def read_project(folder: Path) -> Project:
    """Read a project's files. Raises InvalidRequest, which names the file and what is wrong in it."""
    folder = folder.resolve()
    specs = [folder / name for name in SPECS if (folder / name).is_file()]
    if len(specs) != 1:
        what = f"has both {' and '.join(SPECS)}" if specs else f"is no pipeline: there is no {SPECS[0]}"
        raise InvalidRequest(str(folder), what)
    spec = _spec(specs[0])
    if not (folder / FILE).is_file():
        raise InvalidRequest(str(folder), f"is no pipeline of Penstock's: there is no {FILE}")
    return Project(folder, specs[0], spec["name"], spec["storage"], read_conf(folder), read_declared(folder / FILE))


def _spec(path: Path) -> dict[str, Any]:
    """The specification, as far as it can be checked without Spark; Spark checks the rest."""
    spec = read_yaml(path)
    for name in ("name", "storage"):
        if not isinstance(spec.get(name), str):
            raise InvalidRequest(str(path), f"must say {name}")
    return spec


def read_conf(folder: Path) -> dict[str, str]:
    """The settings that Spark is started with: a name and a value in each line."""
    path = folder / CONF
    if not path.is_file():
        raise InvalidRequest(str(path), "is not there: it says where tables and the metastore are")
    conf = {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(str(path), f"cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if (text := line.strip()) and not text.startswith("#"):
            name, _, value = text.partition(" ")
            if not value.strip():
                raise InvalidRequest(str(path), f"has no value in line {number}: {text}")
            conf[name] = value.strip()
    return conf
