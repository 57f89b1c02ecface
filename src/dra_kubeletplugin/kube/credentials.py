"""Values of the Authorization header: constant, from a token file, or none. :mod:`.exec_plugin` has those of a program."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path
from weakref import WeakSet

from ..base.files import read_text_file
from ..errors import ApiError, printable
from .tls import RECHECK

log = logging.getLogger(__name__)
_TOKEN = re.compile(r"[!-~]+")


class Credentials:
    """A constant value of the Authorization header, which is empty without credentials. Subclasses have values that change.

    Attributes:
        clients: the open clients that use the credentials. The last one calls :meth:`close`.
    """

    def __init__(self, value: str = "") -> None:
        self._value = value
        self.clients: WeakSet[object] = WeakSet()

    async def header(self) -> str:
        """Raises :class:`ApiError` if credentials are configured but none can be used now."""
        return self._value

    def rejected(self) -> None:
        """Called after the server returned 401: cached credentials are stale."""

    async def close(self) -> None:
        """Ends work in the background. The credentials can be used again afterwards."""


class TokenFile(Credentials):
    """A bearer token in a file that may be replaced at any time. While the file cannot be read, the last valid token stays in use."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path
        self._read = 0.0

    async def header(self) -> str:
        if not self._read or time.monotonic() - self._read >= RECHECK:
            try:
                self._value = bearer(read_text_file(self.path))
            except (OSError, ValueError) as e:
                if not self._value:
                    raise ApiError(f"the token file {self.path} cannot be used: {printable(e)}") from None
                log.warning("cannot read a token file, so the last token stays in use: %s", printable(e))
            self._read = time.monotonic()
        return self._value

    def rejected(self) -> None:
        self._value, self._read = "", 0.0


class Token(Credentials):
    """A constant bearer token."""

    def __init__(self, token: str) -> None:
        super().__init__(bearer(token))


def bearer(token: str) -> str:
    """Returns the header value for a token. Raises ``ValueError`` if the token is empty or contains invalid characters."""
    token = token.strip()
    if not _TOKEN.fullmatch(token):
        raise ValueError("the token contains characters that no token has" if token else "the token is empty")
    return f"Bearer {token}"
