"""Whom we believe and how we prove who we are in TLS: contexts made from certificates that are replaced while we run."""

from __future__ import annotations

import logging
import ssl
import time
from dataclasses import dataclass
from pathlib import Path

from ..errors import ApiError, printable

log = logging.getLogger(__name__)
RECHECK = 60.0  # seconds after which files that rotate are looked at again


@dataclass(frozen=True)
class TlsFiles:
    """Where certificates are read from.

    Args:
        ca: PEM certificates of those who may sign the server's; None for the system's.
        cert: our own certificate in PEM, with ``key``; None for none.
        verify: whether the server's certificate is verified at all.
        server_name: the name that the server's certificate must have; empty for the host of the URL.
    """

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None
    verify: bool = True
    server_name: str = ""

    def read(self) -> tuple[bytes | None, ...]:
        """The content of CA, certificate and key.

        Raises ``OSError``.
        """
        return tuple(path.read_bytes() if path else None for path in (self.ca, self.cert, self.key))


class Tls:
    """Gives the context for a new connection; it is made again once the files' content has changed."""

    def __init__(self, files: TlsFiles | None = None) -> None:
        self._files = files or TlsFiles()
        self._context: ssl.SSLContext | None = None
        self._content: tuple[bytes | None, ...] = ()
        self._checked = 0.0

    @property
    def server_name(self) -> str:
        return self._files.server_name

    def use(self, files: TlsFiles) -> None:
        """Reads from other files from now on."""
        if files != self._files:
            self._files = files
            self.rejected()

    def rejected(self) -> None:
        """The server or we refused a certificate: the files are read again before the next connection."""
        self._checked = 0.0

    def context(self) -> ssl.SSLContext:
        """The context for a connection that is made now.

        Raises :class:`ApiError` where there is none yet and the files make none; later faults are logged, and what was good
        stays in use.
        """
        if self._context is not None and self._checked and time.monotonic() - self._checked < RECHECK:
            return self._context
        try:
            content = self._files.read()
            if self._context is None or content != self._content:
                self._context, self._content = make_context(self._files, content), content
        except (OSError, ValueError) as e:
            shown = ", ".join(str(p) for p in (self._files.ca, self._files.cert, self._files.key) if p)
            message = f"the certificates cannot be used ({shown}): {printable(e)}"
            if self._context is None:
                raise ApiError(message) from None
            log.warning("%s; those read before stay in use", message)
        self._checked = time.monotonic()
        return self._context


def make_context(files: TlsFiles, content: tuple[bytes | None, ...]) -> ssl.SSLContext:
    """Strict as Go's clients are: chain, host name and TLS 1.2, and no more.

    Raises ``OSError`` (``ssl.SSLError`` is one) or ``ValueError``.
    """
    ca = content[0]
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # without VERIFY_X509_STRICT, which many clusters' certificates fail
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # what the CA file holds is trusted, intermediates too
    tls.set_alpn_protocols(["http/1.1"])
    if not files.verify:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    elif ca is None:
        tls.load_default_certs()  # costs MiBs, so only where no CA is named
    else:
        tls.load_verify_locations(cadata=ca.decode("ascii", errors="ignore"))
    if files.cert and files.key:
        # By name, as the ssl module wants it; a password is never asked for on a terminal.
        tls.load_cert_chain(files.cert, files.key, password=lambda: "")
    return tls
