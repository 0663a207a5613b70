"""Every command on every gate: without a credential, with a wrong, expired or revoked one, elsewhere, and rightly.

The commands come from the tables of the wires. A new one needs its row in `ELSEWHERE`, or a test here fails.
"""

import contextlib
import json
import time
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

import penstock
from penstock import errors
from penstock.engine.access import NEEDED, UNKNOWN
from penstock.errors import NotAllowed, NotAuthenticated, PenstockError
from penstock.model import Limits, now_ticks
from penstock.model.times import TICKS_PER_MS
from penstock.wire.codes import ERROR_CODES, RemitsCode
from penstock.wire.remits.operations import OPERATIONS
from penstock.wire.res01.commands import BINARY_COMMANDS, OWN_COMMANDS, OWN_ONLY, TEXT_COMMANDS
from penstock.wire.res01.dialects import OWN_TAG, error_of
from penstock.wire.res01.messages import fields_of
from tests.gates.mq_client import Disconnected, MqClient
from tests.gates.remits_client import LOG_LIST, TOKEN, Remits
from tests.gates.res_client import PATIENCE_S, Client, Older
from tests.gates.res_frames import an_event
from tests.gates.serving import Served
from tests.principals import closed, issue, put
from tests.wire.remits_samples import SAMPLES as REMITS_SAMPLES
from tests.wire.sample_parts import BINARY, TEXT
from tests.wire.samples import SAMPLES

ELSEWHERE_GRANTS: Final = "read,append,consume,admin:elsewhere read,append:log:elsewhere"
ALLOWED: Final = PenstockError
"""In the place of the class of a refusal: the command is carried out, or fails for what it asks."""


def each(names: str, kind: type[PenstockError]) -> dict[str, type[PenstockError]]:
    return dict.fromkeys(names.split(), kind)


ELSEWHERE: Final[dict[str, type[PenstockError]]] = {
    **each("AC AB AF TX TB RA RF QS QF QB GE GF TP LS RS SS SQ SW SF SD SB ES ZS NL XL GL ML", NotAllowed),
    **each("PP XP IT AK XK LP LK RM SM", NotAllowed),
    **each("AQ AW KF KD KX RQ RT RK DR DL DP DE DB RP QP QN QD QY QX QV", errors.QueueNotFound),
    **each("FE FW FF FB XS", errors.SubscriptionNotFound),
    **each("XI GI NX BB BM BP BO BI BD", errors.IteratorNotFound),
    **each("NI", errors.LogNotFound),
    **each("ZP", errors.StageLost),
    **each("AU", NotAuthenticated),
    **each("PS EJ LC LQ LU GQ GU GS LL LI EL ZD WI HI", ALLOWED),
}
"""What a principal gets that may do everything, but in another place."""
FREE: Final = ("WI", "HI")
"""They need no right. Everybody may try a token, too."""


IN_OTHER_FRAMES: Final = {"AB": "AF", "TB": "TX", "QB": "QF", "FB": "FF", "SB": "SD"}
"""Commands of our own dialect that differ from another one in how their events are encoded."""


class Asked(NamedTuple):
    """A command as a gate gets it, and how many answers it has."""

    name: str
    tag: bytes
    payload: list[bytes]
    answers: int


def asked(name: str, dialect: str, tag: bytes) -> Asked:
    found = next(one for one in SAMPLES if (one.dialect, one.command) == (dialect, name))
    return Asked(name, tag, found.payload, len(found.answers))


def own_only(code: bytes) -> Asked:
    name = code.decode()
    if name == "HI":
        return Asked(name, OWN_TAG, [b"1", b"test", b"0"], 1)
    request = next(one for one in SAMPLES if (one.dialect, one.command) == (TEXT, IN_OTHER_FRAMES[name]))
    found, *payload = fields_of(request.requests[0])
    assert found == code
    return Asked(name, OWN_TAG, payload, 1)


TEXTS: Final = [asked(code.decode(), TEXT, b"Res01") for code in TEXT_COMMANDS]
OWNS: Final = [one._replace(tag=OWN_TAG) for one in TEXTS] + [own_only(command.code) for command in OWN_ONLY]
BINARIES: Final = [asked(code.decode(), BINARY, b"RC0.1") for code in BINARY_COMMANDS]
EVERY: Final = [*TEXTS, *OWNS, *BINARIES]

