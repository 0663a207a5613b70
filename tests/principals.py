"""Principals and tokens for tests."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import penstock
from penstock import Client, model
from penstock.model import IssuedToken, Reply, Request

R = TypeVar("R", bound=Reply)


def ask(client: Client, request: Request, kind: type[R]) -> R:
    """What the plain client has no method for."""
    return client._runner.run(client._inner._calls.ask(request, kind))


def issue(client: Client, principal: str, **options: Any) -> IssuedToken:
    return ask(client, model.IssueToken(principal, **options), IssuedToken)


def put(client: Client, name: str, *grants: str) -> None:
    ask(client, model.PutPrincipal(name, grants), model.Done)


def closed(data: Path, **grants: str) -> Callable[[str], str]:
    """Make principals in a store that no server has open, `root` first; the function returns each one's token.

    Grants have spaces between them. Embedded clients are administrators, whatever principals there are.
    """
    tokens = {}
    with penstock.connect(f"sqlite:///{data}") as client:
        for name, texts in {"root": "all", **grants}.items():
            put(client, name, *texts.split())
            tokens[name] = issue(client, name).token
    return tokens.__getitem__
