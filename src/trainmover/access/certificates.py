"""Certificates for one deployment: an authority that lives for a minute, and what it signs.

What lives here: making keys and certificates in memory.  What never lives here: files, sockets.

The authority signs one certificate for the bus, with the names under which programs reach it, and
one for the links between machines, with one name for all (``topology.links.CERTIFICATE_NAME``): a
link's peer is known by the job's secret, so the name only says that this is a certificate for links
and not the bus's.  Then the authority's key is forgotten: nobody can sign a third one.  Making all
anew is one command.

Keys are on the curve P-256, as X.509 clients everywhere accept them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

from trainmover.errors import ConfigError
from trainmover.topology.links import CERTIFICATE_NAME

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

DAYS: Final = 825
"""Validity unless asked otherwise; some clients refuse more."""

SLACK: Final = timedelta(hours=1)
"""Certificates are valid this long before they are made: clocks differ."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, both in PEM."""

    certificate: bytes
    key: bytes


@dataclass(frozen=True, slots=True)
class Certificates:
    """Everything that was signed together.

    Attributes:
        authority: certificate of the authority, in PEM: what to trust.
        bus: for the NATS server.
        link: for the links between machines.
    """

    authority: bytes
    bus: Pair
    link: Pair


def make_certificates(hosts: Sequence[str], *, days: int = DAYS) -> Certificates:
    """Certificates for a bus that is reached under these names or addresses.

    Raises:
        ConfigError: there is no host, or the package ``cryptography`` is missing.
    """
    if not hosts:
        raise ConfigError("certificates need the name of the bus's host: give --host at least once")
    try:
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise ConfigError(
            "certificates are made with the package cryptography: pip install 'trainmover[tls]'"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = "TrainMover, authority of one deployment"
    authority = _sign(name, key.public_key(), name, key, days, (), authority=True)
    return Certificates(
        _pem(authority),
        _pair("bus", hosts, name, key, days),
        _pair("link", (CERTIFICATE_NAME,), name, key, days),
    )


def _pair(
    name: str, hosts: Sequence[str], issuer: str, issuer_key: EllipticCurvePrivateKey, days: int
) -> Pair:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    certificate = _sign(f"TrainMover, {name}", key.public_key(), issuer, issuer_key, days, hosts)
    encoded = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return Pair(_pem(certificate), encoded)


def _sign(
    subject: str,
    public: object,
    issuer: str,
    issuer_key: EllipticCurvePrivateKey,
    days: int,
    hosts: Sequence[str],
    *,
    authority: bool = False,
) -> x509.Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def named(text: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])

    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(named(subject))
        .issuer_name(named(issuer))
        .public_key(public)  # type: ignore[arg-type]
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(
            x509.BasicConstraints(ca=authority, path_length=0 if authority else None), critical=True
        )
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)  # type: ignore[arg-type]
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False
        )
        .add_extension(_usage(authority), critical=True)
    )
    if not authority:
        names = x509.SubjectAlternativeName([_general(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False
        )
    return builder.sign(issuer_key, hashes.SHA256())


def _usage(authority: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    from cryptography.hazmat.primitives import serialization

    return certificate.public_bytes(serialization.Encoding.PEM)