ROUTING: Final = (b"behind a broker",)


NO_CODE: Final = b""
Answers = dict[tuple[str, bytes], list[tuple[bytes, list[bytes]]]]
"""By command and tag."""


class Guarded(NamedTuple):
    served: Served
    tokens: dict[str, str]

    def root(self) -> penstock.Client:
        return penstock.connect(f"penstock://{self.served.mq}", token=self.tokens["root"])


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    data: Path = tmp_path_factory.mktemp("matrix") / "store"
    token = closed(data, elsewhere=ELSEWHERE_GRANTS, leaving="all")
    tokens = {name: token(name) for name in ("root", "elsewhere", "leaving")}
    served = Served(data, "--poll-wait-ms-max", "1")
    with contextlib.closing(served.client()):
        pass
    made = Guarded(served, tokens)
    with made.root() as root:
        put(root, "late", "all")
        soon = now_ticks() + 300 * TICKS_PER_MS
        tokens["expired"] = issue(root, "late", expires=soon).token
        while now_ticks() <= soon:
            time.sleep(0.01)
    tokens["wrong"] = tokens["root"][:-1] + ("A" if tokens["root"][-1] != "A" else "B")
    yield made
    served.end()


def sender(guarded: Guarded, gate: str, routing: tuple[bytes, ...] = ()) -> Client:
    if gate == "mq":
        return MqClient(guarded.served.mq)
    return Client(guarded.served.res, routing=routing)


def authenticate(client: Client, token: str) -> PenstockError | None:
    client.send_frames([*client.routing, b"", OWN_TAG, b"AU", b"authenticate", token.encode()])
    answer = client.receive()
    return error_of(answer.details[0]) if answer.command == b"ER" else None


def answers_of(client: Client, every: Sequence[Asked]) -> Answers:
    """All answers, asked for at once: the command and the details of each."""
    found: Answers = {(one.name, one.tag): [] for one in every}
    for number, one in enumerate(every):
        request_id = b"%016d" % number
        client.send_frames([*client.routing, b"", one.tag, one.name.encode(), request_id, *one.payload])
    due = sum(one.answers for one in every)
    while due:
        answer = client.receive()
        one = every[int(answer.request_id)]
        if answer.command == b"ST":
            # One answer with a reason for each subscription, and no code.
            texts = [[reason] if one.tag == OWN_TAG else [NO_CODE, reason] for reason in answer.details[1:]]
            found[one.name, one.tag] = [(b"ER" if text[-1] else b"ST", text) for text in texts]
        else:
            found[one.name, one.tag].append((answer.command, answer.details))
        # A refusal of the whole message is one answer.
        due -= 1 if answer.command != b"ER" or one.name in ("FE", "FW", "FF", "FB", "PS", "SS") else one.answers
    return found


def check(found: Answers, one: Asked, error: PenstockError) -> None:
    """An error, as the dialect of the command says it: class and fields, or code and sentence."""
    for command, details in found[one.name, one.tag]:
        assert command == b"ER", one
        if one.tag == OWN_TAG:
            said = error_of(details[0])
            assert (type(said), vars(said), str(said)) == (type(error), vars(error), str(error)), one
        else:
            code = ERROR_CODES[type(error)][0]
            assert details[0] in (b"%d" % code, NO_CODE), one
            assert details[1] == str(error).encode(), one
    assert found[one.name, one.tag], one


# --- the table has all --------------------------------------------------------------------------------------------


def test_every_command_has_a_row() -> None:
    assert set(ELSEWHERE) == {code.decode() for code in OWN_COMMANDS}
    assert {one.name for one in BINARIES} <= set(ELSEWHERE)


# --- Res01 --------------------------------------------------------------------------------------------------------


def check_nobody(found: Answers) -> None:
    for one in EVERY:
        if one.name in FREE:
            assert [command for command, _ in found[one.name, one.tag]] == [b"IA" if one.name == "WI" else b"HO"]
        else:
            check(found, one, NotAuthenticated(UNKNOWN if one.name == "AU" else NEEDED))


