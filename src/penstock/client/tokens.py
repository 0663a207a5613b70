"""Tokens: how a client shows a server with principals who it is."""

from collections.abc import Callable

from penstock.model import Authenticate
from penstock.model.address import checked_token, environment_token, token_of

Token = str | Callable[[], str]
"""A token, or a function that returns one: the client calls it for each connection, so that a token can be rotated."""
TokenRequest = Callable[[], Authenticate]
"""Makes the request that shows a token on a connection."""


def token_request(url: str, token: Token | None) -> TokenRequest | None:
    """How to show a token, that of the URL or that of the environment; None without one. Raises InvalidRequest."""
    if callable(token):
        make = token
        return lambda: Authenticate(checked_token(make()))
    if token is not None:
        checked_token(token)
    found = environment_token(token_of(url) if token is None else token)
    if found is None:
        return None
    request = Authenticate(found)
    return lambda: request
