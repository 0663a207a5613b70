"""Any request that a client can ask over Res01, and any reply that the engine can give it."""

from collections.abc import Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from penstock import model
from penstock.model import TICKS_MAX, Event, NewEvent, Reply, Request, stamp_of
from tests.wire.sample_parts import ByRequest

texts = st.text(st.characters(codec="utf-8"), max_size=12)
names = texts.filter(bool)
numbers = st.integers(-(1 << 63), (1 << 63) - 1)
counts = st.integers(0, 1 << 40)
waits = st.integers(0, 1 << 31)
ticks = st.integers(0, TICKS_MAX)
guids = st.binary(min_size=16, max_size=16)
stamps = st.builds(stamp_of, ticks, st.integers(0, 3))
optional_numbers = st.none() | numbers
optional_names = st.none() | names
bodies = st.binary(max_size=30)
states = st.none() | st.binary(min_size=1, max_size=30)
flags = st.booleans()

types = names.filter(lambda name: "\0" not in name)
new_events = st.builds(NewEvent, guids, stamps, types, optional_names, bodies)
events = st.builds(Event, counts, texts, texts, counts, guids, stamps, texts, optional_names, bodies, ticks, guids)
event_lists = st.lists(events, max_size=15)
marks = st.none() | st.builds(model.ProducerMark, names, numbers)


def tuples(each: SearchStrategy[Any], least: int = 0) -> SearchStrategy[tuple[Any, ...]]:
    return st.lists(each, min_size=least, max_size=4).map(tuple)


words = st.text(st.characters(codec="ascii", categories=("L", "N", "P")), min_size=1, max_size=12)
grants = tuples(words)
runs = tuples(st.builds(model.Run, numbers, numbers))
limits = st.builds(model.Limits, *[optional_numbers] * 5)
commits = st.builds(model.Append, texts, texts, tuples(new_events, 1), numbers)

