"""Where a Penstock is: `penstock://HOST:PORT`, `zmq+tcp://HOST:PORT` or `sqlite:///DIR`."""

from typing import Final
from urllib.parse import SplitResult, urlsplit

from penstock.client.transport import Transport
from penstock.errors import BadUrl

MQ_PORT: Final = 8472
RES_PORT: Final = 8471
WAYS: Final = "say penstock://HOST:PORT, zmq+tcp://HOST:PORT or sqlite:///DIR"


def transport_to(url: str) -> Transport:
    """A transport to what a URL names; nothing is connected yet. Raises BadUrl."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BadUrl(url, str(error).lower()) from None
    if parts.scheme == "penstock":
        from penstock.client.mq import MqTransport  # noqa: PLC0415

        return MqTransport(url, _host(url, parts), MQ_PORT if port is None else port)
    if parts.scheme == "zmq+tcp":
        from penstock.client.zeromq import ZeromqTransport  # noqa: PLC0415

        host = _host(url, parts)
        shown = f"[{host}]" if ":" in host else host
        return ZeromqTransport(url, f"tcp://{shown}:{RES_PORT if port is None else port}")
    if parts.scheme == "sqlite":
        # An engine of one's own takes long to import, and most clients need none.
        from penstock.client.local import LocalTransport  # noqa: PLC0415

        return LocalTransport(url)
    raise BadUrl(url, WAYS)


def _host(url: str, parts: SplitResult) -> str:
    if not parts.hostname:
        raise BadUrl(url, f"it names no host; {WAYS}")
    if parts.path.strip("/") or parts.query or parts.fragment or parts.username:
        raise BadUrl(url, "there is something besides the host and the port")
    return parts.hostname
