"""Named queries: SQL lives in `.sql` files, each query under a line `-- name: …`. Migrations are a file each."""

import re
from importlib.resources import files
from typing import Final

_MARK: Final = "-- name: "
_MIGRATION: Final = re.compile(r"(\d{4})_\w+\.sql")


def load_queries(package: str, file: str) -> dict[str, str]:
    """The queries of a file by their names."""
    text = files(package).joinpath(file).read_text(encoding="utf-8")
    queries: dict[str, str] = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        if name.strip() in queries:
            raise ValueError(f"{file} has two queries named {name.strip()}")
        queries[name.strip()] = body.strip().rstrip(";")
    return queries


def load_migrations(package: str) -> list[str]:
    """The text of every migration, in order; the first makes version 1 of what is empty."""
    folder = files(package).joinpath("migrations")
    named = sorted((entry.name, entry) for entry in folder.iterdir() if _MIGRATION.fullmatch(entry.name))
    return [entry.read_text(encoding="utf-8") for _, entry in named]
