"""Where a Penstock is: `penstock://HOST:PORT`, `zmq+tcp://HOST:PORT`, `sqlite:///DIR` or `postgresql://…`."""

from typing import Final
from urllib.parse import SplitResult, urlsplit

from penstock.client.transport import Transport
from penstock.errors import BadUrl

MQ_PORT: Final = 8472
RES_PORT: Final = 8471
WAYS: Final = "say penstock://HOST:PORT, zmq+tcp://HOST:PORT, sqlite:///DIR or postgresql://…"
LOCAL: Final = "sqlite:///"
SHARED: Final = ("postgresql://", "postgres://")


def transport_to(url: str) -> Transport:
    """A transport to what a URL names; nothing is connected yet. Raises BadUrl."""
    if not isinstance(url, str):
        raise BadUrl(repr(url), f"it is no text; {WAYS}")
    if url.startswith((LOCAL, *SHARED)):
        return _local(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(url, str(error).lower()) from None
    if parts.scheme == "penstock":
        from penstock.client.mq import MqTransport  # noqa: PLC0415

        return MqTransport(url, _host(url, parts), _port(url, port, MQ_PORT))
    if parts.scheme == "zmq+tcp":
        from penstock.client.zeromq import ZeromqTransport  # noqa: PLC0415

        return ZeromqTransport(url, _host(url, parts), _port(url, port, RES_PORT))
    raise BadUrl(url, WAYS)


def _local(url: str) -> Transport:
    if not url.removeprefix(LOCAL):
        raise BadUrl(url, f"it names no directory; {WAYS}")
    # An engine of one's own takes long to import, and most clients need none.
    from penstock.client.local import LocalTransport  # noqa: PLC0415

    return LocalTransport(url)


def _host(url: str, parts: SplitResult) -> str:
    if not parts.hostname:
        raise BadUrl(url, f"it names no host; {WAYS}")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise BadUrl(url, "there is something besides the host and the port")
    try:
        # Whoever looks it up would fail so, too, and be told nothing of the address.
        parts.hostname.encode("idna")
    except UnicodeError:
        raise BadUrl(url, "its host is no name that a host can have") from None
    return parts.hostname


def _port(url: str, port: int | None, usual: int) -> int:
    if port == 0:
        raise BadUrl(url, "port 0 is none to connect to")
    return usual if port is None else port
