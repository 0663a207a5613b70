"""One write of a recorder: made of parts, each of which says what it appends, and where it takes its streams to be.

A part may take something for granted that it has seen a while ago. If the store then finds a stream elsewhere, nothing
was written; the parts look again, and if something has changed under them, it is tried anew.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from eventsourcing.persistence import IntegrityError, OperationalError

from penstock.integrations.eventsourcing.datastore import PenstockDatastore
from penstock.model import Append, Appended

ATTEMPTS_MAX: Final = 100
"""Each attempt that fails means that somebody else's write has succeeded."""


class Part(ABC):
    """What is to be appended, and what it rests on."""

    @abstractmethod
    def appends(self) -> list[Append]:
        """The commits of this part, as far as is known where they belong."""

    @abstractmethod
    def look_again(self) -> bool:
        """Look where the streams really are; whether that is elsewhere. Raises IntegrityError if nothing can help."""

    @abstractmethod
    def written(self) -> None:
        """It was written: what was taken for granted was right."""


def write(datastore: PenstockDatastore, parts: Sequence[Part]) -> list[Appended]:
    """Write all parts or none; what came of their commits. Raises IntegrityError if something is there already."""
    for _ in range(ATTEMPTS_MAX):
        appends = [append for part in parts for append in part.appends()]
        try:
            appended = datastore.write(appends) if appends else []
        except IntegrityError:
            if not any([part.look_again() for part in parts]):  # noqa: C419 - all of them look
                raise
        else:
            for part in parts:
                part.written()
            return appended
    raise OperationalError(f"the streams have changed under each of {ATTEMPTS_MAX} attempts; nothing was written")
