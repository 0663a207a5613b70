"""The table of commands: both directions agree for each entry, and a new one needs nothing but its entry."""

import re
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import AnswerMalformed, LimitExceeded
from penstock.model import Append, Reply, Request
from penstock.model.access import Right
from penstock.model.requests import Reach, Repeat, request
from penstock.wire.res01 import commands
from penstock.wire.res01.commands import (
    CONTEXT,
    EXTENSIONS,
    FILTER,
    ORIGINAL,
    OURS,
    OWN_COMMANDS,
    OWN_ONLY,
    TEXT_COMMANDS,
)
from penstock.wire.res01.messages import decode, fields_of, reply_of
from penstock.wire.res01.schema import LONG, SMALL_BYTES_MAX, Answer, Command
from tests.wire.checks import few_examples, in_columns
from tests.wire.res01_strategies import REQUESTS

CONTRIBUTING: Final = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text(encoding="utf-8")

every_command = pytest.mark.parametrize("command", [*ORIGINAL, *EXTENSIONS], ids=lambda command: command.name)


def attributes(command: Command) -> set[str]:
    """What of a request a command tells."""
    layouts = [command.layout] if command.each is None else [command.layout, command.each]
    return {field.attribute for layout in layouts for field in layout.fields} - {""}


@every_command
@few_examples
@given(data=st.data())
def test_what_a_command_writes_is_what_it_reads(command: Command, data: st.DataObject) -> None:
    request = data.draw(REQUESTS[command.request])
    if "last" in attributes(command) and getattr(request, "last", 0) is None and command.name in ("AQ", "AW"):
        return  # These know no allocation by its first marker alone.
    asked = getattr(request, "subscriptions", [request]) if command.name in ("RS", "SS") else ()
    if any(one.context is None or one.selection for one in asked):
        return  # These know one context, and no selection.
    exchange = decode([b"", b"Res01", command.code, b"1", *command.write(request)])
    (read,) = exchange.requests
    assert type(read) is type(request)
    for name in attributes(command):
        assert getattr(read, name) == getattr(in_columns(request), name)


def test_no_two_commands_have_the_same_code() -> None:
    assert len(TEXT_COMMANDS) == len(ORIGINAL) + len(EXTENSIONS)
    assert len(OWN_COMMANDS) == len(TEXT_COMMANDS) + len(OWN_ONLY)


@every_command
def test_a_message_that_is_heavier_than_its_command_allows_is_refused(command: Command) -> None:
    (answer,) = decode([b"", b"PEN1", command.code, b"1", bytes(SMALL_BYTES_MAX + 1)]).answers([])
    error = reply_of(Append("", "", (), 0), answer[3:])
    assert isinstance(error, LimitExceeded) == (command.bytes_max is not None)
    if isinstance(error, LimitExceeded):
        assert (error.limit, error.maximum) == ("command_bytes_max", SMALL_BYTES_MAX)


def test_the_commands_that_carry_events_or_output_have_no_limit_of_their_own() -> None:
    large = {command.name for command in OWN_COMMANDS.values() if command.bytes_max is None}
    assert large == {"AC", "AF", "AB", "TX", "TB", "ML", "ZS", "ZP", "BO", "BI"}


# --- the example of CONTRIBUTING.md ---------------------------------------------------------------------------


def test_a_new_command_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"^## Add a Res01 command\n.*?^```python\n(.*?)^```$", CONTRIBUTING, re.MULTILINE | re.DOTALL)
    assert found
    code = found[1]
    names: dict[str, Any] = {
        "dataclass": dataclass,
        "Request": Request,
        "Reply": Reply,
        "Reach": Reach,
        "Repeat": Repeat,
        "Right": Right,
        "request": request,
        "Final": Final,
        "Answer": Answer,
        "Command": Command,
        "LONG": LONG,
        "CONTEXT": CONTEXT,
        "FILTER": FILTER,
        "__name__": "example",
    }
    names["model"] = SimpleNamespace()
    for part in re.split(r"^# src/", code, flags=re.MULTILINE)[1:]:
        exec(f"# {part}", names)
        # As if `penstock.model` exported them.
        vars(names["model"]).update({name: made for name, made in names.items() if isinstance(made, type)})
    command, asked, reply = names["COUNT_STREAMS"], names["CountStreams"]("shop", "order-"), names["StreamCount"](7)
    monkeypatch.setitem(OURS, type(asked), command)
    monkeypatch.setitem(commands.TEXT_COMMANDS, command.code, command)
    monkeypatch.setitem(commands.OWN_COMMANDS, command.code, command)
    exchange = decode([b"", b"PEN1", command.code, b"1", *fields_of(asked)[1:]])
    assert exchange.requests == (asked,)
    (answer,) = exchange.answers([reply])
    assert answer == [b"", b"PEN1", b"1", b"NS", b"7"]
    assert reply_of(asked, answer[3:]) == reply
    assert isinstance(reply_of(asked, [b"NS", b"seven"]), AnswerMalformed)
