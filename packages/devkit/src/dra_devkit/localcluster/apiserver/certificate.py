"""Creates the TLS certificate of the API server, because kubectl sends its token only over TLS.

The certificate is self-signed and has an ECDSA key on P-256. The code needs only the standard library.
Use the certificate for a development server on this machine only, because the arithmetic does not run in constant time.
Sources: FIPS 186-4 (the curve and the signature), RFC 5280 and RFC 5480 (the certificate), RFC 5915 (the key).
"""

from __future__ import annotations

import base64
import hashlib
import ipaddress
import os
import secrets
import time
from collections.abc import Sequence
from pathlib import Path

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_BYTES = 32  # length of a coordinate on the curve
_DAYS = 365
_NAME = "dra local cluster"
Point = tuple[int, int, int]  # Jacobian coordinates


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
    secret = 1 + secrets.randbelow(_N - 1)
    x, y = _affine(_times(secret, (*_G, 1)))
    public = b"\x04" + x.to_bytes(_BYTES) + y.to_bytes(_BYTES)
    body = _certificate_body(public, hosts)
    signed = _sequence(body, _sequence(_oid("1.2.840.10045.4.3.2")), _bits(_sign(secret, body)))
    key = _sequence(_integer(1), _tag(4, secret.to_bytes(_BYTES)), _tag(0xA0, _oid(_CURVE)), _tag(0xA1, _bits(public)))
    return _pem("CERTIFICATE", signed), _pem("EC PRIVATE KEY", key)


# --- the curve --------------------------------------------------------------------------------------


def _double(point: Point) -> Point:
    x, y, z = point
    if not y:
        return 0, 1, 0
    square = y * y % _P
    s = 4 * x * square % _P
    m = 3 * (x - z * z) * (x + z * z) % _P
    out = (m * m - 2 * s) % _P
    return out, (m * (s - out) - 8 * square * square) % _P, 2 * y * z % _P


def _plus(a: Point, b: Point) -> Point:
    if not a[2] or not b[2]:
        return b if not a[2] else a
    za, zb = a[2] * a[2] % _P, b[2] * b[2] % _P
    ua, ub = a[0] * zb % _P, b[0] * za % _P
    sa, sb = a[1] * zb * b[2] % _P, b[1] * za * a[2] % _P
    if ua == ub:
        return _double(a) if sa == sb else (0, 1, 0)
    h, r = ub - ua, sb - sa
    h2 = h * h % _P
    h3, v = h * h2 % _P, ua * h2 % _P
    x = (r * r - h3 - 2 * v) % _P
    return x, (r * (v - x) - sa * h3) % _P, h * a[2] * b[2] % _P


def _times(factor: int, point: Point) -> Point:
    out: Point = (0, 1, 0)
    for bit in bin(factor)[2:]:
        out = _double(out)
        if bit == "1":
            out = _plus(out, point)
    return out


def _affine(point: Point) -> tuple[int, int]:
    inverse = pow(point[2], -1, _P)
    return point[0] * inverse**2 % _P, point[1] * inverse**3 % _P


def _sign(secret: int, message: bytes) -> bytes:
    digest = int.from_bytes(hashlib.sha256(message).digest())
    while True:
        nonce = 1 + secrets.randbelow(_N - 1)
        r = _affine(_times(nonce, (*_G, 1)))[0] % _N
        s = pow(nonce, -1, _N) * (digest + r * secret) % _N
        if r and s:
            return _sequence(_integer(r), _integer(s))


# --- the certificate --------------------------------------------------------------------------------

_CURVE = "1.2.840.10045.3.1.7"


def _certificate_body(public: bytes, hosts: Sequence[str]) -> bytes:
    now = int(time.time())
    validity = _sequence(_time(now - 3600), _time(now + _DAYS * 86400))
    name = _sequence(_tag(0x31, _sequence(_oid("2.5.4.3"), _tag(0x0C, _NAME.encode()))))
    identifier = hashlib.sha1(public, usedforsecurity=False).digest()
    extensions = _sequence(
        _extension("2.5.29.14", _tag(4, identifier)),
        _extension("2.5.29.35", _sequence(_tag(0x80, identifier))),  # Python 3.13 requires it
        _extension("2.5.29.19", _sequence(_tag(1, b"\xff")), critical=True),
        _extension("2.5.29.15", b"\x03\x02\x02\x84", critical=True),  # may sign certificates and handshakes
        _extension("2.5.29.37", _sequence(_oid("1.3.6.1.5.5.7.3.1"))),
        _extension("2.5.29.17", _sequence(*map(_host, dict.fromkeys(hosts)))),
    )
    return _sequence(
        _tag(0xA0, _integer(2)),
        _integer(secrets.randbits(127) | 1 << 126),
        _sequence(_oid("1.2.840.10045.4.3.2")),
        name,
        validity,
        name,
        _sequence(_sequence(_oid("1.2.840.10045.2.1"), _oid(_CURVE)), _bits(public)),
        _tag(0xA3, extensions),
    )


def _host(host: str) -> bytes:
    try:
        return _tag(0x87, ipaddress.ip_address(host).packed)
    except ValueError:
        return _tag(0x82, host.encode("idna"))


def _extension(name: str, content: bytes, *, critical: bool = False) -> bytes:
    return _sequence(_oid(name), *([_tag(1, b"\xff")] if critical else []), _tag(4, content))


def _time(moment: int) -> bytes:
    return (
        _tag(0x18, time.strftime("%Y%m%d%H%M%SZ", time.gmtime(moment)).encode())
        if moment >= 2524608000
        else _tag(0x17, time.strftime("%y%m%d%H%M%SZ", time.gmtime(moment)).encode())
    )


# --- distinguished encoding -------------------------------------------------------------------------


def _tag(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8)
    return bytes([tag, 0x80 | len(length)]) + length + content


def _sequence(*parts: bytes) -> bytes:
    return _tag(0x30, b"".join(parts))


def _integer(value: int) -> bytes:
    return _tag(2, value.to_bytes(value.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _tag(3, b"\x00" + content)


def _oid(text: str) -> bytes:
    first, second, *rest = map(int, text.split("."))
    out = bytearray([first * 40 + second])
    for number in rest:
        groups = [number & 127]
        while number := number >> 7:
            groups.append(0x80 | number & 127)
        out += bytes(reversed(groups))
    return _tag(6, bytes(out))


def _pem(kind: str, content: bytes) -> str:
    text = base64.b64encode(content).decode()
    lines = "\n".join(text[i : i + 64] for i in range(0, len(text), 64))
    return f"-----BEGIN {kind}-----\n{lines}\n-----END {kind}-----\n"
