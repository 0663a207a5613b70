"""Sessions of the console: how they begin and end, their limits, and failed attempts."""

from itertools import count

import pytest

from penstock.console import sessions
from penstock.console.sessions import Sessions
from penstock.model import Credential

TOKEN = Credential("a", "ann", "token", "proof", "", 1)
OTHER = Credential("b", "bob", "token", "proof", "", 1)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def kept(clock: Clock) -> Sessions:
    return Sessions(clock)


def test_a_session_is_found_by_its_id_only(kept: Sessions) -> None:
    id = kept.begin(TOKEN)
    found = kept.find(id)
    assert found is not None
    assert found.credential == TOKEN
    assert kept.find(Sessions.new_id()) is None
    assert Sessions.is_id(id)
    assert not Sessions.is_id(id + "x")
    assert not Sessions.is_id(None)


def test_a_session_ends_when_it_is_idle_for_too_long(kept: Sessions, clock: Clock) -> None:
    id = kept.begin(TOKEN)
    for _ in range(3):
        clock.now += sessions.IDLE_S_MAX - 1
        assert kept.find(id) is not None
    clock.now += sessions.IDLE_S_MAX + 1
    assert kept.find(id) is None
    assert len(kept) == 0


def test_a_session_ends_at_last_however_it_is_used(kept: Sessions, clock: Clock) -> None:
    id, began = kept.begin(TOKEN), clock.now
    while clock.now + sessions.IDLE_S_MAX <= began + sessions.SESSION_S_MAX:
        clock.now += sessions.IDLE_S_MAX
        assert kept.find(id) is not None
    clock.now = began + sessions.SESSION_S_MAX + 1
    assert kept.find(id) is None


def test_a_principal_with_too_many_sessions_loses_the_one_it_used_longest_ago(kept: Sessions) -> None:
    other = kept.begin(OTHER)
    ids = [kept.begin(TOKEN) for _ in range(sessions.SESSIONS_PER_PRINCIPAL_MAX)]
    kept.find(ids[0])
    kept.begin(TOKEN)
    assert kept.find(ids[1]) is None
    assert kept.find(ids[0]) is not None
    assert kept.find(other) is not None
    assert len(kept) == sessions.SESSIONS_PER_PRINCIPAL_MAX + 1


def test_there_are_never_more_sessions_than_their_limit(kept: Sessions) -> None:
    first = kept.begin(TOKEN)
    numbers = count()
    for _ in range(sessions.SESSIONS_MAX):
        kept.begin(Credential("x", f"p{next(numbers)}", "token", "", "", 1))
    assert len(kept) == sessions.SESSIONS_MAX
    assert kept.find(first) is None


def test_a_csrf_token_belongs_to_one_browser(kept: Sessions, clock: Clock) -> None:
    mine, theirs = Sessions.new_id(), Sessions.new_id()
    assert kept.is_csrf(mine, kept.csrf(mine))
    assert not kept.is_csrf(mine, kept.csrf(theirs))
    assert not kept.is_csrf(mine, "")
    assert not kept.is_csrf(mine, "ü\udc80")
    assert not kept.is_csrf(mine, Sessions(clock).csrf(mine))


def test_a_note_is_shown_once_to_the_browser_that_it_is_for(kept: Sessions) -> None:
    mine = Sessions.new_id()
    kept.note(mine, "deleted")
    assert kept.take_note(Sessions.new_id()) is None
    assert kept.take_note(mine) == "deleted"
    assert kept.take_note(mine) is None
    ids = [Sessions.new_id() for _ in range(sessions.NOTES_MAX + 1)]
    for id in ids:
        kept.note(id, "x" * 2 * sessions.NOTE_CHARACTERS_MAX)
    assert kept.take_note(ids[0]) is None
    assert kept.take_note(ids[-1]) == "x" * sessions.NOTE_CHARACTERS_MAX


def test_a_network_with_too_many_wrong_tokens_waits(kept: Sessions, clock: Clock) -> None:
    for _ in range(sessions.FAILURES_MAX):
        assert kept.wait_s("net") == 0
        kept.failed("net")
    assert kept.wait_s("net") == sessions.FAILURES_S
    assert kept.wait_s("other") == 0
    clock.now += sessions.FAILURES_S + 1
    assert kept.wait_s("net") == 0
    kept.failed("net")
    assert kept.wait_s("net") == 0


def test_networks_with_wrong_tokens_have_a_limit(kept: Sessions) -> None:
    for _ in range(sessions.FAILURES_MAX):
        kept.failed("first")
    for number in range(sessions.NETWORKS_MAX):
        kept.failed(f"net{number}")
    assert kept.wait_s("first") == 0
