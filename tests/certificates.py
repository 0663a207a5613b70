"""Certificates for tests of TLS: authorities, and what they sign."""

import ipaddress
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NOW: Final = datetime.now(UTC)
DAY: Final = timedelta(days=1)


class Files(NamedTuple):
    """A certificate and its key, in PEM."""

    cert: Path
    key: Path

    @property
    def fingerprint(self) -> str:
        found = x509.load_pem_x509_certificate(self.cert.read_bytes())
        return sha256(found.public_bytes(serialization.Encoding.DER)).hexdigest()

    def move_to(self, place: "Files") -> None:
        """Put it where another one is, as a renewal does."""
        self.key.replace(place.key)
        self.cert.replace(place.cert)


class Authority:
    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._name = _name(f"the {name} of a test")
        self._key = ec.generate_private_key(ec.SECP256R1())
        public = self._key.public_key()
        builder = _builder(self._name, self._name, NOW - DAY, NOW + 365 * DAY).public_key(public)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
        builder = builder.add_extension(
            x509.KeyUsage(False, False, False, False, False, True, True, False, False), critical=True
        )
        self.cert = folder / f"{name}.pem"
        self.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def issue(
        self,
        file: str,
        *names: str,
        common: str | None = None,
        begin: datetime = NOW - DAY,
        end: datetime = NOW + 30 * DAY,
        password: bytes | None = None,
    ) -> Files:
        """A certificate for DNS names, IP addresses and URIs."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name(common), self._name, begin, end).public_key(key.public_key())
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(name) for name in names]), False)
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        builder = builder.add_extension(issuer, critical=False)
        made = Files(self._folder / f"{file}.pem", self._folder / f"{file}.key")
        made.cert.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))
        lock: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            lock = serialization.BestAvailableEncryption(password)
        made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, lock))
        made.key.chmod(0o600)
        return made


def _builder(subject: x509.Name, issuer: x509.Name, begin: datetime, end: datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begin)
        .not_valid_after(end)
    )


def _name(common: str | None) -> x509.Name:
    return x509.Name([] if common is None else [x509.NameAttribute(NameOID.COMMON_NAME, common)])


def _alternative(name: str) -> x509.GeneralName:
    if "://" in name or name.startswith("sha256:"):
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
