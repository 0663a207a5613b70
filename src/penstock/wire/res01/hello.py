"""What our own clients and servers tell each other first: a version, a name, and what each supports."""

from dataclasses import dataclass
from typing import Final

from penstock.model import Reply, Request
from penstock.model.requests import Repeat

VERSION: Final = 1
"""Of the dialect. It grows when something changes that those who speak the version before cannot pass over."""


@dataclass(frozen=True, slots=True)
class Hello(Request):
    """A client's first request on a connection. `supports` are the features that it understands."""

    repeat = Repeat.READS
    version: int
    software: str
    supports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome(Reply):
    """A server's answer: the version that it speaks, and the commands and features that it has."""

    version: int
    software: str
    supports: tuple[str, ...] = ()
