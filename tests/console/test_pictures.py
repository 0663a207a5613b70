"""The pictures of the docs: all of them can be taken, the page shows each once, and none is blank or too large."""

import re
import struct
from pathlib import Path
from typing import Final

from tests.browser import browser, needs_chromium
from tests.console.pictures import PICTURES, take

DOCS: Final = Path(__file__).parent.parent.parent / "docs"
BYTES_MAX: Final = 150_000
BLANK_BYTES_MAX: Final = 15_000
"""A page without content is a smaller file."""


def size_of(picture: Path) -> tuple[int, int]:
    """Width and height of a PNG file."""
    head = picture.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:])
    return width, height


def test_the_page_shows_the_pictures_that_there_are() -> None:
    shown = re.findall(r"!\[[^\]]+\]\(console/([\w-]+)\.png\)", (DOCS / "console.md").read_text(encoding="utf-8"))
    assert sorted(shown) == sorted(PICTURES) == sorted(path.stem for path in (DOCS / "console").iterdir())
    for name, picture in PICTURES.items():
        path = DOCS / "console" / f"{name}.png"
        assert size_of(path) == picture.size
        assert BLANK_BYTES_MAX < path.stat().st_size < BYTES_MAX, name


@needs_chromium
def test_the_pictures_can_be_taken_anew(tmp_path: Path) -> None:
    with browser() as chromium:
        take(tmp_path, chromium)
    assert {path.stem for path in tmp_path.iterdir()} == set(PICTURES)
    for name, picture in PICTURES.items():
        path = tmp_path / f"{name}.png"
        assert size_of(path) == picture.size
        assert path.stat().st_size > BLANK_BYTES_MAX, name
