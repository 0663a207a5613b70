"""TLS of the client: what a URL says of it, and the errors of handshakes, which say which side has to change what."""

import ssl
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.errors import CannotConnect, TlsFailed

PARAMETERS: Final = ("tls", "tls_ca", "tls_cert", "tls_key")
NO_CHECK_TIME: Final = 0x200000
"""OpenSSL's flag X509_V_FLAG_NO_CHECK_TIME, which Python's module does not name."""
LOOK_S_MAX: Final = 2.0
"""How long a second look at a refused certificate may take."""
EXPIRED, NOT_YET_VALID, HOST_MISMATCH, ADDRESS_MISMATCH, REVOKED = 10, 9, 62, 64, 23
UNTRUSTED: Final = frozenset((2, 18, 19, 20, 21, 24, 79))
"""OpenSSL's codes of certificates that no trusted authority has signed."""
HANDSHAKE_ERRORS: Final = (ssl.SSLError, ConnectionResetError, ConnectionAbortedError, BrokenPipeError)
"""The errors of a failed handshake. An attempt to reach the server raises others."""
NOT_TLS: Final = frozenset(("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG"))
"""OpenSSL's reasons when what the server sent is no TLS."""


class TlsOptions(NamedTuple):
    """Without `ca` the authorities of the system are trusted. `cert` and `key` are this client's own certificate."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def context(self, url: str) -> ssl.SSLContext:
        """Raises TlsFailed if a file cannot be used."""
        # The name in the certificate is always checked.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        if self.ca is None:
            context.load_default_certs()
        else:
            try:
                context.load_verify_locations(self.ca)
            except OSError as error:
                raise TlsFailed(url, f"tls_ca {self.ca} {_why_unusable(error)}") from None
            # So the file may also have the server's own certificate.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key, password=_no_password)
            except OSError as error:
                if self.key is None and isinstance(error, ssl.SSLError):
                    raise TlsFailed(
                        url, f"tls_cert {self.cert} cannot be used: it must be PEM, with the key in it or in tls_key"
                    ) from None
                raise TlsFailed(url, f"tls_cert {self.cert} with its key {_why_unusable(error)}") from None
            except ValueError:
                raise TlsFailed(url, f"tls_key {self.key or self.cert} has a password: write it without one") from None
        return context


def tls_options(query: str) -> TlsOptions | None:
    """The options in the query of a URL; None without TLS. Raises ValueError with the reason."""
    if not query:
        return None
    found: dict[str, str] = {}
    for part in query.split("&"):
        name, is_given, value = part.partition("=")
        if name not in PARAMETERS:
            raise ValueError(f"it has an unknown parameter; there are {', '.join(PARAMETERS)}")
        if name in found:
            raise ValueError(f"it has {name} twice")
        if name == "tls" and is_given:
            raise ValueError("tls has no value: write ?tls, or leave it out for plain text")
        if name != "tls" and not value:
            raise ValueError(f"{name} needs a file: {name}=FILE")
        found[name] = unquote(value)
    # A file without `tls` is taken as TLS: the safe reading of the two.
    if "tls_key" in found and "tls_cert" not in found:
        raise ValueError("tls_key needs tls_cert")
    return TlsOptions(found.get("tls_ca"), found.get("tls_cert"), found.get("tls_key"))


def handshake_error(
    url: str, host: str, port: int, error: OSError, seen: dict[str, Any] | None = None
) -> CannotConnect | TlsFailed:
    """The error for a failed handshake. `seen` is the server's certificate, if another look has found it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return TlsFailed(url, _mistrust(host, error, seen or {}))
    if isinstance(error, ssl.SSLEOFError | ssl.SSLSyscallError | ConnectionError):
        # A server that is just stopped does so too: another attempt may help.
        return CannotConnect(
            url,
            f"the server at {host}:{port} ended the connection in the TLS handshake; "
            "if it does not speak TLS, drop ?tls or give the server --tls-cert and --tls-key",
        )
    reason: str = getattr(error, "reason", None) or ""
    if reason in NOT_TLS:
        return TlsFailed(
            url,
            f"the server at {host}:{port} does not speak TLS: drop ?tls, or give the server --tls-cert and --tls-key",
        )
    return alert_error(url, error) or TlsFailed(url, f"the handshake failed: {_words(reason) or error}")


def alert_error(url: str, error: OSError) -> TlsFailed | None:
    """The error if the server has refused this client inside TLS, in the handshake or with the first bytes after it."""
    reason = getattr(error, "reason", None) or ""
    if not isinstance(error, ssl.SSLError) or "ALERT" not in reason:
        return None
    said = _words(reason.partition("ALERT_")[2])
    if "VERSION" in reason:
        return TlsFailed(
            url, f"the server speaks no version of TLS that this client does ({said}): one of them is too old"
        )
    if "CERTIFICATE" in reason or "CA" in reason.split("_") or "EXPIRED" in reason:
        return TlsFailed(
            url,
            f"the server refused the client certificate ({said}): give one that an authority in its tls_client_ca "
            "has signed with tls_cert and tls_key, or leave them out and use a token",
        )
    return TlsFailed(url, f"the server refused the handshake ({said}); its log says why")


def plain_error(url: str) -> TlsFailed:
    """The error of a client without TLS whose server answers with TLS."""
    return TlsFailed(url, f"the server at {url.partition('://')[2]} speaks TLS: add ?tls")


def lenient(context: ssl.SSLContext) -> ssl.SSLContext:
    """The same context without looks at names and times, to learn what is wrong with them. Nothing is sent over it."""
    context.check_hostname = False
    context.verify_flags = ssl.VerifyFlags(int(context.verify_flags) | NO_CHECK_TIME)
    return context


def needs_another_look(error: OSError) -> bool:
    """Whether the certificate itself, which Python does not show after a refusal, says more than the error."""
    return isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in (
        EXPIRED,
        NOT_YET_VALID,
        HOST_MISMATCH,
        ADDRESS_MISMATCH,
    )


def _mistrust(host: str, error: ssl.SSLCertVerificationError, seen: dict[str, Any]) -> str:
    code = error.verify_code
    if code == EXPIRED:
        when = f" on {seen['notAfter']}" if "notAfter" in seen else ""
        return f"the certificate of {host} expired{when}: the server has to renew it"
    if code == NOT_YET_VALID:
        when = f" before {seen['notBefore']}" if "notBefore" in seen else " yet"
        return f"the certificate of {host} is not valid{when}: check the clocks of both sides"
    if code in (HOST_MISMATCH, ADDRESS_MISMATCH):
        names = [value for kind, value in seen.get("subjectAltName", ()) if kind in ("DNS", "IP Address")]
        whose = f"for {', '.join(names)}, not {host}" if names else f"not for {host}"
        return f"the certificate is {whose}: connect by a name that it has, or reissue it for this one"
    if code == REVOKED:
        return f"the certificate of {host} was revoked: the server has to get another"
    if code in UNTRUSTED:
        return f"the certificate of {host} is not trusted: give its CA with tls_ca=FILE"
    return f"the certificate of {host} is refused: {error.verify_message}"


def _why_unusable(error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        if error.reason == "KEY_VALUES_MISMATCH":
            return "do not belong together"
        return "cannot be used: it must be PEM"
    return f"cannot be read: {(error.strerror or str(error)).lower()}"


def _no_password() -> str:
    raise ValueError


def _words(reason: str) -> str:
    return reason.replace("_", " ").lower()
