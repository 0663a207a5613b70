"""CURVE of the client: what a URL says of it, and the errors of handshakes, which say which side has to change what."""

from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import unquote

import zmq

from penstock.errors import CannotConnect, TlsFailed
from penstock.files import read_secret
from penstock.wire.curve import key_of, key_text, new_secret_key, public_key

PARAMETERS: Final = ("curve_server_key", "curve_key_file")
MISMATCH: Final = zmq.Event.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
"""The sides have different security mechanisms."""


class CurveOptions(NamedTuple):
    """The public key of the server, and the file with this client's own secret key; without one it gets a new key."""

    server_key: str
    key_file: Path | None = None

    def keys(self, url: str) -> dict[int, bytes]:
        """The options of a socket. Raises TlsFailed if the file cannot be used."""
        try:
            secret = new_secret_key() if self.key_file is None else key_of(read_secret(self.key_file).strip())
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise TlsFailed(url, f"curve_key_file {self.key_file} cannot be read: {reason}") from None
        except ValueError as error:
            raise TlsFailed(url, f"curve_key_file {self.key_file} {error}") from None
        return {
            zmq.CURVE_SERVERKEY: self.server_key.encode(),
            zmq.CURVE_PUBLICKEY: key_text(public_key(secret)).encode(),
            zmq.CURVE_SECRETKEY: key_text(secret).encode(),
        }


def curve_options(query: str) -> CurveOptions:
    """The options of CURVE in the query of a URL. Raises ValueError with the reason."""
    found: dict[str, str] = {}
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name not in PARAMETERS:
            raise ValueError(f"it has an unknown parameter; zmq+tcp:// has {', '.join(PARAMETERS)}")
        if name in found:
            raise ValueError(f"it has {name} twice")
        if not value:
            raise ValueError(f"{name} has no value")
        found[name] = unquote(value)
    if "curve_server_key" not in found:
        raise ValueError("curve_key_file needs curve_server_key, the public key of the server")
    try:
        key_of(found["curve_server_key"])
    except ValueError as error:
        raise ValueError(f"curve_server_key {error}; in a URL, & is %26, # is %23 and % is %25") from None
    file = found.get("curve_key_file")
    return CurveOptions(found["curve_server_key"], None if file is None else Path(file))


def handshake_error(url: str, event: int, value: int, *, has_curve: bool) -> CannotConnect | TlsFailed | None:
    """The error for what libzmq reports before a connection is ready; None if it was not made at all."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return TlsFailed(
            url,
            "the server takes only keys of its principals, and not this client's: name one with curve_key_file=FILE, "
            "or let an administrator give this one to a principal with --curve-key",
        )
    if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == MISMATCH:
        if has_curve:
            fix = "the server does not speak CURVE: give it --curve-secret-key FILE, or drop curve_server_key"
        else:
            fix = "the server speaks CURVE: add ?curve_server_key=KEY, the public key that its log names"
        return TlsFailed(url, fix)
    if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and has_curve:
        # A server that is just stopped does so too: another attempt may help.
        return CannotConnect(
            url,
            "the server ended the handshake of CURVE: check that curve_server_key is the public key that its log names",
        )
    return None