@pytest.mark.parametrize("gate", ["res", "mq"])
@pytest.mark.parametrize("credential", ["none", "wrong", "expired"])
def test_without_a_valid_credential_every_command_is_refused_alike(
    guarded: Guarded, gate: str, credential: str
) -> None:
    with contextlib.closing(sender(guarded, gate)) as client:
        if credential != "none":
            refused = authenticate(client, guarded.tokens[credential])
            assert isinstance(refused, NotAuthenticated)
            assert ("has expired" in str(refused)) == (credential == "expired")
        check_nobody(answers_of(client, EVERY))


@pytest.mark.parametrize("gate", ["res", "mq"])
def test_in_the_wrong_place_every_command_says_only_what_it_would_say_of_nothing(guarded: Guarded, gate: str) -> None:
    with contextlib.closing(sender(guarded, gate)) as client:
        assert authenticate(client, guarded.tokens["elsewhere"]) is None
        # Last, since it would be another sender then; it is not, because the token is wrong.
        found = answers_of(client, EVERY)
    classes = {}
    for one in OWNS:
        refusals = [error_of(details[0]) for command, details in found[one.name, one.tag] if command == b"ER"]
        expected = ELSEWHERE[one.name]
        if expected is ALLOWED:
            assert not any(isinstance(error, NotAllowed | NotAuthenticated) for error in refusals), one
            continue
        assert refusals, one
        assert {type(error) for error in refusals} == {expected}, one
        classes[one.name] = refusals
    for one in TEXTS:
        for error, (command, details) in zip(classes.get(one.name, []), found[one.name, one.tag], strict=False):
            assert command == b"ER"
            assert details[0] in (b"%d" % ERROR_CODES[type(error)][0], NO_CODE), one
            assert details[1] == str(error).encode(), one
    place = classes["QS"][0]
    assert isinstance(place, NotAllowed)
    assert (place.principal, place.right, place.place) == ("elsewhere", "read", "shop/order-1")
    assert str(place).encode() == found["QS", b"Res01"][0][1][1]
    assert found["QS", b"Res01"][0][1][0] == b"12"


@pytest.mark.parametrize("gate", ["res", "mq"])
def test_with_the_right_credential_no_command_is_refused(guarded: Guarded, gate: str) -> None:
    with contextlib.closing(sender(guarded, gate)) as client:
        assert authenticate(client, guarded.tokens["root"]) is None
        found = answers_of(client, EVERY)
    for one in (one for one in EVERY if one.name != "AU"):
        for command, details in found[one.name, one.tag]:
            if command == b"ER" and one.tag == OWN_TAG:
                assert not isinstance(error_of(details[0]), NotAllowed | NotAuthenticated), one
            elif command == b"ER":
                assert details[0] != b"12", one


def test_once_revoked_a_sender_is_nobody_behind_a_broker_and_a_connection_of_its_own_ends(guarded: Guarded) -> None:
    with guarded.root() as root:
        put(root, "leaving", "all")
        tokens = [issue(root, "leaving").token for _ in range(2)]
        with contextlib.ExitStack() as stack:
            behind = stack.enter_context(contextlib.closing(sender(guarded, "res", ROUTING)))
            own = stack.enter_context(contextlib.closing(sender(guarded, "mq")))
            assert authenticate(behind, tokens[0]) is None
            assert authenticate(own, tokens[1]) is None
            started = time.monotonic()
            root.access.revoke("leaving")
            with pytest.raises(Disconnected):
                own.receive()
            assert time.monotonic() - started < 1.0
            check_nobody(answers_of(behind, EVERY))
            with contextlib.closing(sender(guarded, "mq")) as again:
                assert str(authenticate(again, tokens[1])) == UNKNOWN
                check_nobody(answers_of(again, EVERY))


@pytest.mark.parametrize(
    ("credential", "result"),
    [("none", "12"), ("wrong", "12"), ("expired", "12"), ("elsewhere", "12"), ("root", "")],
)
def test_the_gate_with_the_older_results_has_the_refusal_in_its_result(
    guarded: Guarded, credential: str, result: str
) -> None:
    with Older(guarded.served.res_legacy) as client:
        if credential != "none":
            refused = authenticate(client, guarded.tokens[credential])
            assert (refused is None) == (credential in ("elsewhere", "root"))
        found = client.try_append("older", "s", -1, an_event())
        assert (found.result, bool(found.error), bool(found.commit.int)) == (result, bool(result), not result)


