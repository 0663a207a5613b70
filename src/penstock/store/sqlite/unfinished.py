"""Stores that are not whole yet: how they are marked, and that nobody opens them.

While a store is being filled its file has another application id in its header, which changes in the same transaction
as the last of its contents come in. A restore fills a store in the folder `restoring` inside the directory, and then
puts it in its place: as long as there is only that folder, a server must not begin an empty store beside it.
"""

from pathlib import Path
from typing import Final

from penstock.errors import StoreUnfinished

IMPORTING_ID: Final = 0x50454E49
"""PENI, in the file's header, in the place of PENS."""
RESTORING: Final = "restoring"
"""Where a restore builds, inside the store's directory."""


def refuse_unfinished(directory: Path, application: int, version: int) -> None:
    """Refuse a store that is not whole; known by its file's application id and schema version, 0 for an empty file."""
    if application == IMPORTING_ID or (version == 0 and (directory / RESTORING).exists()):
        raise StoreUnfinished(str(directory))
