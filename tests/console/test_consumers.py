"""Pages of queues and subscriptions: what they show, previews, changes, who may change what, and the audit."""

import re
from collections.abc import Iterator
from html import unescape
from typing import Any, Final, NamedTuple

import httpx
import pytest

import penstock
from penstock import testing
from penstock.console.table import ACTIONS
from penstock.model import QueueInfo, RetryPolicy, SubscriptionInfo
from penstock.model.times import text_of_ticks
from tests.console.visitor import Visitor
from tests.principals import issue, put

HOSTILE: Final = "<b>q</b>\u202e'\"&\x1b[31m"
EVENTS: Final = 30


class Stored(NamedTuple):
    server: testing.Server
    token: str
    visitor: Visitor
    client: penstock.Client

    def info(self, name: str) -> QueueInfo:
        return next(one for one in self.client.queues() if one.name == name)

    def page(self, name: str, **query: Any) -> str:
        return self.visitor.page("/queues/queue", context="shop", queue=name, **query)

    def preview(self, queue: str, do: str, **query: Any) -> str:
        return self.visitor.page("/queues/change", context="shop", queue=queue, do=do, **query)

    def audit(self) -> tuple[str, dict[str, Any]]:
        """The last entry about queues."""
        last = list(self.client.read_stream("$audit", "queues"))[-1]
        return last.type, {name: value for name, value in last.json().items() if name != "by"}


@pytest.fixture(scope="module")
def stored() -> Iterator[Stored]:
    with testing.server() as server:
        with penstock.connect(server.url) as client:
            put(client, "root", "all")
            token = issue(client, "root").token
        with penstock.connect(server.url, token=token) as root, Visitor(server.http) as visitor:
            put(root, "reader", "read")
            put(root, "elsewhere", "read,consume:elsewhere")
            visitor.log_in(token)
            for number in range(EVENTS):
                root.append("shop", f"order-{number % 3}", [penstock.event("Placed" if number % 2 else "Paid", number)])
            yield Stored(server, token, visitor, root)


@pytest.fixture
def queue(stored: Stored, request: pytest.FixtureRequest) -> penstock.Queue:
    """A queue of the test's own."""
    made = stored.client.queue("shop", request.node.name[5:60], subscriber="ann", count=5, dead_after=3)
    made.declare()
    return made


def name_of(queue: penstock.Queue) -> str:
    return queue._inner._queue[1]


def bury(queue: penstock.Queue, reason: str) -> list[int]:
    batch = queue.take()
    for event in batch:
        batch.bury(event, reason)
    queue.acknowledge(batch)
    return [event.position for event in batch]


def says(answer: httpx.Response, visitor: Visitor) -> str:
    """What the page says to which an action leads."""
    assert answer.status_code == 303, answer.text
    text = visitor.http.get(answer.headers["location"]).text
    return unescape(re.search(r'<div class="alert good" role="status">(.*?)</div>', text).group(1))  # type: ignore[union-attr]


