"""Events to and from files: JSON lines, CSV, Parquet, CloudEvents. docs/import-export.md says what is in them.

Nothing is imported before it is used: the command line wants the names of the formats, and no store, to show its help.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.interchange.exporting import Exported, Selection, export_events
    from penstock.interchange.files import BrokenFile, FileRefused, Format, format_of
    from penstock.interchange.importing import Imported, import_file, survey
    from penstock.interchange.rows import Defaults

__all__ = [
    "BrokenFile",
    "Defaults",
    "Exported",
    "FileRefused",
    "Format",
    "Imported",
    "Selection",
    "export_events",
    "format_of",
    "import_file",
    "survey",
]

_MODULES = {
    **dict.fromkeys(("BrokenFile", "FileRefused", "Format", "format_of"), "files"),
    **dict.fromkeys(("Exported", "Selection", "export_events"), "exporting"),
    **dict.fromkeys(("Imported", "import_file", "survey"), "importing"),
    "Defaults": "rows",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'penstock.interchange' has no attribute {name!r}")
    return getattr(import_module(f"penstock.interchange.{_MODULES[name]}"), name)
