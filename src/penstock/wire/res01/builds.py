"""Commands of builds: the output of an iterator that is computed elsewhere. In the text dialect only.

What chunks are, and whether their items are CBOR, is for the engine to say.
"""

from typing import Final

from penstock.model import (
    BeginBuild,
    BuildStart,
    Done,
    DropOutput,
    FindMessage,
    Found,
    Installed,
    InstallOutput,
    MessagePage,
    ReadMessages,
    StageOutput,
)
from penstock.wire.res01.commands import Asked, Command
from penstock.wire.res01.encoding import Dialect, one, texts
from penstock.wire.res01.exchange import Frames
from penstock.wire.res01.fields import Fields
from penstock.wire.res01.staging import winners


def begin_build(fields: Fields, _dialect: Dialect) -> Asked:
    """BB."""

    def write(start: BuildStart) -> Frames:
        what = (start.iterator, start.id, start.log, start.over, start.kind, start.function)
        limits = (start.call_ms_max, start.memory_bytes_max, start.result_bytes_max)
        return [b"BG", *texts(*what, start.source, start.items), start.state or b"", *texts(start.head, *limits)]

    return (BeginBuild(fields.text("Name")),), one(BuildStart, write)


def read_messages(fields: Fields, _dialect: Dialect) -> Asked:
    """BM."""
    name, number, ordinal = fields.text("Name"), fields.number("Id"), fields.number("Ordinal")

    def write(page: MessagePage) -> Frames:
        erased = [index for index, message in enumerate(page.messages) if message is None]
        head = texts(len(erased), *erased, len(page.messages))
        return [b"MB", *head, *(message or b"" for message in page.messages)]

    return (ReadMessages(name, number, ordinal, fields.number("Count")),), one(MessagePage, write)


def find_message(fields: Fields, _dialect: Dialect) -> Asked:
    """BP."""
    request = FindMessage(fields.text("Name"), fields.number("Id"), fields.number("Ordinal"))
    return (request,), one(Found, lambda found: [b"PT", *texts(found.position)])


def stage_output(fields: Fields, _dialect: Dialect) -> Asked:
    """BO."""
    number, part, attempt = fields.number("Id"), fields.number("Part"), fields.text("Attempt")
    first = fields.number("Number")
    chunks = tuple(fields.take(fields.count_to_end("ChunkCount", 1)))
    return (StageOutput(number, part, attempt, first, chunks),), _DONE


def install_output(fields: Fields, _dialect: Dialect) -> Asked:
    """BI."""
    name, number = fields.text("Name"), fields.number("Id")
    place = fields.number("Source"), fields.number("Items"), fields.number("Messages")
    state = fields.frame("State") or None
    return (InstallOutput(name, number, *place, winners(fields), state),), _INSTALLED


def drop_output(fields: Fields, _dialect: Dialect) -> Asked:
    """BD."""
    return (DropOutput(fields.number("Id")),), _DONE


_DONE: Final = one(Done, lambda _done: [b"OK"])
_INSTALLED: Final = one(Installed, lambda i: [b"BR", *texts(i.items, i.added, i.messages)])

BUILDS: Final[dict[bytes, Command]] = {
    b"BB": Command(begin_build, b"BG"),
    b"BM": Command(read_messages, b"MB"),
    b"BP": Command(find_message, b"PT"),
    b"BO": Command(stage_output, b"OK"),
    b"BI": Command(install_output, b"BR"),
    b"BD": Command(drop_output, b"OK"),
}