# --- Remits -------------------------------------------------------------------------------------------------------

REMITS_ELSEWHERE: Final = {
    **dict.fromkeys(("Log Show", "Log Add", "Log Delete", "Message Add"), RemitsCode.NotAllowed),
    "Iterator Add": RemitsCode.LogDoesNotExist,
    **dict.fromkeys(("Iterator Next", "Iterator Delete"), RemitsCode.ItrDoesNotExist),
    **dict.fromkeys(("Log List", "Iterator List"), None),
    "Token": RemitsCode.NotAllowed,
}


def remits_codes(remits: Remits) -> dict[str, int | None]:
    """The error of each operation, or None."""
    found: dict[str, int | None] = {}
    for operation in OPERATIONS.values():
        sample = next(one for one in REMITS_SAMPLES if type(one.request) is operation.request)
        answer = remits.ask_frame(sample.sent)
        found[operation.name] = answer.failure().code if answer.kind != 0 and is_error(answer) else None
    return found


def is_error(answer: Any) -> bool:
    return int(answer.kind) == 3


@pytest.mark.parametrize("credential", ["none", "wrong", "expired", "elsewhere", "root"])
def test_every_operation_of_remits(guarded: Guarded, credential: str) -> None:
    with Remits(guarded.served.remits) as remits:
        if credential != "none":
            answer = remits.ask(32, {"token": guarded.tokens[credential]})
            assert is_error(answer) == (credential in ("wrong", "expired"))
        found = remits_codes(remits)
    assert found.keys() == REMITS_ELSEWHERE.keys()
    if credential == "elsewhere":
        assert found == REMITS_ELSEWHERE
    elif credential == "root":
        assert [name for name, code in found.items() if code == RemitsCode.NotAllowed] == ["Token"]
    else:
        assert set(found.values()) == {RemitsCode.NotAllowed}


# --- HTTP ---------------------------------------------------------------------------------------------------------

HTTP: Final = {
    ("GET", "/"): {"none": 200, "wrong": 200, "expired": 200, "elsewhere": 200, "root": 200},
    ("GET", "/health"): {"none": 200, "wrong": 401, "expired": 401, "elsewhere": 200, "root": 200},
    ("GET", "/metrics"): {"none": 401, "wrong": 401, "expired": 401, "elsewhere": 403, "root": 200},
    ("GET", "/sessions"): {"none": 401, "wrong": 401, "expired": 401, "elsewhere": 403, "root": 200},
    ("DELETE", "/sessions/mq-1"): {"none": 401, "wrong": 401, "expired": 401, "elsewhere": 403, "root": 404},
}


@pytest.mark.parametrize("credential", ["none", "wrong", "expired", "elsewhere", "root"])
def test_every_page_of_http(guarded: Guarded, credential: str) -> None:
    headers = {} if credential == "none" else {"authorization": f"Bearer {guarded.tokens[credential]}"}
    with contextlib.closing(HTTPConnection(guarded.served.http, timeout=PATIENCE_S)) as connection:
        for (method, path), statuses in HTTP.items():
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            said = answer.read()
            assert answer.status == statuses[credential], (method, path, said)
            if answer.status == 401:
                assert answer.headers["www-authenticate"] == "Bearer"
            if path == "/health" and answer.status == 200:
                assert ("store_id" in json.loads(said)) == (credential != "none")


def test_http_repeats_nothing_that_may_be_a_token(guarded: Guarded) -> None:
    token = guarded.tokens["root"]
    for said in (token, f"Bearer{token}", f"Basic {token}", f"Bearer {token} {token}"):
        with contextlib.closing(HTTPConnection(guarded.served.http, timeout=PATIENCE_S)) as connection:
            connection.request("GET", "/metrics", headers={"authorization": said})
            answer = connection.getresponse()
            assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert token not in answer.read().decode()


# --- limits -------------------------------------------------------------------------------------------------------


