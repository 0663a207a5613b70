"""One frame of every operation, and of every mistake that the page shows, with its request, reply and answer.

Bytes are written out here, not made by the codec under test. The page docs/protocols/remits.md shows the same frames.
"""

from dataclasses import dataclass
from typing import Final

from penstock.errors import FunctionFailed, IteratorNotFound, LogNotFound, NotCbor, PenstockError
from penstock.model import (
    AddMessages,
    Authenticate,
    CreateIterator,
    CreateLog,
    Done,
    DropIterator,
    DropLog,
    Identity,
    ItemPage,
    IteratorKind,
    ListIterators,
    ListLogs,
    LogSummary,
    Names,
    NextItems,
    Reply,
    Request,
    ShowLog,
)

CREATED: Final = 638_505_760_891_234_567
"""2024-05-06 07:08:09.1234567 in ticks; 1714979289 in whole Unix seconds."""
AMOUNT_42: Final = bytes.fromhex("a1 66616d6f756e74 182a")
AMOUNT_7: Final = bytes.fromhex("a1 66616d6f756e74 07")
FUNCTION: Final = "return msg.amount > 10"


@dataclass(frozen=True)
class Sample:
    """A frame as a client sends it, what it asks for (None: it is answered at once), and how it is answered."""

    title: str
    sent_hex: str
    request: Request | None
    reply: Reply | PenstockError | None
    answer_hex: str

    @property
    def sent(self) -> bytes:
        return bytes.fromhex(self.sent_hex)

    @property
    def answer(self) -> bytes:
        return bytes.fromhex(self.answer_hex)


def sample(title: str) -> Sample:
    return next(sample for sample in SAMPLES if sample.title == title)


