"""Static files, each under a URL with a digest of its content, so that browsers may keep them for long."""

from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from starlette.responses import Response

from penstock.console.visit import ROOT

FOLDER: Final = Path(__file__).parent / "static"
STATIC: Final = "/static/"
DIGITS: Final = 12
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
FOREVER: Final = "public, max-age=31536000, immutable"


class StaticFile(NamedTuple):
    url: str
    content: bytes
    media: str


@cache
def files() -> dict[str, StaticFile]:
    """All static files by their names."""
    found = {}
    for path in sorted(FOLDER.rglob("*")):
        if (media := TYPES.get(path.suffix)) is not None:
            content, name = path.read_bytes(), path.relative_to(FOLDER).as_posix()
            digest = sha256(content).hexdigest()[:DIGITS]
            found[name] = StaticFile(f"{ROOT}{STATIC}{digest}/{name}", content, media)
    return found


def static(name: str) -> str:
    """The URL of a static file."""
    return files()[name].url


def answer(path: str) -> Response | None:
    """The file of a path, or None."""
    name = path.removeprefix(STATIC).partition("/")[2]
    found = files().get(name)
    if found is None or found.url != ROOT + path:
        return None
    return Response(found.content, 200, {"cache-control": FOREVER}, found.media)
