"""Methods that are made of others show themselves as what a program calls: in help, signatures and errors."""

import inspect
import pydoc
import re
from collections.abc import AsyncGenerator, Callable, Iterator
from types import FunctionType, SimpleNamespace
from typing import Any, Final

import pytest

import penstock
from penstock import AsyncClient, Client, Event, Queue, Subscription, client
from penstock.client import SubscriptionBatch
from penstock.client.sync import Direct

PLAIN: Final = [
    kind
    for kind in map(vars(client).get, client.__all__)
    if isinstance(kind, type) and kind.__module__ == Client.__module__
]
"""The classes of the plain client."""

plain_classes = pytest.mark.parametrize("kind", PLAIN, ids=lambda kind: kind.__name__)


def methods(kind: type) -> dict[str, FunctionType]:
    return {name: value for name, value in vars(kind).items() if isinstance(value, FunctionType)}


@plain_classes
def test_nothing_of_event_loops_is_in_the_help_of_a_plain_class(kind: type) -> None:
    page = pydoc.plain(pydoc.render_doc(kind))
    assert re.findall(r".*(?i:async|await|aconnect).*", page) == []


@plain_classes
def test_a_method_has_the_name_and_the_module_of_its_class(kind: type) -> None:
    for name, method in methods(kind).items():
        assert (method.__name__, method.__qualname__) == (name, f"{kind.__name__}.{name}")
        assert method.__module__ == kind.__module__


@plain_classes
def test_a_wrong_call_names_the_method_that_was_called(kind: type) -> None:
    one = SimpleNamespace(_runner=Direct(), _inner=None)
    one._on_loop = lambda: one
    for name, method in methods(kind).items():
        with pytest.raises(TypeError, match=rf"\b{kind.__name__}\.{name}\(\) got an unexpected keyword argument"):
            method(one, nothing_of_the_kind=1)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        (Client.append, penstock.Appended),
        (Client.read_stream, Iterator[Event]),
        (Client.stream_pages, Iterator[list[Event]]),
        (Client.read_all, Iterator[Event]),
        (Client.queue, Queue),
        (Client.subscription, Subscription),
        (Subscription.batches, Iterator[SubscriptionBatch]),
        (Subscription.__iter__, Iterator[Event]),
        (AsyncClient.read_stream, AsyncGenerator[Event, None]),
        (AsyncClient.stream_pages, AsyncGenerator[list[Event], None]),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_a_signature_has_the_result_that_the_call_has(method: Callable[..., Any], result: Any) -> None:
    assert inspect.signature(method).return_annotation == result


def test_a_plain_method_takes_what_its_twin_takes() -> None:
    for name in methods(Client).keys() & vars(AsyncClient).keys() - {"__init__", "append_many", "close"}:
        plain, twin = (inspect.signature(getattr(kind, name)).parameters for kind in (Client, AsyncClient))
        assert list(plain.values()) == list(twin.values()), name


def test_the_methods_for_event_loops_keep_their_own_names() -> None:
    assert AsyncClient.append.__qualname__ == "AsyncClient.append"
    assert AsyncClient.read_stream.__qualname__ == "AsyncClient.read_stream"
    assert inspect.iscoroutinefunction(AsyncClient.append)
    assert not inspect.iscoroutinefunction(Client.append)
