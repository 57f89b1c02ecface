"""Creates the TLS certificate of the API server, because kubectl sends its token only over TLS.

The certificate is self-signed, so that clients can also trust it as their authority.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_FOR = dt.timedelta(days=365)
_NAME = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "dra local cluster")])
_USAGE = x509.KeyUsage(
    digital_signature=True,
    key_cert_sign=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def write(folder: Path, hosts: Sequence[str]) -> tuple[Path, Path]:
    """Writes ``ca.crt`` and ``server.key`` (mode 0600) to the folder, for the names and addresses in ``hosts``."""
    certificate, key = make(hosts)
    paths = folder / "ca.crt", folder / "server.key"
    for path, text, mode in zip(paths, (certificate, key), (0o644, 0o600), strict=True):
        temporary = path.with_name(f".{path.name}.new")
        temporary.unlink(missing_ok=True)  # A killed process may have left the temporary file.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w") as out:
            out.write(text)
        temporary.replace(path)
    return paths


def make(hosts: Sequence[str]) -> tuple[str, str]:
    """Returns a certificate and its key, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    identifier = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    now = dt.datetime.now(dt.UTC)
    builder = (
        x509.CertificateBuilder(_NAME, _NAME, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + _VALID_FOR)
        .add_extension(identifier, critical=False)
        # Python 3.13 requires the identifier of the authority.
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_USAGE, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([_host(h) for h in dict.fromkeys(hosts)]), critical=False)
    )
    certificate = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    return certificate.decode(), secret.decode()


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())
