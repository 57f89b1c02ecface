"""Creates CAs and certificates without an Authority Key Identifier, as many clusters have them."""

from __future__ import annotations

import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Pair:
    cert: Path
    key: Path


def _openssl(*args: object) -> None:
    subprocess.run(["openssl", *map(str, args)], check=True, capture_output=True)


def authority(folder: Path, name: str = "ca") -> Pair:
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    settings = folder / f"{name}.cnf"
    settings.write_text(
        f"[req]\ndistinguished_name=dn\nprompt=no\nx509_extensions=v3\n[dn]\nCN={name}\n"
        "[v3]\nbasicConstraints=critical,CA:TRUE\nkeyUsage=critical,keyCertSign\nsubjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    _openssl("req", "-x509", *curve, "-keyout", pair.key, "-out", pair.cert, "-config", settings)
    return pair


def signed(folder: Path, ca: Pair, name: str, alternatives: str = "IP:127.0.0.1") -> Pair:
    """Creates a certificate for ``alternatives`` (subjectAltName), signed by ``ca``."""
    pair = Pair(folder / f"{name}.crt", folder / f"{name}.key")
    request, extensions = folder / f"{name}.csr", folder / f"{name}.ext"
    extensions.write_text(
        f"subjectAltName={alternatives}\nbasicConstraints=CA:FALSE\nsubjectKeyIdentifier=none\nauthorityKeyIdentifier=none\n"
    )
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl("req", "-new", *curve, "-keyout", pair.key, "-out", request, "-subj", f"/CN={name}")
    sign = ("-CA", ca.cert, "-CAkey", ca.key, "-set_serial", "1", "-days", "2", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, "-out", pair.cert, *sign)
    return pair


def server_side(pair: Pair, clients: Path | None = None) -> ssl.SSLContext:
    """Returns the TLS context of a server. With ``clients``, it accepts only client certificates that this CA has signed."""
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pair.cert, pair.key)
    if clients:
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.load_verify_locations(clients)
    return tls
