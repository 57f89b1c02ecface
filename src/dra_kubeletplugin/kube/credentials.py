"""Bearer tokens for the Authorization header, read again when their file changes."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from ..base.files import read_text_file
from ..errors import ApiError, printable
from .tls import RECHECK

log = logging.getLogger(__name__)
_TOKEN = re.compile(r"[!-~]+")


class Credentials:
    """Returns the value of the Authorization header. This base class has no credentials and returns an empty string."""

    async def header(self) -> str:
        """Raises :class:`ApiError` if credentials are configured but none can be used now."""
        return ""

    def rejected(self) -> None:
        """Called after the server returned 401: cached credentials are stale."""


class TokenFile(Credentials):
    """A bearer token in a file that may be replaced at any time. While the file cannot be read, the last valid token stays in use."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._value, self._read = "", 0.0

    async def header(self) -> str:
        if not self._read or time.monotonic() - self._read >= RECHECK:
            try:
                self._value = bearer(read_text_file(self.path), f"the token file {self.path}")
            except (OSError, ValueError, ApiError) as e:
                message = f"the token file {self.path} cannot be read: {printable(e)}"
                if not self._value:
                    raise ApiError(str(e) if isinstance(e, ApiError) else message) from None
                log.warning(
                    "cannot read the token file %s, so the last token stays in use: %s", self.path, printable(e)
                )
            self._read = time.monotonic()
        return self._value

    def rejected(self) -> None:
        self._value, self._read = "", 0.0


def bearer(token: str, where: str) -> str:
    """Returns the header value for a token.

    Raises :class:`ApiError` if the token is empty or contains invalid characters.
    """
    token = token.strip()
    if not token:
        raise ApiError(f"{where} is empty")
    if not _TOKEN.fullmatch(token):
        raise ApiError(f"{where} contains characters that no token has")
    return f"Bearer {token}"


class Token(Credentials):
    """A constant bearer token."""

    def __init__(self, token: str) -> None:
        self._value = bearer(token, "the token that was given")

    async def header(self) -> str:
        return self._value
