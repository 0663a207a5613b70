"""From an ER back to the exception: the reverse of `codes`.

The rule: the sentence is compared with those that the errors of its code make, and the first that could have made it
is made again from the fields in it. So a client raises what its server raised, and the tree of errors stays the only
place where sentences are written. A name that looks like part of a sentence may put fields in the wrong places; the
text is the same all the same. What no error could have said is `Refused`, with the code and the sentence as they came.

Some errors cannot be told by their sentences. `Busy` and `TimedOut`, which never happen by themselves, come as
`ReaderBusy` and `ReaderTimeout`; what an iterator's function did comes as `FunctionFailed`; a bare `StoreError` says
anything at all, and comes as `Refused`.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields
from typing import Final, NamedTuple, cast

from penstock import errors
from penstock.errors import FunctionFailed, PenstockError, Refused, Retry, Unexpected
from penstock.model import CreateIterator, NextItems, Request
from penstock.wire.res01.codes import CODES, RETRIES, STORAGE, UNEXPECTED

SENTENCE_CHARS_MAX: Final = 4096
"""Longer than any sentence with names in it; what is longer is not compared."""

_UNTOLD: Final = (errors.Busy, errors.TimedOut, errors.ResultUnreadable, errors.FunctionTimedOut)
"""Errors whose sentences are those of another one, which comes in their place."""
_PLACE: Final = 0xE000
"""The first of the characters that stand for fields while a sentence is taken apart; they have no other meaning."""
_NUMBER: Final = "(-?[0-9]{1,19})"
_TEXT: Final = "(.*?)"


class Sentence(NamedTuple):
    """What an error says, with places where its fields are."""

    kind: type[PenstockError]
    pattern: re.Pattern[str]
    is_number: tuple[bool, ...]
    order: tuple[int, ...]
    weight: tuple[int, int]
    """How much of it is fixed: up to the first field, and in all."""

    def said(self, sentence: str) -> PenstockError | None:
        """The error that says this, if it is of this kind."""
        found = self.pattern.fullmatch(sentence)
        if found is None:
            return None
        values = dict(zip(self.order, found.groups(), strict=True))
        make = cast("Callable[..., PenstockError]", self.kind)
        error = make(*(int(values[at]) if number else values[at] for at, number in enumerate(self.is_number)))
        # A number may have been written otherwise than errors write it.
        return error if str(error) == sentence else None


def error_of(code: int, sentence: str, request: Request | None = None) -> PenstockError:
    """The exception that an ER tells of, in answer to a request."""
    if (said := _said(_BY_CODE.get(code, ()), sentence)) is not None:
        return said
    if code == STORAGE and isinstance(request, CreateIterator | NextItems):
        # What is wrong with a function is said in the words of its author's language.
        return FunctionFailed(sentence)
    return Refused(code, sentence, RETRIES.get(code, Retry.UNKNOWN))


def error_of_reason(reason: str) -> PenstockError:
    """The exception that a sentence tells of where no code came with it."""
    return _said(_ALL, reason) or Refused(STORAGE, reason)


def _said(known: Iterable[Sentence], sentence: str) -> PenstockError | None:
    if len(sentence) > SENTENCE_CHARS_MAX:
        return None
    return next(filter(None, (each.said(sentence) for each in known)), None)


# --- the sentences that there are -----------------------------------------------------------------------------


def _sentences(code: int) -> list[Sentence]:
    """Those of a code, the most particular first."""
    return _particular_first(_sentence(kind) for kind, own in CODES.items() if own == code and _is_told(kind))


def _is_told(kind: type[PenstockError]) -> bool:
    """Whether a server can say so. Of what has no code of its own, only Unexpected comes over a wire."""
    return kind not in _UNTOLD and (CODES[kind] != UNEXPECTED or kind is Unexpected)


def _sentence(kind: type[PenstockError]) -> Sentence:
    """Have an error speak with places for fields, and see what is around them."""
    is_number = tuple(field.type in (int, int | None) for field in fields(kind))
    text = str(cast("Callable[..., PenstockError]", kind)(*(chr(_PLACE + at) for at in range(len(is_number)))))
    order = tuple(_places(text, len(is_number)))
    pattern = re.escape(text)
    for at, number in enumerate(is_number):
        pattern = pattern.replace(chr(_PLACE + at), _NUMBER if number else _TEXT)
    first = min((text.index(chr(_PLACE + at)) for at in order), default=len(text))
    return Sentence(kind, re.compile(pattern, re.DOTALL), is_number, order, (first, len(text) - len(order)))


def _places(text: str, count: int) -> Iterator[int]:
    """The fields in the order in which the sentence has them."""
    return (at for at in (ord(char) - _PLACE for char in text) if 0 <= at < count)


def _particular_first(sentences: Iterable[Sentence]) -> list[Sentence]:
    # One without a fixed word could say anything.
    return sorted((each for each in sentences if each.weight[1]), key=lambda each: each.weight, reverse=True)


_BY_CODE: Final = {code: _sentences(code) for code in sorted(set(CODES.values()))}
_ALL: Final = _particular_first(each for sentences in _BY_CODE.values() for each in sentences)
