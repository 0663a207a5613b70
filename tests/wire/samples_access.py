"""Samples of the commands about principals, tokens and other credentials."""

from typing import Final

from penstock.model import (
    AddCredential,
    Authenticate,
    Credential,
    Done,
    DropCredential,
    DropPrincipal,
    Identity,
    IssuedToken,
    IssueToken,
    Limits,
    ListCredentials,
    ListPage,
    ListPrincipals,
    PrincipalInfo,
    PutPrincipal,
    WhoAmI,
)
from tests.wire.sample_parts import LATER, NOW, TEXT, TICKS, Sample, time

ID: Final = "0a1b2c3d4e5f607182"
TOKEN: Final = f"{ID}.kS2hJ3sVbq0mY7cQwXn4uT8eRzL1pGdA9fN6iKoBvE0"
KEY: Final = "curve:rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
GRANTS: Final = ("read,append:shop", "consume:shop/order-*")
LIMITS: Final = Limits(requests_per_s_max=1000, staged_bytes_max=1 << 20)
LIMIT_FRAMES: Final = [b"", b"1000", b"", b"", b"1048576"]
IDENTITY: Final = Identity("shop", GRANTS, LATER, True, False)
IDENTITY_FRAMES: Final = [b"IA", b"shop", b"read,append:shop consume:shop/order-*", time(LATER), b"1", b"0"]
PRINCIPALS: Final = ListPage(
    [PrincipalInfo("ann", ("all:*",), Limits(), TICKS, TICKS), PrincipalInfo("shop", GRANTS, LIMITS, TICKS, NOW)], True
)
CREDENTIALS: Final = ListPage(
    [
        Credential(ID, "shop", "token", "", "ci", TICKS, LATER),
        Credential(KEY, "shop", "curve", "", "", TICKS),
    ],
    True,
)

ACCESS: Final = [
    Sample(TEXT, "AU", [TOKEN.encode()], (Authenticate(TOKEN),), [IDENTITY], [IDENTITY_FRAMES]),
    Sample(
        TEXT,
        "WI",
        [],
        (WhoAmI(),),
        [Identity("anonymous", ("all:*",))],
        [[b"IA", b"anonymous", b"all:*", b"", b"0", b"1"]],
    ),
    Sample(
        TEXT,
        "PP",
        [b"shop", b"read,append:shop consume:shop/order-*", *LIMIT_FRAMES, b"0"],
        (PutPrincipal("shop", GRANTS, LIMITS),),
        [Done()],
        [[b"OK"]],
    ),
    Sample(TEXT, "XP", [b"shop", b"1"], (DropPrincipal("shop", force=True),), [Done()], [[b"OK"]]),
    Sample(
        TEXT,
        "IT",
        [b"shop", b"ci", time(LATER), b"3600"],
        (IssueToken("shop", "ci", LATER, 3600),),
        [IssuedToken(ID, TOKEN, LATER)],
        [[b"TI", ID.encode(), TOKEN.encode(), time(LATER)]],
    ),
    Sample(
        TEXT,
        "AK",
        [b"shop", KEY.encode(), b"", b""],
        (AddCredential("shop", KEY),),
        [Done()],
        [[b"OK"]],
    ),
    Sample(TEXT, "XK", [ID.encode()], (DropCredential(ID),), [Done()], [[b"OK"]]),
    Sample(
        TEXT,
        "LP",
        [b"", b"100"],
        (ListPrincipals("", 100),),
        [PRINCIPALS],
        [
            [
                *(b"PL", b"1", b"2"),
                *(b"ann", b"all:*", time(TICKS), time(TICKS), b"", b"", b"", b"", b""),
                *(b"shop", b"read,append:shop consume:shop/order-*", time(TICKS), time(NOW), *LIMIT_FRAMES),
            ]
        ],
    ),
    Sample(
        TEXT,
        "LK",
        [b"shop", b"", b""],
        (ListCredentials("shop"),),
        [CREDENTIALS],
        [
            [
                *(b"KL", b"1", b"2"),
                *(ID.encode(), b"shop", b"token", b"ci", time(TICKS), time(LATER)),
                *(KEY.encode(), b"shop", b"curve", b"", time(TICKS), b""),
            ]
        ],
    ),
]
