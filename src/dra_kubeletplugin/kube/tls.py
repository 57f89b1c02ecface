"""TLS contexts for the API server, created again when the certificate files change."""

from __future__ import annotations

import contextlib
import logging
import ssl
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..base.files import read_file
from ..errors import ApiError, printable

log = logging.getLogger(__name__)
RECHECK = 60.0  # seconds between checks of files that rotate
Source = Path | bytes
"""PEM data, or the file that contains it."""


class TlsFiles(msgspec.Struct, frozen=True):
    """The certificates of a connection, or the files that contain them.

    Args:
        ca: PEM certificates of the trusted CAs; None for the CAs of the system.
        cert: client certificate in PEM, with ``key``; None for a connection without a client certificate.
        verify: whether the server's certificate is verified.
        server_name: the name that the server's certificate must have; empty for the URL's host.
    """

    ca: Source | None = None
    cert: Source | None = None
    key: Source | None = None
    verify: bool = True
    server_name: str = ""

    def read(self) -> tuple[bytes | None, ...]:
        """Returns the contents of CA, certificate and key. Raises ``OSError``."""
        sources = (self.ca, self.cert, self.key)
        return tuple(read_file(source) if isinstance(source, Path) else source for source in sources)


class Tls:
    """Provides the context for a new connection; creates it again when the content of the files has changed.

    Attributes:
        recheck: seconds between checks of the files.
    """

    def __init__(self, files: TlsFiles | None = None) -> None:
        self.files = files or TlsFiles()
        self._context: ssl.SSLContext | None = None
        self._content: tuple[bytes | None, ...] = ()
        self._checked = 0.0
        self.recheck = RECHECK

    def use(self, files: TlsFiles) -> None:
        """Uses other files from now on."""
        if files != self.files:
            self.files = files
            self.rejected()

    def rejected(self) -> None:
        """Called after either side rejected a certificate: the files are read again before the next connection."""
        self._checked = 0.0

    def context(self) -> ssl.SSLContext:
        """Returns the context for a new connection.

        Raises :class:`ApiError` if there is no context yet and the files are invalid. Later faults are logged, and the last valid
        context stays in use.
        """
        if self._context is not None and self._checked and time.monotonic() - self._checked < self.recheck:
            return self._context
        try:
            content = self.files.read()
            if self._context is None or content != self._content:
                self._context, self._content = make_context(self.files, content), content
        except (OSError, ValueError) as e:
            shown = ", ".join(str(p) for p in (self.files.ca, self.files.cert, self.files.key) if isinstance(p, Path))
            message = f"the certificates cannot be used ({shown}): {printable(e)}"
            if self._context is None:
                raise ApiError(message) from None
            log.warning("cannot use the new certificates, so the last ones stay in use: %s: %s", shown, printable(e))
        self._checked = time.monotonic()
        return self._context


def make_context(files: TlsFiles, content: tuple[bytes | None, ...]) -> ssl.SSLContext:
    """Creates a context that checks as Go's clients do: certificate chain, host name, and at least TLS 1.2.

    Raises ``OSError`` (``ssl.SSLError`` is one) or ``ValueError``.
    """
    ca = content[0]
    # VERIFY_X509_STRICT is not set, because it rejects the certificates of many clusters.
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    tls.minimum_version = ssl.TLSVersion.TLSv1_2
    tls.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # every certificate in the CA file is trusted, also intermediates
    tls.set_alpn_protocols(["http/1.1"])
    if not files.verify:
        tls.check_hostname = False
        tls.verify_mode = ssl.CERT_NONE
    elif ca is None:
        tls.load_default_certs()  # takes several MiB of memory, so it is not done if there is a CA
    else:
        tls.load_verify_locations(cadata=ca.decode("ascii", errors="ignore"))
    if files.cert and files.key:
        with _as_path(files.cert) as cert, _as_path(files.key) as key:
            tls.load_cert_chain(cert, key, password=lambda: "")  # the empty password prevents a prompt on a terminal
    return tls


@contextlib.contextmanager
def _as_path(source: Source) -> Iterator[Path]:
    """Yields a path for the ssl module, which reads client certificates only from files. Deletes a temporary file afterwards."""
    if isinstance(source, Path):
        yield source
        return
    with tempfile.NamedTemporaryFile(prefix="dra-kubeconfig-") as file:  # only its owner can read it
        file.write(source)
        file.flush()
        yield Path(file.name)
