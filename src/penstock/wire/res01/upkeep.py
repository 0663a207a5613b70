"""Commands that erase events for good, and list what was erased. In the text dialect only."""

from typing import Final

from penstock.model import Erased, EraseStream, EraseSubject, ErasurePage, ListErasures
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, one, paged, text_time, texts
from penstock.wire.res01.exchange import Frames
from penstock.wire.res01.fields import Fields


def erase_stream(fields: Fields, _dialect: Dialect) -> Asked:
    """ES."""
    context, stream = fields.text("Context"), fields.text("Stream")
    return (EraseStream(context, stream, fields.number_or_none("Last") if fields.left else None),), _ERASED


def erase_subject(fields: Fields, _dialect: Dialect) -> Asked:
    """EJ."""
    subject, context, position = fields.text("Subject"), fields.text_or_none("Context"), fields.number("Position")
    last = fields.number_or_none("Last") if fields.left else None
    return (EraseSubject(subject, context, position, last),), _ERASED


def list_erasures(fields: Fields, _dialect: Dialect) -> Asked:
    """EL."""
    request = ListErasures(fields.number_or_none("After") or 0, fields.number_or_none("Limit"))

    def write(page: ErasurePage) -> Frames:
        rows = (
            texts(e.id, e.context, e.stream, e.events, text_time(e.requested), text_time(e.finished), e.damaged)
            for e in page.erasures
        )
        return paged(b"LE", page.end, rows)

    return (request,), one(ErasurePage, write)


_ERASED: Final = one(Erased, lambda erased: [b"SE", *texts(erased.events, erased.next, erased.end)])

UPKEEP: Final[dict[bytes, Command]] = {
    b"ES": Command(erase_stream, b"SE"),
    b"EJ": Command(erase_subject, b"SE"),
    b"EL": Command(list_erasures, b"LE"),
}
