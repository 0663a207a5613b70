"""What a check has found: how bad it is, what it is, and what to do about it."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """How bad a finding is. Only a problem is one: a warning may be what somebody wants."""

    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's: which check, how it went, what it saw, and what to do about it."""

    check: str
    status: Status
    message: str
    advice: str | None = None


def ok(check: str, message: str, advice: str | None = None) -> Finding:
    """All is well; the advice is for those who want more."""
    return Finding(check, Status.OK, message, advice)


def warning(check: str, message: str, advice: str) -> Finding:
    """It works, and may not be what is wanted."""
    return Finding(check, Status.WARNING, message, advice)


def problem(check: str, message: str, advice: str) -> Finding:
    """It does not work like this."""
    return Finding(check, Status.PROBLEM, message, advice)
