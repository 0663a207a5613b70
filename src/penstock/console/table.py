"""The tables of the console: its pages in the order of the navigation, and what can be changed."""

from typing import Final

from penstock.console import (
    audit,
    browse,
    connections,
    consumers,
    erasures,
    logs,
    overview,
    principals,
    search,
    sql,
    storage,
    tail,
)
from penstock.console.visit import Action, Page
from penstock.model import Right

PAGES: Final = (
    Page("/", "Overview", "overview.html", overview.overview, None, nav="Overview"),
    Page("/samples", "Samples", "", overview.samples, Right.READ, everywhere=True, within="/"),
    Page("/browse", "Contexts", "contexts.html", browse.contexts, nav="Browse", group="Data"),
    Page("/browse/streams", "Streams", "streams.html", browse.streams, within="/browse"),
    Page("/browse/stream", "Stream", "stream.html", browse.stream, within="/browse"),
    Page("/browse/history", "History", "history.html", browse.history, nav="History", group="Data"),
    Page("/browse/event", "Event", "event.html", browse.event, within="/browse"),
    Page("/browse/body", "Body", "", browse.body, within="/browse"),
    Page("/search", "Search", "search.html", search.page, nav="Search", group="Data"),
    Page("/tail", "Live tail", "tail.html", tail.page, nav="Live tail", group="Data"),
    Page("/tail/events", "Live tail", "", tail.events, within="/tail"),
    Page("/logs", "Logs", "logs.html", logs.logs, nav="Logs", group="Data"),
    Page("/logs/log", "Log", "log.html", logs.log, within="/logs"),
    Page("/iterators", "Iterators", "iterators.html", logs.iterators, nav="Iterators", group="Data"),
    Page("/iterators/iterator", "Iterator", "iterator.html", logs.iterator, within="/iterators"),
    Page("/iterators/try", "Try a function", "try.html", logs.attempt, within="/iterators", posts=True),
    Page("/sql", "SQL", "sql.html", sql.sql, nav="SQL", group="Data", posts=True),
    Page("/queues", "Queues", "queues.html", consumers.queues, nav="Queues", group="Consumers"),
    Page("/queues/queue", "Queue", "queue.html", consumers.queue, within="/queues"),
    Page("/queues/change", "Change", "queue_change.html", consumers.change, Right.CONSUME, within="/queues"),
    Page(
        "/subscriptions",
        "Subscriptions",
        "subscriptions.html",
        consumers.subscriptions,
        nav="Subscriptions",
        group="Consumers",
    ),
    Page(
        "/subscriptions/subscription",
        "Subscription",
        "subscription.html",
        consumers.subscription,
        within="/subscriptions",
    ),
    Page("/storage", "Storage", "storage.html", storage.storage, everywhere=True, nav="Storage", group="Server"),
    Page("/sessions", "Sessions", "connections.html", connections.connections, Right.ADMIN, True, "Sessions", "Server"),
    Page("/settings", "Settings", "settings.html", connections.settings, Right.ADMIN, True, "Settings", "Server"),
    Page("/access", "Access", "access.html", principals.principals, Right.ADMIN, True, "Access", "Security"),
    Page("/access/principal", "Principal", "principal.html", principals.principal, Right.ADMIN, True, within="/access"),
    Page("/access/token", "Token", "token.html", principals.token, Right.ADMIN, True, within="/access", posts=True),
    Page("/access/check", "Who may do what", "check.html", principals.check, Right.ADMIN, True, within="/access"),
    Page("/audit", "Audit", "audit.html", audit.audit, Right.AUDIT, nav="Audit", group="Security"),
    Page("/erasures", "Erasures", "erasures.html", erasures.erasures, nav="Erasures", group="Security"),
    Page(
        "/erasures/preview", "Erase events", "erase.html", erasures.preview, Right.ADMIN, within="/erasures", posts=True
    ),
)

_QUEUE: Final = "/queues/queue"
_CHANGE: Final = "/queues/change"
_SUBSCRIPTION: Final = "/subscriptions/subscription"

ACTIONS: Final[tuple[Action, ...]] = (
    Action("/queues/pause", _QUEUE, consumers.pause, Right.CONSUME),
    Action("/queues/put-back", _QUEUE, consumers.put_back, Right.CONSUME),
    Action("/queues/drop", _QUEUE, consumers.drop, Right.CONSUME),
    Action("/queues/drop-all", _CHANGE, consumers.drop, Right.CONSUME, confirm="queue"),
    Action("/queues/move", _CHANGE, consumers.move, Right.CONSUME, confirm="queue"),
    Action("/queues/replay", _CHANGE, consumers.replay, Right.CONSUME),
    Action("/queues/filter", _CHANGE, consumers.set_filter, Right.CONSUME),
    Action("/queues/retry", _QUEUE, consumers.set_retry, Right.CONSUME),
    Action("/queues/dead-after", _QUEUE, consumers.set_dead_after, Right.CONSUME),
    Action("/queues/rename", _CHANGE, consumers.rename, Right.CONSUME),
    Action("/queues/delete", _CHANGE, consumers.delete, Right.CONSUME, confirm="queue"),
    Action("/subscriptions/set", _SUBSCRIPTION, consumers.set_subscription, Right.CONSUME),
    Action("/subscriptions/delete", _SUBSCRIPTION, consumers.delete_subscription, Right.CONSUME, confirm="subscriber"),
    Action("/logs/create", "/logs", logs.create_log, Right.APPEND),
    Action("/logs/delete", "/logs/log", logs.delete_log, Right.APPEND, confirm="log"),
    Action("/iterators/create", "/iterators/try", logs.create_iterator, Right.APPEND),
    Action("/iterators/delete", "/iterators/iterator", logs.delete_iterator, Right.APPEND, confirm="iterator"),
    Action("/sessions/close", "/sessions", connections.close, Right.ADMIN, everywhere=True),
    Action("/access/add", "/access", principals.add, Right.ADMIN, everywhere=True),
    Action("/access/change", "/access/principal", principals.change, Right.ADMIN, True, "principal"),
    Action("/access/credential", "/access/principal", principals.add_credential, Right.ADMIN, everywhere=True),
    Action("/access/revoke", "/access/principal", principals.revoke, Right.ADMIN, True, "principal"),
    Action("/access/drop", "/access/principal", principals.drop, Right.ADMIN, True, "principal"),
    Action("/erasures/stream", "/erasures/preview", erasures.erase_stream, Right.ADMIN, confirm="stream"),
    Action("/erasures/subject", "/erasures/preview", erasures.erase_subject, Right.ADMIN, confirm="subject"),
)