SAMPLES: Final = [
    Sample(
        "Log Show",
        "000000130000 a1 686c6f675f6e616d65 666f7264657273",
        ShowLog("orders"),
        LogSummary("orders", CREATED, 2, 19, ["large"]),
        (
            "0000004a0200 "
            "00000044 a5 646e616d65 666f7264657273 6a637265617465645f6174 1a663881d9 "
            "6d6d6573736167655f636f756e74 02 656279746573 13 696974657261746f7273 81 656c61726765"
        ),
    ),
    Sample(
        "Log Add",
        "000000130001 a1 686c6f675f6e616d65 666f7264657273",
        CreateLog("orders"),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Log Delete",
        "000000130002 a1 686c6f675f6e616d65 666f7264657273",
        DropLog("orders"),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Log List",
        "000000020003",
        ListLogs(),
        Names(["orders", "parcels"]),
        "000000160200 00000010 82 666f7264657273 6770617263656c73",
    ),
    Sample(
        "Message Add",
        (
            "000000320004 "
            "a2 686c6f675f6e616d65 666f7264657273 686d65737361676573 82 4aa166616d6f756e74182a "
            "49a166616d6f756e7407"
        ),
        AddMessages("orders", (AMOUNT_42, AMOUNT_7)),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Message Add, one",
        (
            "000000320004 "
            "a3 686c6f675f6e616d65 666f7264657273 676d657373616765 4aa166616d6f756e74182a "
            "6a637265617465645f6174 f6"
        ),
        AddMessages("orders", (AMOUNT_42,)),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Iterator Add",
        (
            "0000006a0005 "
            "a5 686c6f675f6e616d65 666f7264657273 6d6974657261746f725f6e616d65 656c61726765 "
            "6d6974657261746f725f74797065 6666696c746572 6d6974657261746f725f66756e63 "
            "7672657475726e206d73672e616d6f756e74203e203130 67696e6465786564 f5"
        ),
        CreateIterator("large", "orders", IteratorKind.FILTER, FUNCTION, True),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Iterator Add, original",
        (
            "000000610005 "
            "a4 686c6f675f6e616d65 666f7264657273 6d6974657261746f725f6e616d65 656c61726765 "
            "6d6974657261746f725f6b696e64 6666696c746572 6d6974657261746f725f66756e63 "
            "7672657475726e206d73672e616d6f756e74203e203130"
        ),
        CreateIterator("large", "orders", IteratorKind.FILTER, FUNCTION, False),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Iterator List",
        "000000130006 a1 686c6f675f6e616d65 666f7264657273",
        ListIterators("orders"),
        Names(["large", "total"]),
        "000000160200 00000006 656c61726765 00000006 65746f74616c",
    ),
    Sample(
        "Iterator List, all",
        "000000020006",
        ListIterators(None),
        Names(["large"]),
        "0000000c0200 00000006 656c61726765",
    ),
    Sample(
        "Iterator Next",
        "0000002a0007 a3 6d6974657261746f725f6e616d65 656c61726765 6a6d6573736167655f6964 00 65636f756e74 0a",
        NextItems("large", 0, 10),
        ItemPage([AMOUNT_42]),
        "000000100200 0000000a a1 66616d6f756e74 182a",
    ),
    Sample(
        "Iterator Next, last",
        "0000002a0007 a3 6d6974657261746f725f6e616d65 65746f74616c 6a6d6573736167655f6964 20 65636f756e74 01",
        NextItems("total", -1, 1),
        ItemPage([b"\x18\x31"]),
        "000000080200 00000002 1831",
    ),
    Sample(
        "Iterator Next, end",
        "0000002a0007 a3 6d6974657261746f725f6e616d65 656c61726765 6a6d6573736167655f6964 01 65636f756e74 0a",
        NextItems("large", 1, 10),
        ItemPage([]),
        "000000020200",
    ),
    Sample(
        "Iterator Delete",
        "000000270008 a2 686c6f675f6e616d65 666f7264657273 6d6974657261746f725f6e616d65 656c61726765",
        DropIterator("orders", "large"),
        Done(),
        "000000050100 626f6b",
    ),
    Sample(
        "Token",
        "000000100020 a1 65746f6b656e 66733363726574",
        Authenticate("s3cret"),
        Identity("shop", ("read,append:log:orders",)),
        "000000050100 626f6b",
    ),
    Sample(
        "no such log",
        "000000140000 a1 686c6f675f6e616d65 676e6f7768657265",
        ShowLog("nowhere"),
        LogNotFound("nowhere"),
        "000000120300 6f4c6f67446f65734e6f744578697374",
    ),
    Sample(
        "no such iterator",
        "0000002c0007 a3 6d6974657261746f725f6e616d65 676e6f7768657265 6a6d6573736167655f6964 00 65636f756e74 01",
        NextItems("nowhere", 0, 1),
        IteratorNotFound("nowhere"),
        "000000120302 6f497472446f65734e6f744578697374",
    ),
    Sample(
        "not CBOR",
        "000000200004 a2 686c6f675f6e616d65 666f7264657273 686d65737361676573 81 42a161",
        AddMessages("orders", (b"\xa1a",)),
        NotCbor(0, "it ends too soon"),
        "000000120303 6f4d73674e6f7456616c696443626f72",
    ),
    Sample(
        "not binary",
        "000000230004 a2 686c6f675f6e616d65 666f7264657273 686d65737361676573 81 6568656c6c6f",
        None,
        None,
        "0000001a0312 774d73674669656c644e6f744f665479706542696e617279",
    ),
    Sample(
        "Lua",
        "0000002b0007 a3 6d6974657261746f725f6e616d65 6662726f6b656e 6a6d6573736167655f6964 00 65636f756e74 0a",
        NextItems("broken", 0, 10),
        FunctionFailed("attempt to compare nil with number", 3),
        (
            "000000430304 "
            "783f45727252756e6e696e674c75613a206174206d65737361676520333a20617474656d70742074 "
            "6f20636f6d70617265206e696c2077697468206e756d626572"
        ),
    ),
    Sample(
        "request code",
        "000000020009",
        None,
        None,
        "000000150307 72556e6b6e6f776e52657175657374436f6465",
    ),
    Sample(
        "kind",
        "000000020700",
        None,
        None,
        "000000130308 70556e6b6e6f776e4672616d654b696e64",
    ),
    Sample(
        "an answer",
        "000000050100 626f6b",
        None,
        None,
        "0000001d030a 78195365727665724f6e6c79416363657074735265717565737473",
    ),
    Sample(
        "type",
        (
            "000000530005 "
            "a4 686c6f675f6e616d65 666f7264657273 6d6974657261746f725f6e616d65 656c61726765 "
            "6d6974657261746f725f74797065 64736f7274 6d6974657261746f725f66756e63 "
            "6a72657475726e206d7367"
        ),
        None,
        None,
        "00000016030b 73436f756c644e6f74526561645061796c6f6164",
    ),
]
