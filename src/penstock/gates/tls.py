"""The server's certificate, read again when its files change, and what a client's certificate says of it."""

import logging
import os
import ssl
import stat
import time
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Self

from penstock.errors import InvalidRequest
from penstock.model import CredentialKind
from penstock.settings import Settings

log = logging.getLogger(__name__)

CHECK_S: Final = 2.0
"""How often the server looks whether the files have changed."""
DAY_S: Final = 24 * 3600
FINGERPRINT: Final = "sha256:"
NAMES: Final = ("URI", "DNS")
"""Alternative names of a certificate that can stand for a principal, the more exact ones first."""


class ServerTls:
    """The contexts of new connections. Open ones keep theirs."""

    check_s = CHECK_S

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        """Raises InvalidRequest if they cannot be used."""
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._seen = self._stamps()
        self._context = self._load()
        self._checked = time.monotonic()

    @classmethod
    def of(cls, settings: Settings) -> Self | None:
        """None without TLS. Raises InvalidRequest."""
        cert, key, client_ca = settings.tls_cert, settings.tls_key, settings.tls_client_ca
        if cert is not None and key is not None:
            return cls(cert, key, client_ca)
        if cert is not None or key is not None:
            given, missing = ("tls_key", "tls_cert") if cert is None else ("tls_cert", "tls_key")
            raise InvalidRequest(missing, f"is missing: {given} is given, and TLS needs both files")
        if client_ca is not None:
            raise InvalidRequest("tls_client_ca", "needs TLS: give tls_cert and tls_key too, or leave it out")
        return None

    def current(self) -> ssl.SSLContext:
        """The context for a new connection. If the files have changed to ones that cannot be used, that of before."""
        now = time.monotonic()
        if now - self._checked < self.check_s:
            return self._context
        self._checked = now
        seen = self._stamps()
        if seen != self._seen:
            # Once for each change: a wrong file is not reported again and again.
            self._seen = seen
            try:
                self._context = self._load()
            except InvalidRequest as error:
                log.warning("the changed certificate is not used, and the one of before goes on: %s", error)
            else:
                log.info("new connections get the changed certificate of %s", self._cert)
        return self._context

    def _stamps(self) -> list[object]:
        return [None if path is None else _stamp(path) for path in (self._cert, self._key, self._client_ca)]

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
        # A resumed session skips the look at the client's certificate, and connections last long anyway. This is for
        # TLS 1.3. Python cannot turn it off for 1.2: see `certificate_ids`.
        context.num_tickets = 0
        _check_readable("tls_cert", self._cert)
        _check_key(self._key)
        try:
            # Without this, OpenSSL would ask for the password at the terminal.
            context.load_cert_chain(self._cert, self._key, password=_no_password)
        except ssl.SSLError as error:
            raise _unusable(error, self._cert, self._key) from None
        except ValueError:
            raise InvalidRequest(
                "tls_key", f"{self._key} has a password; write the key without one: openssl pkey -in KEY -out FILE"
            ) from None
        self._warn_of_expiry()
        if self._client_ca is not None:
            _check_readable("tls_client_ca", self._client_ca)
            try:
                context.load_verify_locations(self._client_ca)
            except ssl.SSLError:
                raise InvalidRequest("tls_client_ca", f"{self._client_ca} has no certificate in PEM") from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return context

    def _warn_of_expiry(self) -> None:
        until = expiry_of(self._cert)
        if until is None:
            return
        left, shown = until - time.time(), time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(until))
        if left < 0:
            log.warning("the certificate of %s expired on %s: clients refuse it; renew it", self._cert, shown)
        elif left < DAY_S:
            log.warning("the certificate of %s expires on %s: renew it", self._cert, shown)


def expiry_of(path: Path) -> float | None:
    """When the first certificate of a file expires, in seconds since 1970; None if the file does not say it."""
    # Only a peer's certificate is decoded by public functions. This one does it for files, in all versions of Python.
    decode: Any = getattr(ssl, "_ssl", None)
    try:
        return ssl.cert_time_to_seconds(decode._test_decode_cert(str(path))["notAfter"])
    except (AttributeError, KeyError, ValueError, OSError):
        return None


def certificate_ids(tls: ssl.SSLObject | None) -> list[str]:
    """The ids of credentials that a client's verified certificate may have: its fingerprint, then its names."""
    certificate = None if tls is None else tls.getpeercert()
    if not certificate:
        return []
    assert tls is not None
    until: Any = certificate["notAfter"]
    if ssl.cert_time_to_seconds(until) < time.time():
        # It was valid when the session began that TLS 1.2 has resumed. Only in date it still is: other authorities come
        # with another context, which knows no sessions of this one.
        return []
    alternatives: Any = certificate.get("subjectAltName", ())
    subject: Any = certificate.get("subject", ())
    names = [value for wanted in NAMES for kind, value in alternatives if kind == wanted]
    names += [value for part in subject for kind, value in part if kind == "commonName"]
    exact = f"{FINGERPRINT}{sha256(tls.getpeercert(binary_form=True) or b'').hexdigest()}"
    # An authority signs names, and must not be able to sign another certificate's fingerprint as one.
    names = [name for name in names if not name.lower().startswith(FINGERPRINT)]
    return [f"{CredentialKind.CERTIFICATE}:{name}" for name in dict.fromkeys((exact, *names))]


def _stamp(path: Path) -> object:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def _check_readable(setting: str, path: Path) -> None:
    try:
        with path.open("rb"):
            pass
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise InvalidRequest(
            setting, f"{path} cannot be read: {reason}; name a PEM file that the server may read"
        ) from None


def _check_key(path: Path) -> None:
    """Warn of a key that other users can read. A refusal would break containers, where secrets often are like that."""
    _check_readable("tls_key", path)
    if os.name == "posix" and path.stat().st_mode & stat.S_IROTH:
        log.warning("every user of this machine can read the key in %s: allow its owner only, chmod 600", path)


def _no_password() -> str:
    raise ValueError


def _unusable(error: ssl.SSLError, cert: Path, key: Path) -> InvalidRequest:
    if error.reason == "KEY_VALUES_MISMATCH":
        return InvalidRequest(
            "tls_key", f"{key} does not belong to the certificate in {cert}; give the key that it was issued for"
        )
    if error.reason in ("EE_KEY_TOO_SMALL", "CA_KEY_TOO_SMALL", "CA_MD_TOO_WEAK", "EE_MD_TOO_WEAK"):
        return InvalidRequest("tls_cert", f"{cert} is too weak for TLS; issue it with a longer key and SHA-256")
    if b"-----BEGIN CERTIFICATE-----" in cert.read_bytes():
        return InvalidRequest("tls_key", f"{key} has no private key in PEM that belongs to {cert}")
    return InvalidRequest("tls_cert", f"{cert} has no certificate in PEM; it begins with -----BEGIN CERTIFICATE-----")
