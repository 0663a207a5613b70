"""Tokens: how a client shows a server with principals who it is.

Where a token may be shown, in errors and by `repr`, it is not.
"""

import os
from collections.abc import Callable
from typing import Final

from penstock.errors import InvalidRequest
from penstock.model import Authenticate

Token = str | Callable[[], str]
"""A token, or a function that returns one: the client calls it for each connection, so that a token can be rotated."""
TokenRequest = Callable[[], Authenticate]
"""Makes the request that shows a token on a connection."""

ENVIRONMENT: Final = "PENSTOCK_TOKEN"
"""The token of clients that are given none."""
CHARACTERS_MAX: Final = 200


def environment_token(token: str | None = None) -> str | None:
    """A token, or without one that of the environment. An empty text is none."""
    return (os.environ.get(ENVIRONMENT) if token is None else token) or None


def checked_token(token: object) -> str:
    """A text that may be a token. Raises InvalidRequest, which does not show it."""
    if not isinstance(token, str):
        raise InvalidRequest("token", f"is {type(token).__name__}; pass a text, or a function that returns one")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token", "has characters that no token has, such as spaces or line ends")
    if len(token) > CHARACTERS_MAX:
        raise InvalidRequest("token", f"has {len(token)} characters; a token has at most {CHARACTERS_MAX}")
    return token


def token_request(token: Token | None) -> TokenRequest | None:
    """How to show a token, or that of the environment; None without one. Raises InvalidRequest."""
    if callable(token):
        make = token
        return lambda: Authenticate(checked_token(make()))
    if token is not None:
        checked_token(token)
    found = environment_token(token)
    if found is None:
        return None
    request = Authenticate(checked_token(found))
    return lambda: request
