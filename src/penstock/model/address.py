"""Where a Penstock is, and the token that goes with it."""

import os
from typing import Final, Self

from penstock.errors import InvalidRequest

TOKEN_ENVIRONMENT: Final = "PENSTOCK_TOKEN"  # noqa: S105 - the name of the variable
"""The token of clients and commands without another one."""
TOKEN_CHARACTERS_MAX: Final = 200


class Address(str):
    """A URL with a token. As a text it is the URL alone, so what prints it or writes it into a file has no token.

    A pickle has both: Spark's tasks get their token with the URL.
    """

    __slots__ = ("token",)
    token: str | None

    def __new__(cls, url: str, token: str | None = None) -> Self:
        self = super().__new__(cls, url)
        self.token = token
        return self


def addressed(url: str, token: str | None = None) -> Address:
    """A URL for other processes, with a token: this one, that of the URL, or that of the environment."""
    return Address(url, environment_token(token_of(url) if token is None else token))


def token_of(url: str) -> str | None:
    return url.token if isinstance(url, Address) else None


def environment_token(token: str | None = None) -> str | None:
    """A token, or without one that of the environment. An empty text means no token."""
    found = os.environ.get(TOKEN_ENVIRONMENT) if token is None else token
    return checked_token(found) if found else None


def checked_token(token: object) -> str:
    """A text that may be a token. Raises InvalidRequest, which does not show it."""
    if not isinstance(token, str):
        raise InvalidRequest("token", f"is {type(token).__name__}; pass a text, or a function that returns one")
    if not token.isascii() or not token.isprintable() or " " in token:
        raise InvalidRequest("token", "has characters that no token has, such as spaces or line ends")
    if len(token) > TOKEN_CHARACTERS_MAX:
        raise InvalidRequest("token", f"has {len(token)} characters; a token has at most {TOKEN_CHARACTERS_MAX}")
    return token
