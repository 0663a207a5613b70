"""The contract suite: every backend runs every test of it, unchanged.

A backend's test is a class and how to open it:

    class TestSqlite(StoreContract):
        def open(self, path, clock):
            return SqliteStore(path, clock=clock)

        def open_reader(self, path, clock):
            return SqliteReader(path, clock=clock)
"""

from tests.store.contract.access import AccessContract
from tests.store.contract.builds import BuildContract
from tests.store.contract.commits import CommitContract
from tests.store.contract.consumers import ConsumerContract
from tests.store.contract.dead_letters import DeadLetterContract
from tests.store.contract.erasures import ErasureContract
from tests.store.contract.iterators import IteratorContract
from tests.store.contract.keeping import KeepingContract
from tests.store.contract.lags import LagContract
from tests.store.contract.logs import LogContract
from tests.store.contract.marks import MarkContract
from tests.store.contract.queues import QueueContract
from tests.store.contract.reads import ReadContract
from tests.store.contract.records import RecordContract
from tests.store.contract.reoffers import ReofferContract
from tests.store.contract.seals import SealContract
from tests.store.contract.search import SearchContract
from tests.store.contract.staging import StagingContract
from tests.store.contract.subscriptions import SubscriptionContract
from tests.store.contract.transactions import TransactionContract
from tests.store.contract.views import ViewContract
from tests.store.contract.watermarks import WatermarkContract

__all__ = ["LookingContract", "ReadingContract", "RememberingContract", "StoreContract"]


class RememberingContract(
    CommitContract, TransactionContract, MarkContract, SubscriptionContract, QueueContract, LogContract
):
    """Operations that go by what a writer remembers from one batch to the next: heads, marks, queues, logs."""


class LookingContract(
    ReofferContract,
    ConsumerContract,
    DeadLetterContract,
    IteratorContract,
    ErasureContract,
    StagingContract,
    BuildContract,
    AccessContract,
    WatermarkContract,
):
    """Operations that look in the database each time."""


class WritingContract(RememberingContract, LookingContract):
    """What becomes of each operation."""


class ReadingContract(
    ReadContract, RecordContract, SearchContract, SealContract, KeepingContract, ViewContract, LagContract
):
    """How what was written is found again, sealed or not: plain appends to begin with, then many reads."""


class StoreContract(WritingContract, ReadingContract):
    """Every promise of `penstock.store.contract`."""
