"""Who asks, and what they may do. A principal goes with every request."""

from dataclasses import dataclass
from enum import Flag, auto
from typing import Final


class Right(Flag):
    """What a request needs its principal to be allowed."""

    READ = auto()
    APPEND = auto()
    CONSUME = auto()
    ADMIN = auto()
    ALL = READ | APPEND | CONSUME | ADMIN


@dataclass(frozen=True, slots=True)
class Principal:
    """A name with rights."""

    name: str
    rights: Right

    def may(self, right: Right) -> bool:
        """Whether all of these rights are given."""
        # Asked of every request; `in` would build a flag each time, and `value` is looked up the long way.
        return not right._value_ & ~self.rights._value_


ANONYMOUS: Final = Principal("anonymous", Right.ALL)
"""Everyone, as long as nobody has to say who they are."""
