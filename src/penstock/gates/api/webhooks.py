"""Webhooks in: other systems deliver messages, which become events of a stream.

A file names each webhook, as the setting `http_webhooks` says:

    [webhooks.payments]                  # POST /v1/webhooks/payments
    context = "shop"
    stream = "payments"
    principal = "payments"               # who appends, on a server that has principals
    secrets = ["whsec_…"]                # two of them while one replaces the other
    type = "Payment"                     # of messages that do not say theirs
    origins = ["example.com"]            # senders of CloudEvents that may deliver; "*" is any
    rate = 120                           # how many deliveries a minute such a sender may make

With secrets a message must be signed as Standard Webhooks says (HMAC-SHA256 over id, time and body). Without, its
sender needs a token as on every other route.
"""

import base64
import hmac
import json
import re
import time
import tomllib
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import UUID, uuid5

from penstock.engine.access import NOBODY
from penstock.errors import InvalidRequest, NotAuthenticated
from penstock.files import read_secret
from penstock.gates.api.call import Answer, Call
from penstock.gates.api.incoming import BATCH, BINARY, STRUCTURED, Parcel, fingerprint_of, kind_of, parcel_of
from penstock.gates.api.problems import Problem
from penstock.gates.api.routes import SHOWN_CHARACTERS_MAX
from penstock.gates.api.streams import appended
from penstock.model import IdempotencyKey, check_context, check_stream, check_type, new_event
from penstock.model.columns import columns_of
from penstock.model.events import compact
from penstock.settings import Settings

FILE_BYTES_MAX: Final = 1 << 20
BODY_BYTES_MAX: Final = 1 << 20
"""Bytes of one message. The server can check a signature only when it has the whole message."""
AGE_S_MAX: Final = 300
"""How far the time of a message may be from now, so that a recorded one cannot be sent again later."""
SECRET: Final = "whsec_"  # noqa: S105 - how a secret begins
SECRET_BYTES: Final = range(16, 65)
DEFAULT_TYPE: Final = "webhook"
IDS: Final = UUID("6f0ad0bb-5b0e-4b4c-8f1c-2a1e8d1f6c11")
"""Namespace of the ids of events, made from a webhook and the id of its message."""
ID_CHARACTERS_MAX: Final = 255
PARTS: Final = frozenset(("context", "stream", "principal", "secrets", "type", "origins", "rate"))
WRONG: Final = (
    "the signature of this message is not valid: sign it with the secret of this webhook, as Standard Webhooks says, "
    f"and not more than {AGE_S_MAX} seconds ago"
)
NO_PRINCIPAL: Final = "the webhook {} has no principal on this server; name one in the file of http_webhooks"
NO_TOKEN: Final = "this webhook has no secret, so its sender needs a token: send the header Authorization: Bearer TOKEN"  # noqa: S105


@dataclass(frozen=True, slots=True)
class Webhook:
    name: str
    context: str
    stream: str
    principal: str | None
    secrets: tuple[bytes, ...]
    type: str
    origins: tuple[str, ...]
    rate: int | None

    def __repr__(self) -> str:
        return f"Webhook({self.name!r}, secrets=…)"

    def verify(self, call: Call) -> str:
        """The id of a message with a valid signature. Raises NotAuthenticated."""
        number, when = call.headers.get("webhook-id", ""), call.headers.get("webhook-timestamp", "")
        is_fresh = re.fullmatch("[0-9]{1,12}", when) and abs(time.time() - int(when)) <= AGE_S_MAX
        signed = b".".join((number.encode("latin-1"), when.encode("latin-1"), call.body))
        shown = [text[3:] for text in call.headers.get("webhook-signature", "").split() if text.startswith("v1,")]
        ours = [base64.b64encode(hmac.digest(secret, signed, sha256)).decode() for secret in self.secrets]
        # Compare all, so that the time gives nothing away.
        is_signed = sum(hmac.compare_digest(one.encode(), text.encode()) for one in ours for text in shown)
        if not (is_fresh and is_signed and 0 < len(number) <= ID_CHARACTERS_MAX):
            raise NotAuthenticated(WRONG)
        return number


class Webhooks:
    """Those of the file. Raises InvalidRequest, without any secret in it, for a file that cannot be used."""

    def __init__(self, settings: Settings) -> None:
        path = settings.http_webhooks
        self.by_name: dict[str, Webhook] = {} if path is None else _read(path)

    def find(self, call: Call) -> Webhook:
        name = call.names["webhook"]
        found = self.by_name.get(name)
        if found is None:
            raise Problem(404, f"there is no webhook {name[:SHOWN_CHARACTERS_MAX]} here")
        return found


# --- routes ---------------------------------------------------------------------------------------------------


async def deliver(call: Call) -> Answer:
    """One message of a webhook becomes one event, or the CloudEvents that it has."""
    webhook = call.api.webhooks.find(call)
    call.bytes_max = min(BODY_BYTES_MAX, call.engine.settings.http_body_bytes_max)
    number: str | None = None
    if webhook.secrets:
        await call.read_body()
        number = webhook.verify(call)
        call.login = call.engine.access.for_one_request(None, webhook.principal)
        if call.login.principal is NOBODY:
            raise NotAuthenticated(NO_PRINCIPAL.format(webhook.name))
    else:
        await call.receive(NO_TOKEN)
    if (refusal := call.login.admit(len(call.body))) is not None:
        raise refusal
    return await appended(call, webhook.context, webhook.stream, _parcel(webhook, call, number))


