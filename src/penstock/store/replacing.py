"""Having a store's place to oneself: to put a new store there, or to read one that nobody changes meanwhile."""

from abc import ABC, abstractmethod
from types import TracebackType
from typing import Any, NamedTuple, Self

from penstock.store.contract import Store, StoreIdentity, StoreImport

Row = tuple[Any, ...]


class Replaced(NamedTuple):
    """What of a store outlives it: its identity, its timelines and its ledger of erasures."""

    identity: StoreIdentity
    timelines: list[Row]
    erasures: list[Row]


class StoreReplacement(ABC):
    """A place of which the store is being replaced, or that gets one. Nobody serves it inside the context.

    The new store is filled and checked out of everybody's sight, and is put in its place by `swap`, at one stroke.
    """

    shown: str
    """The place, as it may be shown."""
    advice: str = "to put another in its place, say --replace"
    """What is said where there is a store that is not to be replaced."""
    replaced: Replaced | None = None
    """What is known of the store that is there."""
    is_damaged: bool = False
    """Whether there is one of which that cannot be known."""

    @abstractmethod
    def look(self) -> None:
        """Refuse a place that cannot be used; changes nothing."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def filling(self) -> StoreImport:
        """The new store, to be filled."""

    @abstractmethod
    def built(self) -> Store:
        """The new store, to be read once it is filled."""

    @abstractmethod
    def swap(self) -> None:
        """Put the new store in its place."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class StoreHold(ABC):
    """Keeps everybody from changing a store, inside the context."""

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def check(self) -> None:
        """Raises StorageFailure if somebody may have changed it after all."""

    @abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
