"""Erasing through the client: over every URL, from plain code and from an event loop."""

import pytest

import penstock
from penstock import Client
from penstock.errors import InvalidRequest
from tests.client.support import numbers, some


def about(subject: str, number: int = 0) -> penstock.NewEvent:
    return penstock.event("Counted", number, {"subject": subject})


def test_an_erased_stream_is_empty_and_goes_on(client: Client, context: str) -> None:
    client.append(context, "s", some(3))
    assert client.erase_stream(context, "s") == 3
    assert list(client.read_stream(context, "s")) == []
    assert client.erase_stream(context, "s") == 0
    assert client.append(context, "s", some(1, 4)).sequence == 4
    assert numbers(client.read_stream(context, "s")) == [4]


@pytest.mark.over("penstock", "sqlite")
def test_only_the_stream_of_that_very_name_is_erased(client: Client, context: str) -> None:
    names = ("*", "s", "s*", "s-1")
    for name in names:
        client.append(context, f"{name}+", some(1))
        client.append(context, name, some(2))
    for name in names:
        assert client.erase_stream(context, name) == 2
        assert client.erase_stream(context, name) == 0
    assert client.erase_stream(context, "none") == 0
    assert client.erase_stream("no such context", "s") == 0
    assert [event.stream for event in client.read_all(context=context)] == [f"{name}+" for name in names]


def test_a_subject_is_erased_in_one_context_or_in_all(client: Client, context: str) -> None:
    subject, other = f"ann of {context}", f"{context}-other"
    for where in (context, other):
        client.append(where, "s", [about(subject), about("somebody else", 7), about(subject)])
    assert client.erase_subject(subject, context) == 2
    assert numbers(client.read_stream(context, "s")) == [7]
    assert len(list(client.read_stream(other, "s"))) == 3
    assert client.erase_subject(subject) == 2
    assert numbers(client.read_all(context=other)) == [7]
    assert client.erase_subject(subject) == 0


def test_steps_say_how_far_they_are(client: Client, context: str) -> None:
    subject = f"ann of {context}"
    client.append(context, "s", [about(subject), about("other")] * 4200)
    steps = list(client.erase_subject_steps(subject, context))
    assert len(steps) >= 2
    assert [step.end for step in steps] == [False] * (len(steps) - 1) + [True]
    assert sum(step.events for step in steps) == 4200
    assert sorted(step.next for step in steps) == [step.next for step in steps]


def test_what_was_waited_for_is_finished_in_the_ledger(client: Client, context: str) -> None:
    client.append(context, "s", some(100))
    client.append(context, "t", [about(f"ann of {context}")])
    assert client.erase_stream(context, "s", wait=True) == 100
    assert client.erase_subject(f"ann of {context}", wait=True) == 1
    mine, last = list(client.erasures())[-2:]
    assert (mine.context, mine.stream, mine.events, mine.damaged) == (context, "s", 100, 0)
    assert (last.context, last.stream, last.events) == (None, None, 1)
    assert mine.finished is not None
    assert last.finished is not None
    assert list(client.erasures(open=True)) == []
    assert [info for page in client.erasure_pages() for info in page] == list(client.erasures())
    client.wait_erased()


def test_what_cannot_be_erased_is_told(client: Client, context: str) -> None:
    client.log(f"log-{context}").create()
    for stream, where in ((f"log-{context}", "remits"), ("", context), ("s", "")):
        with pytest.raises(InvalidRequest):
            client.erase_stream(where, stream)
    for subject in ("", "x" * 1025, "\ud800"):
        with pytest.raises(InvalidRequest):
            client.erase_subject(subject)