def test_over_its_limit_a_principal_is_told_when_to_try_again_on_every_gate(guarded: Guarded) -> None:
    with guarded.root() as root:
        root.access.put("slow", ["read"], limits=Limits(requests_per_s_max=1))
        token = issue(root, "slow").token
    for gate in ("res", "mq"):
        with contextlib.closing(sender(guarded, gate)) as client:
            assert authenticate(client, token) is None
            asks = [Asked("WI", tag, [], 1) for tag in (OWN_TAG, b"Res01")] * 3
            for number, one in enumerate(asks):
                client.send_frames([b"", one.tag, b"WI", b"%016d" % number])
            refused = [answer for answer in (client.receive() for _ in asks) if answer.command == b"ER"]
        assert len(refused) >= 3
        for answer in refused:
            if answer.protocol == OWN_TAG:
                error = error_of(answer.details[0])
                assert isinstance(error, errors.OverLimit)
                assert (error.limit, error.maximum) == ("requests_per_s_max", 1)
                assert 0 < error.retry_after_ms <= 2000
            else:
                assert answer.details[0] == b"10"
    with contextlib.closing(HTTPConnection(guarded.served.http, timeout=PATIENCE_S)) as connection:
        statuses = []
        for _ in range(4):
            connection.request("GET", "/health", headers={"authorization": f"Bearer {token}"})
            page = connection.getresponse()
            page.read()
            statuses.append((page.status, page.headers["retry-after"]))
    assert (429, "1") in statuses or (429, "2") in statuses


def test_over_its_limit_a_principal_gets_server_busy_on_remits(guarded: Guarded) -> None:
    with guarded.root() as root:
        root.access.put("slow-remits", ["read"], limits=Limits(requests_per_s_max=1))
        token = issue(root, "slow-remits").token
    with Remits(guarded.served.remits) as remits:
        assert not is_error(remits.ask(TOKEN, {"token": token}))
        answers = [remits.ask(LOG_LIST) for _ in range(6)]
    assert {answer.failure().code for answer in answers if is_error(answer)} == {RemitsCode.ServerBusy}


def page(guarded: Guarded, method: str, path: str, token: str) -> tuple[int, str]:
    with contextlib.closing(HTTPConnection(guarded.served.http, timeout=PATIENCE_S)) as connection:
        connection.request(method, path, headers={"authorization": f"Bearer {token}"})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_metrics_count_what_each_principal_asks(guarded: Guarded) -> None:
    with guarded.root() as root:
        root.access.put("counted", ["read"])
        token = issue(root, "counted").token
    with contextlib.closing(sender(guarded, "mq")) as client:
        assert authenticate(client, token) is None
        answers_of(client, [one for one in OWNS if one.name == "WI"] * 3)
        _, text = page(guarded, "GET", "/metrics", guarded.tokens["root"])
    assert 'penstock_principal_requests_total{principal="counted"} 3.0' in text
    assert 'penstock_principal_busy_total{principal="counted"} 0.0' in text
    assert 'penstock_principal_connections{principal="counted"} 1.0' in text


# --- revoked, and cut off -----------------------------------------------------------------------------------------


def test_once_revoked_a_connection_of_remits_ends_and_http_says_unknown(guarded: Guarded) -> None:
    with guarded.root() as root, Remits(guarded.served.remits) as remits:
        put(root, "leaving-too", "all")
        token = issue(root, "leaving-too").token
        assert not is_error(remits.ask(TOKEN, {"token": token}))
        assert page(guarded, "GET", "/metrics", token)[0] == 200
        root.access.revoke("leaving-too")
        assert remits.is_closed()
        for path in ("/health", "/metrics", "/sessions"):
            status, said = page(guarded, "GET", path, token)
            assert (status, json.loads(said)) == (401, {"error": UNKNOWN})
        with Remits(guarded.served.remits) as again:
            assert is_error(again.ask(TOKEN, {"token": token}))
            assert set(remits_codes(again).values()) == {RemitsCode.NotAllowed}


def test_who_cuts_a_connection_off_is_in_the_audit(guarded: Guarded) -> None:
    with contextlib.closing(sender(guarded, "mq")), guarded.root() as root:
        _, said = page(guarded, "GET", "/sessions", guarded.tokens["root"])
        session = json.loads(said)["sessions"][0]["id"]
        assert page(guarded, "DELETE", f"/sessions/{session}", guarded.tokens["root"])[0] == 200
        *_, last = root.read_stream("$audit", "sessions")
        assert (last.type, json.loads(last.body)) == ("session-kicked", {"by": "root", "session": session})