REQUESTS: Final[dict[type[Request], SearchStrategy[Any]]] = ByRequest(
    {
        model.Append: st.builds(
            model.Append, texts, texts, st.lists(new_events, min_size=1, max_size=15).map(tuple), numbers, marks
        ),
        model.Transact: st.builds(
            model.Transact,
            tuples(commits),
            tuples(st.builds(model.QueueReceipt, texts, texts, texts, numbers, numbers)),
            tuples(st.builds(model.SubscriptionReceipt, numbers, ticks)),
            marks,
        ),
        model.ReadStream: st.builds(
            *(model.ReadStream, texts, texts, numbers, optional_numbers, optional_numbers, st.booleans()),
            st.none() | tuples(texts, 1),
        ),
        model.ReadEvent: st.builds(model.ReadEvent, texts, texts, numbers),
        model.ReadAll: st.builds(
            model.ReadAll, numbers, optional_names, texts, st.none() | tuples(texts, 1), optional_numbers, waits
        ),
        model.ReadRecords: st.builds(model.ReadRecords, numbers, optional_names, texts, waits),
        model.FindPosition: st.builds(model.FindPosition, texts, texts, ticks),
        model.RegisterSubscriptions: st.builds(
            model.RegisterSubscriptions,
            texts,
            tuples(st.builds(model.SubscriptionStart, optional_names, texts, ticks, texts)),
        ),
        model.FetchSubscription: st.builds(model.FetchSubscription, numbers, numbers, waits),
        model.ProgressSubscription: st.builds(model.ProgressSubscription, numbers, ticks),
        model.DeleteSubscription: st.builds(model.DeleteSubscription, numbers),
        model.SetSubscription: st.builds(model.SetSubscription, texts, optional_names, texts, ticks, texts),
        model.ListSubscriptions: st.builds(model.ListSubscriptions, numbers, optional_numbers),
        model.SubscribeQueue: st.builds(
            model.SubscribeQueue,
            *(texts, texts, texts, texts, ticks, numbers, numbers, waits),
            *(optional_names, optional_names, optional_names, optional_numbers),
            st.just(True),
        ),
        model.AcknowledgeQueue: st.builds(
            model.AcknowledgeQueue, optional_names, texts, texts, numbers, optional_numbers, numbers, numbers, waits
        ),
        model.ReleaseQueue: st.builds(
            model.ReleaseQueue, optional_names, texts, texts, numbers, numbers, st.booleans()
        ),
        model.ResetQueue: st.builds(model.ResetQueue, optional_names, texts, ticks, optional_numbers),
        model.SetDeadLetterRule: st.builds(model.SetDeadLetterRule, optional_names, texts, optional_numbers),
        model.ListDeadLetters: st.builds(model.ListDeadLetters, optional_names, texts, numbers, optional_numbers),
        model.PutBack: st.builds(model.PutBack, optional_names, texts, numbers),
        model.SettleQueue: st.builds(
            model.SettleQueue,
            *(optional_names, texts, texts, runs, st.sampled_from(model.Rest), optional_numbers, texts),
            tuples(st.builds(model.Retried, numbers, optional_numbers, texts)),
            tuples(st.builds(model.Buried, numbers, texts)),
        ),
        model.ExtendQueue: st.builds(model.ExtendQueue, optional_names, texts, texts, runs, numbers),
        model.PauseQueue: st.builds(model.PauseQueue, optional_names, texts, flags),
        model.RenameQueue: st.builds(model.RenameQueue, optional_names, texts, texts),
        model.DeleteQueue: st.builds(model.DeleteQueue, optional_names, texts),
        model.SetRetryPolicy: st.builds(model.SetRetryPolicy, optional_names, texts, texts),
        model.SetQueueFilter: st.builds(model.SetQueueFilter, optional_names, texts, texts, texts),
        model.PreviewQueue: st.builds(
            model.PreviewQueue,
            *(optional_names, texts, optional_names, optional_names, st.none() | ticks, optional_numbers),
        ),
        model.ListLetters: st.builds(model.ListLetters, optional_names, texts, numbers, optional_numbers),
        model.PutBackLetters: st.builds(model.PutBackLetters, optional_names, texts, tuples(numbers), flags),
        model.ReplayQueue: st.builds(
            model.ReplayQueue,
            *(optional_names, texts, numbers, numbers),
            st.none() | st.builds(model.ProducerMark, names, numbers),
        ),
        model.ListQueues: st.builds(model.ListQueues, numbers, optional_numbers),
        model.ListContexts: st.builds(model.ListContexts, texts, optional_numbers),
        model.ListStreams: st.builds(model.ListStreams, texts, texts, texts, optional_numbers),
        model.GetStats: st.just(model.GetStats()),
        model.CreateLog: st.builds(model.CreateLog, texts),
        model.DropLog: st.builds(model.DropLog, texts, st.none() | ticks),
        model.ShowLog: st.builds(model.ShowLog, texts),
        model.ListLogs: st.just(model.ListLogs()),
        model.AddMessages: st.builds(model.AddMessages, texts, tuples(bodies)),
        model.CreateIterator: st.builds(
            model.CreateIterator, texts, texts, st.sampled_from(model.IteratorKind), texts, st.booleans()
        ),
        model.DropIterator: st.builds(model.DropIterator, texts, texts),
        model.ShowIterator: st.builds(model.ShowIterator, texts),
        model.ListIterators: st.builds(model.ListIterators, optional_names),
        model.NextItems: st.builds(model.NextItems, texts, numbers, numbers),
        model.EraseStream: st.builds(model.EraseStream, texts, texts, optional_numbers),
        model.EraseSubject: st.builds(model.EraseSubject, texts, optional_names, numbers, optional_numbers),
        model.StageEvents: st.builds(
            model.StageEvents,
            *(texts, numbers, texts, numbers),
            tuples(st.builds(model.StagedUnit, texts, texts, numbers, bodies, bodies)),
        ),
        model.PublishStages: st.builds(
            model.PublishStages,
            texts,
            tuples(st.builds(model.Winner, numbers, texts, numbers)),
            st.builds(model.ProducerMark, names, numbers),
            texts,
        ),
        model.DropStages: st.builds(model.DropStages, texts),
        model.BeginBuild: st.builds(model.BeginBuild, texts),
        model.ReadMessages: st.builds(model.ReadMessages, texts, numbers, numbers, numbers),
        model.FindMessage: st.builds(model.FindMessage, texts, numbers, numbers),
        model.StageOutput: st.builds(model.StageOutput, numbers, numbers, texts, numbers, tuples(bodies)),
        model.InstallOutput: st.builds(
            model.InstallOutput,
            *(texts, numbers, numbers, numbers, numbers),
            tuples(st.builds(model.Winner, numbers, texts, numbers)),
            states,
        ),
        model.DropOutput: st.builds(model.DropOutput, numbers),
        model.ListErasures: st.builds(model.ListErasures, numbers, optional_numbers),
        model.Authenticate: st.builds(model.Authenticate, texts),
        model.WhoAmI: st.just(model.WhoAmI()),
        model.PutPrincipal: st.builds(model.PutPrincipal, texts, grants, limits, st.booleans()),
        model.DropPrincipal: st.builds(model.DropPrincipal, texts, st.booleans()),
        model.IssueToken: st.builds(model.IssueToken, texts, texts, st.none() | ticks, optional_numbers),
        model.AddCredential: st.builds(model.AddCredential, texts, texts, texts, st.none() | ticks),
        model.DropCredential: st.builds(model.DropCredential, texts),
        model.ListPrincipals: st.builds(model.ListPrincipals, texts, optional_numbers),
        model.ListCredentials: st.builds(model.ListCredentials, optional_names, texts, optional_numbers),
    }
)