async def handshake(call: Call) -> Answer:
    """Tell a sender of CloudEvents whether it may deliver here, so that third parties cannot make it flood others."""
    webhook = call.api.webhooks.find(call)
    origin = call.headers["webhook-request-origin"].strip().lower()
    if not origin or not ("*" in webhook.origins or origin in webhook.origins):
        raise Problem(403, f"{origin[:SHOWN_CHARACTERS_MAX]} may not deliver to this webhook")
    rate = "*" if webhook.rate is None else str(webhook.rate)
    headers = {"webhook-allowed-origin": origin, "webhook-allowed-rate": rate, "allow": "OPTIONS, POST"}
    return Answer(status=204, media=None, headers=headers)


def _parcel(webhook: Webhook, call: Call, number: str | None) -> Parcel:
    kind, place = kind_of(call.headers), (webhook.context, webhook.stream)
    if kind in (STRUCTURED, BATCH, BINARY):
        return parcel_of(kind, dict(call.headers), call.body, *place, None)
    if number is None:
        number = call.headers.get("webhook-id")
        if number is not None and not 0 < len(number) <= ID_CHARACTERS_MAX:
            raise InvalidRequest("webhook-id", f"must have 1 to {ID_CHARACTERS_MAX} characters")
    headers = {"content-type": kind} if kind else {}
    if number is None:
        event = new_event(_type_of(webhook, call.body), call.body, compact(headers) if headers else None)
        return Parcel(columns_of([event]), ())
    made = uuid5(IDS, f"{webhook.name}\n{number}").bytes
    headers["webhook-id"] = number
    event = new_event(_type_of(webhook, call.body), call.body, compact(headers), made)
    key = IdempotencyKey(f"webhook:{webhook.name}\n{number}", fingerprint_of(webhook.stream))
    return Parcel(columns_of([event]), (key,))


def _type_of(webhook: Webhook, body: bytes) -> str:
    """The type of a message, from its member `type`."""
    try:
        found: Any = json.loads(body)
        found = found.get("type") if isinstance(found, dict) else None
        return found if isinstance(found, str) and check_type(found) is None else webhook.type
    except (ValueError, RecursionError):
        return webhook.type


# --- the file -------------------------------------------------------------------------------------------------


def _read(path: Path) -> dict[str, Webhook]:
    try:
        document = tomllib.loads(read_secret(path, FILE_BYTES_MAX))
    except OSError as error:
        raise InvalidRequest("http_webhooks", f"{path} cannot be read: {(error.strerror or '').lower()}") from None
    except tomllib.TOMLDecodeError:
        # The parser's message may quote the file.
        raise InvalidRequest("http_webhooks", f"{path} is not TOML") from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest("http_webhooks", f"{path} {error}") from None
    tables = document.get("webhooks")
    if document.keys() != {"webhooks"} or not isinstance(tables, dict):
        raise InvalidRequest("http_webhooks", f"{path} must have tables [webhooks.NAME] and nothing else")
    return {name: _webhook(path, name, table) for name, table in tables.items()}


def _webhook(path: Path, name: str, table: object) -> Webhook:
    def wrong(member: str, reason: str) -> InvalidRequest:
        return InvalidRequest("http_webhooks", f"{path}: webhooks.{name}.{member} {reason}")

    if not isinstance(table, dict):
        raise InvalidRequest("http_webhooks", f"{path}: webhooks.{name} must be a table")
    if unknown := table.keys() - PARTS:
        raise wrong(min(unknown), f"is not known; there are {', '.join(sorted(PARTS))}")
    checks = {"context": check_context, "stream": check_stream, "type": check_type}
    table = {"type": DEFAULT_TYPE, **table}
    for member, check in checks.items():
        value = table.get(member)
        if not isinstance(value, str) or (reason := check(value)):
            raise wrong(member, reason if isinstance(value, str) and reason else "must be text")
    principal, rate = table.get("principal"), table.get("rate")
    if principal is not None and not isinstance(principal, str):
        raise wrong("principal", "must be the name of a principal")
    if rate is not None and (type(rate) is not int or rate < 1):
        raise wrong("rate", "must be a whole number from 1 on")
    secrets, origins = table.get("secrets", []), table.get("origins", [])
    for member, value in (("secrets", secrets), ("origins", origins)):
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise wrong(member, "must be a list of texts")
    keys = tuple(map(_secret, secrets))
    if None in keys:
        raise wrong("secrets", f"must each be {SECRET} and {SECRET_BYTES[0]} to {SECRET_BYTES[-1]} bytes in base64")
    return Webhook(
        name=name,
        context=table["context"],
        stream=table["stream"],
        principal=principal,
        secrets=tuple(key for key in keys if key is not None),
        type=table["type"],
        origins=tuple(origin.lower() for origin in origins),
        rate=rate,
    )


def _secret(text: str) -> bytes | None:
    try:
        found = base64.b64decode(text.removeprefix(SECRET), validate=True)
    except ValueError:
        return None
    return found if text.startswith(SECRET) and len(found) in SECRET_BYTES else None
