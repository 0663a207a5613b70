"""Named queries: SQL lives in `.sql` files, each query under a line `-- name: …`."""

from importlib.resources import files
from typing import Final

_MARK: Final = "-- name: "


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