@st.composite
def deliveries(draw: Callable[[SearchStrategy[Any]], Any]) -> model.Delivery:
    """A delivery: who holds it, and how many events there are, is said once."""
    subscriber, held = draw(texts), draw(event_lists)
    given = None
    if held or draw(flags):
        given = model.Allocation(draw(numbers), draw(numbers), len(held), subscriber, draw(ticks), draw(counts))
    return model.Delivery(draw(texts), draw(texts), subscriber, draw(ticks), given, held)


@st.composite
def several_deliveries(draw: st.DrawFn) -> model.Delivery:
    subscriber, expires = draw(texts), draw(ticks)
    given = [
        model.Allocation(draw(numbers), draw(numbers), draw(numbers), subscriber, expires, draw(numbers))
        for _ in range(draw(st.integers(0, 3)))
    ]
    names = draw(texts), draw(texts), subscriber
    return model.Delivery(
        *names, draw(ticks), given[0] if given else None, draw(event_lists), runs=tuple(given), ordered=draw(texts)
    )


appended = st.builds(model.Appended, guids, numbers, numbers, numbers, flags)
allocations = st.builds(model.Allocation, numbers, numbers, numbers, texts, ticks, numbers)
pages = st.builds(model.EventPage, event_lists, numbers, flags)
done = st.just(model.Done())
erased = st.builds(model.Erased, numbers, numbers, flags)
identities = st.builds(model.Identity, texts, grants, st.none() | ticks, flags, flags)
name_lists = st.builds(model.Names, st.lists(texts, max_size=4))


def page(kind: Any, *fields: SearchStrategy[Any], of: Callable[..., Reply]) -> SearchStrategy[Any]:
    return st.builds(of, st.lists(st.builds(kind, *fields), max_size=3), flags)