def plain(text: str) -> str:
    """A page without tags."""
    return re.sub(r" (?=[.,;])", "", re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", text))))


# --- what is shown --------------------------------------------------------------------------------------------


def test_the_list_has_lag_and_states(stored: Stored, queue: penstock.Queue) -> None:
    bury(queue, "no")
    queue.pause()
    text = plain(stored.visitor.page("/queues"))
    row = re.escape(f"{name_of(queue)} shop Paused 5 dead letters {stored.info(name_of(queue)).position} {EVENTS - 5} ")
    assert re.search(rf"{row}\d+ m?s 0", text), text


def test_a_queue_shows_its_rules_and_who_holds_what_until_when(stored: Stored) -> None:
    rules: dict[str, Any] = {"types": ["Paid"], "prefixes": ["order-0", "order-1"], "retry": RetryPolicy(delay=7)}
    held = stored.client.queue("shop", "rules", ordered="stream", subscriber="bob<i>", count=2, ttl=60, **rules)
    batch = held.take()
    text = stored.page("rules")
    seen = plain(text)
    assert "order-0* order-1*" in seen
    assert "by stream, one consumer at a time" in seen
    assert "7 s, then 2 times as long, up to 300 s" in seen
    assert "Held bob<i>" in seen
    assert "<i>" not in text.partition("Who holds what")[2].partition("Dead letters")[0]
    assert f"position={batch[0].position}" in text
    assert "Nobody holds anything" not in seen
    held.release(batch, delay=500.0)
    assert "Delayed" in plain(stored.page("rules", part="holdings"))


def test_allocations_are_paged(stored: Stored, queue: penstock.Queue) -> None:
    for number in range(60):
        stored.client.append("many", f"s{number}", [penstock.event("A")])
    queue = stored.client.queue("many", "many", subscriber="x", count=60, ordered="stream")
    batch = queue.take()
    text = stored.visitor.page("/queues/queue", context="many", queue="many")
    first = re.findall(r"browse/event\?position=(\d+)", text)
    following = re.search(r'href="([^"]*held=\d+)#held"', text)
    assert following is not None
    second = re.findall(r"browse/event\?position=(\d+)", stored.visitor.http.get(unescape(following[1])).text)
    assert [int(one) for one in first + second] == [event.position for event in batch]


def test_dead_letters_have_reason_attempts_consumer_and_a_link(stored: Stored, queue: penstock.Queue) -> None:
    positions = bury(queue, "no <b>such</b> customer")
    text = stored.page(name_of(queue))
    assert "no &lt;b&gt;such&lt;/b&gt; customer" in text
    dead = text.partition('id="dead"')[2]
    assert [int(one) for one in re.findall(r'row" class="number"><a href="[^"]*position=(\d+)', dead)] == positions
    assert "ann" in plain(dead)


def test_hostile_names_are_escaped_and_can_be_confirmed_as_they_are_shown(stored: Stored) -> None:
    stored.client.queue("shop", HOSTILE, subscriber=HOSTILE).take()
    for text in (stored.visitor.page("/queues"), stored.page(HOSTILE), stored.preview(HOSTILE, "delete")):
        assert "<b>q</b>" not in text
        assert not re.search("[\u202e\x1b]", re.sub(r'<input [^>]*value="[^"]*"[^>]*>', "", text))
    text = stored.preview(HOSTILE, "delete")
    shown = "<b>q</b>\\u202e'\"&\\x1b[31m"
    assert "is deleted" in says(stored.visitor.submit(text, "/queues/delete", typed=shown), stored.visitor)
    assert not [one for one in stored.client.queues() if one.name == HOSTILE]


def test_empty_pages_say_what_to_do() -> None:
    with testing.server() as server, Visitor(server.http) as visitor:
        assert "penstock queue create" in visitor.page("/queues")
        assert "client.subscription" in visitor.page("/subscriptions")
        missing = visitor.get("/queues/queue", context="shop", queue="none")
        assert missing.status_code == 404
        assert "none" in missing.text
        assert visitor.get("/subscriptions/subscription", id=7).status_code == 404
        assert visitor.get("/queues/change", context="shop", queue="none", do="explode").status_code == 404


# --- dead letters ---------------------------------------------------------------------------------------------


def test_one_dead_letter_is_put_back_or_dropped(stored: Stored, queue: penstock.Queue) -> None:
    first, second, *rest = bury(queue, "no")
    name, visitor = name_of(queue), stored.visitor
    text = stored.page(name)
    assert (
        says(visitor.submit(text, "/queues/put-back"), visitor) == f"The dead letter at position {first} is put back."
    )
    place = {"context": "shop", "queue": name}
    assert stored.audit() == ("queue-letters-put-back", {**place, "letters": 1, "first": first, "last": first})
    again = visitor.submit(text, "/queues/put-back")
    assert again.status_code == 404
    assert "any more" in again.text
    says(visitor.submit(stored.page(name), "/queues/drop"), visitor)
    assert stored.audit() == ("queue-letters-dropped", {**place, "letters": 1, "first": second, "last": second})
    assert [one.position for one in queue.dead_letters()] == rest
    assert [event.position for event in queue.take()] == [first]


def test_all_dead_letters_are_put_back_or_dropped_with_the_name_typed(stored: Stored, queue: penstock.Queue) -> None:
    bury(queue, "no")
    name, visitor = name_of(queue), stored.visitor
    fields = {**visitor.hidden(stored.page(name), "/queues/put-back"), "position": ""}
    assert says(visitor.post("/queues/put-back", fields), visitor) == f"5 dead letters of queue {name} are put back."
    assert queue.dead_letters() == []
    bury(queue, "no")
    text = stored.preview(name, "drop")
    assert "5 dead letters are forgotten" in plain(text)
    assert visitor.submit(text, "/queues/drop-all", typed="other").status_code == 422
    assert len(queue.dead_letters()) == 5
    assert (
        says(visitor.submit(text, "/queues/drop-all", typed=name), visitor)
        == f"5 dead letters of queue {name} are dropped."
    )
    assert queue.dead_letters() == []
    assert stored.audit()[0] == "queue-letters-dropped"


# --- moving and replaying -------------------------------------------------------------------------------------


def test_a_move_says_what_comes_again_and_what_is_dropped(stored: Stored, queue: penstock.Queue) -> None:
    dead = bury(queue, "no")
    held = queue.take()
    name, visitor = name_of(queue), stored.visitor
    position = stored.info(name).position
    text = stored.preview(name, "move", by="position", at=f"{dead[2]:,}")
    seen = plain(text)
    assert f"The queue is at position {position} and goes on at position {dead[2]}." in seen
    assert "8 events are delivered again" in seen
    assert f"Then {EVENTS - 2} events wait" in seen
    assert "Consumers lose 5 events that they hold" in seen
    assert "5 dead letters are dropped" in seen
    assert stored.info(name).position == position
    refused = visitor.submit(text, "/queues/move", typed="x")
    assert refused.status_code == 422
    assert "8 events are delivered again" in plain(refused.text)
    assert says(visitor.submit(text, "/queues/move", typed=name), visitor) == (
        f"Queue {name} goes on at position {dead[2]}; {EVENTS - 2} events wait."
    )
    assert stored.audit() == ("queue-reset", {"context": "shop", "queue": name, "from": position, "to": dead[2]})
    assert [event.position for event in queue.take()] == [*dead[2:], *(event.position for event in held)][:5]


def test_a_queue_moves_to_a_time_the_end_and_the_beginning(stored: Stored, queue: penstock.Queue) -> None:
    name, visitor = name_of(queue), stored.visitor
    event = list(stored.client.read_all(context="shop"))[10]
    seen = plain(text := stored.preview(name, "move", by="time", at=text_of_ticks(event.ticks)))
    assert "10 events are skipped" in seen
    says(visitor.submit(text, "/queues/move", typed=name), visitor)
    assert stored.info(name).position == event.position
    text = stored.preview(name, "move", by="end")
    assert "or at the end as it is by then" in plain(text)
    says(visitor.submit(text, "/queues/move", typed=name), visitor)
    assert stored.info(name).behind == 0
    says(visitor.submit(stored.preview(name, "move", by="beginning"), "/queues/move", typed=name), visitor)
    assert stored.info(name).position == 1


@pytest.mark.parametrize(
    "query",
    [
        {"by": "position", "at": "x"},
        {"by": "position"},
        {"by": "position", "at": "9" * 18},
        {"by": "time", "at": "now"},
        {"by": "nowhere"},
        {},
    ],
)
def test_a_move_to_nowhere_is_explained(stored: Stored, queue: penstock.Queue, query: dict[str, str]) -> None:
    answer = stored.visitor.get("/queues/change", context="shop", queue=name_of(queue), do="move", **query)
    assert 400 <= answer.status_code < 500
    assert "Traceback" not in answer.text


def test_positions_are_delivered_again_and_the_queue_stays(stored: Stored, queue: penstock.Queue) -> None:
    batch = queue.take()
    queue.acknowledge(batch)
    name, visitor = name_of(queue), stored.visitor
    position = stored.info(name).position
    first, last = batch[1].position, batch[3].position
    text = stored.preview(name, "replay", first=first, last=last)
    assert "3 events from position" in plain(text)
    assert says(visitor.submit(text, "/queues/replay"), visitor) == f"Queue {name} delivers 3 events again."
    facts = {"context": "shop", "queue": name, "first": first, "last": last}
    assert stored.audit() == ("queue-replay", facts)
    assert stored.info(name).position == position
    assert [event.position for event in queue.take()] == [first, batch[2].position, last]
    ahead = stored.preview(name, "replay", first=first, last=position)
    assert "is still to come" in plain(ahead)
    assert "Deliver them again" not in ahead
    backwards = stored.visitor.get("/queues/change", context="shop", queue=name, do="replay", first=2, last=1)
    assert backwards.status_code == 400


# --- rules ----------------------------------------------------------------------------------------------------


def test_a_queue_is_paused_and_resumed(stored: Stored, queue: penstock.Queue) -> None:
    name, visitor = name_of(queue), stored.visitor
    assert "is paused" in says(visitor.submit(stored.page(name), "/queues/pause"), visitor)
    assert stored.info(name).paused
    assert stored.audit()[0] == "queue-pause"
    assert "Paused" in plain(stored.page(name))
    assert "is resumed" in says(visitor.submit(stored.page(name), "/queues/pause"), visitor)
    assert not stored.info(name).paused


def test_another_filter_says_how_much_it_delivers(stored: Stored, queue: penstock.Queue) -> None:
    name, visitor = name_of(queue), stored.visitor
    text = stored.preview(name, "filter", prefixes="order-0\r\norder-1\r\n", types=" Paid ")
    assert "10 events wait to be delivered; with the filter of now they are 30" in plain(text)
    says(visitor.submit(text, "/queues/filter"), visitor)
    info = stored.info(name)
    assert (info.filter, info.behind) == ("order-", 10)
    assert stored.audit()[0] == "queue-filter"
    queue = stored.client.queue("shop", name, prefixes=["order-0", "order-1"], types=["Paid"], subscriber="ann")
    queue.take()
    refused = visitor.submit(stored.preview(name, "filter"), "/queues/filter")
    assert refused.status_code == 422
    assert "It did not work" in refused.text
    assert "It is refused while consumers hold events" in plain(refused.text)
    assert (
        visitor.get(
            "/queues/change", context="shop", queue=name, do="filter", types="a\n" * 3 + "\n".join(map(str, range(101)))
        ).status_code
        == 400
    )


def test_retry_policy_and_dead_letter_rule_are_changed(stored: Stored, queue: penstock.Queue) -> None:
    name, visitor = name_of(queue), stored.visitor
    parts = {"delay": "2.5", "factor": "3", "cap": "60", "jitter": "0"}
    says(visitor.submit(stored.page(name), "/queues/retry", **parts), visitor)
    assert RetryPolicy.parsed(stored.info(name).retry) == RetryPolicy(2.5, 3.0, 60.0, 0.0)
    for bad in ({"factor": "x"}, {"factor": "0.5"}, {"cap": "nan"}, {"delay": "-1"}):
        answer = visitor.submit(stored.page(name), "/queues/retry", **(parts | bad))
        assert answer.status_code in (400, 422)
        assert "It did not work" in answer.text
    says(visitor.submit(stored.page(name), "/queues/dead-after", dead_after="9"), visitor)
    assert stored.info(name).dead_after == 9
    assert stored.audit() == ("queue-dead-letters", {"context": "shop", "queue": name, "dead_after": 9})
    assert visitor.submit(stored.page(name), "/queues/dead-after", dead_after="0").status_code == 422
    says(visitor.submit(stored.page(name), "/queues/dead-after", dead_after=""), visitor)
    assert stored.info(name).dead_after is None


def test_a_queue_is_renamed_and_deleted_with_its_name_typed(stored: Stored, queue: penstock.Queue) -> None:
    name, visitor = name_of(queue), stored.visitor
    text = stored.preview(name, "rename", name="<i>new</i>")
    assert "Consumers that go on with the old name make a new queue" in plain(text)
    answer = visitor.submit(text, "/queues/rename")
    assert answer.headers["location"].endswith("queue=%3Ci%3Enew%3C%2Fi%3E")
    assert says(answer, visitor) == f"Queue {name} is now <i>new</i>."
    text = stored.preview("<i>new</i>", "delete")
    assert "forgets its position" in plain(text)
    assert visitor.submit(text, "/queues/delete", typed=name).status_code == 422
    assert stored.info("<i>new</i>").name == "<i>new</i>"
    assert "is deleted" in says(visitor.submit(text, "/queues/delete", typed="<i>new</i>"), visitor)
    assert stored.audit()[0] == "queue-delete"
    assert visitor.submit(text, "/queues/delete", typed="<i>new</i>").status_code == 404


@pytest.mark.parametrize("who", ["reader", "elsewhere"])
def test_whoever_may_not_consume_sees_no_forms_and_changes_nothing(
    stored: Stored, queue: penstock.Queue, who: str
) -> None:
    bury(queue, "no")
    name = name_of(queue)
    before = stored.info(name)
    with Visitor(stored.server.http) as visitor:
        visitor.log_in(issue(stored.client, who).token)
        if who == "reader":
            text = visitor.page("/queues/queue", context="shop", queue=name)
            assert "/queues/put-back" not in text
            assert "/queues/pause" not in text
        fields = {
            "csrf": visitor.hidden(visitor.page(), "/logout")["csrf"],
            "back": f"/console/queues/queue?context=shop&queue={name}&do=delete",
            **dict.fromkeys(("paused", "first", "last", "dead_after", *RetryPolicy._fields), "1"),
            **dict.fromkeys(("queue", "typed", "name"), name),
            "context": "shop",
            "by": "end",
        }
        actions = [action.path for action in ACTIONS if action.path.startswith("/queues/")]
        assert len(actions) == 11
        for action in actions:
            assert visitor.post(action, fields).status_code == (403 if who == "reader" else 404), action
    after = stored.info(name)
    kept = ("position", "dead", "paused", "retry", "filter", "dead_after")
    assert [getattr(after, one) for one in kept] == [getattr(before, one) for one in kept]


# --- subscriptions --------------------------------------------------------------------------------------------


def find(stored: Stored, subscriber: str) -> SubscriptionInfo:
    return next(one for one in stored.client.subscriptions() if one.subscriber == subscriber)


@pytest.mark.parametrize("context", ["shop", None])
def test_a_subscription_is_moved_with_a_preview_and_deleted_with_its_name_typed(
    stored: Stored, context: str | None
) -> None:
    name, visitor = f"<u>report</u> {context}", stored.visitor
    id = stored.client.subscription(name, context=context, filter="order-", types=["Paid"]).id()
    assert "&lt;u&gt;report" in visitor.page("/subscriptions")
    text = visitor.page("/subscriptions/subscription", id=id)
    assert "order-*" in plain(text)
    events = [one for one in stored.client.read_all(context="shop", filter="order-") if one.type == "Paid"]
    query = {"id": id, "by": "position", "at": events[4].position}
    preview = visitor.page("/subscriptions/subscription", **query)
    assert "4 events are skipped" in plain(preview)
    assert find(stored, name).position == events[0].position
    assert "goes on at position" in says(visitor.submit(preview, "/subscriptions/set"), visitor)
    assert find(stored, name).position == events[4].position
    audit = list(stored.client.read_stream("$audit", "subscriptions"))[-1]
    assert audit.type == "subscription-reset"
    time = text_of_ticks(events[6].ticks)
    preview = visitor.page("/subscriptions/subscription", id=id, by="time", at=time)
    says(visitor.submit(preview, "/subscriptions/set"), visitor)
    assert events[5].position < find(stored, name).position <= events[6].position
    says(visitor.submit(visitor.page("/subscriptions/subscription", id=id, by="end"), "/subscriptions/set"), visitor)
    assert find(stored, name).behind == 0
    assert visitor.submit(text, "/subscriptions/delete", typed="report").status_code == 422
    assert "is deleted" in says(visitor.submit(text, "/subscriptions/delete", typed=name), visitor)
    assert visitor.get("/subscriptions/subscription", id=id).status_code == 404
    with Visitor(stored.server.http) as reader:
        reader.log_in(issue(stored.client, "reader").token)
        assert "/subscriptions/delete" not in reader.page("/subscriptions")
