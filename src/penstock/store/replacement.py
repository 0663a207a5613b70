"""Replacing a store, or reading one that no other process changes meanwhile."""

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

from penstock.store.contract import StoreIdentity

if TYPE_CHECKING:
    from penstock.store.tables.imports import StoreImport
    from penstock.store.tables.store import Store

Row = tuple[Any, ...]
SOURCE: Final = "importing"
"""The key in `meta` of the note about the source, until the import is finished."""
NO_NOTE: Final = "yes"
"""Stands there until there is a note, in a store that has no other mark of an import."""


class Replaced(NamedTuple):
    """The parts of the old store that the new one inherits."""

    identity: StoreIdentity
    timelines: list[Row]
    erasures: list[Row]
    access: dict[str, list[Row]]
    """The tables of ACCESS_TABLES."""


class StoreReplacement(ABC):
    """A place whose store is being replaced, or that gets one. No server has it open inside the context.

    The new store is filled and checked in another place, and `swap` replaces the old one atomically.
    """

    shown: str
    """The place, as it may be shown."""
    advice: str = "to put another in its place, say --replace"
    """Follows the refusal of a place with a store."""
    replaced: Replaced | None = None
    """From the old store, if it can be read."""
    is_damaged: bool = False
    """Whether there is an old store that cannot be read."""

    @abstractmethod
    def look(self) -> None:
        """Refuse an unusable place; changes nothing."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def filling(self) -> "StoreImport":
        """The new store, to fill."""

    @abstractmethod
    def built(self) -> "Store":
        """The filled new store, to read."""

    @abstractmethod
    def swap(self) -> None:
        """Move the new store into its place."""

    @abstractmethod
    def __exit__(self, *_error: object) -> None: ...


class StoreHold(ABC):
    """Keeps all other processes from changing a store, inside the context."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def check(self) -> None:
        """Raise StorageFailure if another process may have changed the store."""

    @abstractmethod
    def __exit__(self, *_error: object) -> None: ...
