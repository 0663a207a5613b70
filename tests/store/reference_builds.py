"""Output that was computed elsewhere, as the reference says it: see `tests.store.reference`."""

from dataclasses import replace

from penstock.errors import InvalidRequest, IteratorNotFound
from penstock.model import Installed
from penstock.store import contract
from penstock.store.contract import IteratorState
from penstock.store.outputs import chunk_in, iterator_of_job, output_job, unpack_items
from tests.store.reference_staging import StagingReference


class BuildReference(StagingReference):
    """Staging and installing output."""

    @property
    def iterators(self) -> dict[str, IteratorState]:
        """All iterators by name."""
        raise NotImplementedError

    @property
    def outputs(self) -> dict[int, list[bytes]]:
        """What they gave, by number."""
        raise NotImplementedError

    def _numbered(self, number: int) -> IteratorState:
        found = next((one for one in self.iterators.values() if one.id == number), None)
        if found is None:
            raise IteratorNotFound(str(number))
        return found

    def _gone(self, number: int) -> None:
        """An iterator is gone, with what it gave and what was staged for it."""
        del self.outputs[number]
        self._drop_stages(list(self._of_job(output_job(number))))

    def _do_stage(self, op: contract.Stage) -> bool:
        owner = iterator_of_job(op.job)
        if owner is not None:
            self._numbered(owner)
        return super()._do_stage(op)

    def _do_install(self, op: contract.Install) -> Installed:
        found, job = self._numbered(op.iterator), output_job(op.iterator)
        read = found.source - found.base
        if not found.indexed or op.source > read or op.items > found.outputs:
            raise InvalidRequest("build", "began elsewhere")
        if op.messages <= read:
            self._drop_stages(list(self._of_job(job)))
            return Installed(found.outputs, 0, read)
        won = self._won(job, op.winners)
        units = [unit for _, one in sorted(won.items()) for unit in one.units]
        items = [item for unit in units for item in unpack_items(chunk_in(unit.data))]
        if len(items) > op.messages - op.source or op.items + len(items) < found.outputs:
            raise InvalidRequest("winners", "have other items than there can be")
        added = items[found.outputs - op.items :]
        self.outputs[found.id] += added
        total, state = found.outputs + len(added), op.state if added else found.state
        moved = replace(found, source=found.base + op.messages, outputs=total, state=state)
        self.iterators[found.name] = moved
        self._drop_stages(list(self._of_job(job)))
        return Installed(total, len(added), op.messages)