REPLIES: Final[dict[type[Request], SearchStrategy[Any]]] = ByRequest(
    {
        model.Append: appended,
        model.Transact: st.builds(model.Transacted, tuples(appended)),
        model.ReadStream: pages,
        model.ReadEvent: pages,
        model.ReadAll: pages,
        model.ReadRecords: st.builds(model.RecordPage, texts, numbers, st.lists(bodies, max_size=4), numbers, flags),
        model.FindPosition: st.builds(model.Found, optional_numbers),
        model.RegisterSubscriptions: st.builds(model.Registered, tuples(numbers)),
        model.FetchSubscription: st.builds(model.FetchedBatch, numbers, event_lists),
        model.ProgressSubscription: done,
        model.SetSubscription: done,
        model.DeleteSubscription: done,
        model.ListSubscriptions: page(
            model.SubscriptionInfo,
            *(numbers, texts, optional_names, texts, numbers, st.none() | ticks, numbers, flags, numbers, texts),
            of=model.ListPage,
        ),
        model.SubscribeQueue: several_deliveries(),
        model.AcknowledgeQueue: deliveries(),
        model.ReleaseQueue: done,
        model.ResetQueue: done,
        model.SetDeadLetterRule: done,
        model.ListDeadLetters: st.builds(model.ListPage, st.lists(allocations, max_size=3), flags),
        model.PutBack: done,
        model.SettleQueue: done,
        model.ExtendQueue: st.builds(model.Extended, ticks),
        model.PauseQueue: done,
        model.RenameQueue: done,
        model.DeleteQueue: done,
        model.SetRetryPolicy: done,
        model.SetQueueFilter: done,
        model.PreviewQueue: st.builds(model.QueuePreview, numbers, numbers, flags, *[numbers] * 3),
        model.ListLetters: page(
            model.DeadLetter, numbers, texts, numbers, numbers, texts, texts, ticks, of=model.ListPage
        ),
        model.PutBackLetters: st.builds(model.PutBackCount, numbers),
        model.ReplayQueue: st.builds(model.Replayed, numbers, numbers, numbers, flags, flags),
        model.ListQueues: page(
            model.QueueInfo,
            *(numbers, texts, texts, texts, *[numbers] * 6, optional_numbers, flags, numbers),
            *(texts, texts, texts, flags, numbers),
            of=model.ListPage,
        ),
        model.ListContexts: page(model.ContextInfo, texts, *[numbers] * 4, of=model.ListPage),
        model.ListStreams: page(model.StreamInfo, texts, numbers, of=model.ListPage),
        model.GetStats: st.builds(model.StoreStats, texts, *[numbers] * 13),
        model.CreateLog: done,
        model.DropLog: done,
        model.ShowLog: st.builds(model.LogSummary, texts, ticks, numbers, numbers, st.lists(texts, max_size=3)),
        model.ListLogs: name_lists,
        model.AddMessages: done,
        model.CreateIterator: done,
        model.DropIterator: done,
        model.ShowIterator: st.builds(
            model.IteratorSummary,
            *(texts, texts, st.sampled_from(model.Over), st.sampled_from(model.IteratorKind), texts, flags, ticks),
            *(optional_numbers, optional_numbers),
        ),
        model.ListIterators: name_lists,
        model.NextItems: st.builds(model.ItemPage, st.lists(bodies, max_size=4)),
        model.EraseStream: erased,
        model.EraseSubject: erased,
        model.StageEvents: st.builds(model.StagesTaken, numbers),
        model.PublishStages: st.builds(model.Published, numbers, numbers, numbers, flags),
        model.DropStages: done,
        model.BeginBuild: st.builds(
            model.BuildStart,
            *(texts, numbers, texts, st.sampled_from(model.Over), st.sampled_from(model.IteratorKind), texts),
            *(numbers, numbers, states, numbers, numbers, numbers, numbers),
        ),
        model.ReadMessages: st.builds(model.MessagePage, st.lists(st.none() | bodies, max_size=6)),
        model.FindMessage: st.builds(model.Found, optional_numbers),
        model.StageOutput: done,
        model.InstallOutput: st.builds(model.Installed, numbers, numbers, numbers),
        model.DropOutput: done,
        model.ListErasures: page(
            model.ErasureInfo,
            *(numbers, optional_names, optional_names, numbers, ticks, st.none() | ticks, numbers),
            of=model.ListPage,
        ),
        model.Authenticate: identities,
        model.WhoAmI: identities,
        model.PutPrincipal: done,
        model.DropPrincipal: done,
        model.IssueToken: st.builds(model.IssuedToken, texts, texts, st.none() | ticks),
        model.AddCredential: done,
        model.DropCredential: done,
        model.ListPrincipals: page(model.PrincipalInfo, texts, grants, limits, ticks, ticks, of=model.ListPage),
        model.ListCredentials: page(
            *(model.Credential, texts, texts, texts, st.just(""), texts, ticks, st.none() | ticks), of=model.ListPage
        ),
    }
)
