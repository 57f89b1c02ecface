"""What proves who we are in a request's header: bearer tokens that are replaced while we run."""

from __future__ import annotations

import logging
import re
import time
from pathlib import Path

from ..errors import ApiError, printable
from .tls import RECHECK

log = logging.getLogger(__name__)
_TOKEN = re.compile(r"[!-~]+")


class Credentials:
    """Gives the value of the Authorization header; empty for none. This one knows no user."""

    async def header(self) -> str:
        """Raises :class:`ApiError` where there are credentials and none that can be used now."""
        return ""

    def rejected(self) -> None:
        """The server answered 401: what is cached is stale."""


class TokenFile(Credentials):
    """A bearer token in a file that is replaced while we run. A token that was not rejected outlives a fault of the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._value, self._read = "", 0.0

    async def header(self) -> str:
        if not self._read or time.monotonic() - self._read >= RECHECK:
            try:
                self._value = bearer(self.path.read_text(), f"the token file {self.path}")
            except (OSError, ValueError, ApiError) as e:
                message = f"the token file {self.path} cannot be read: {printable(e)}"
                if not self._value:
                    raise ApiError(str(e) if isinstance(e, ApiError) else message) from None
                log.warning("%s; the token read before stays in use", message)
            self._read = time.monotonic()
        return self._value

    def rejected(self) -> None:
        self._value, self._read = "", 0.0


def bearer(token: str, where: str) -> str:
    """The header's value of a token.

    Raises :class:`ApiError` where it is empty, or can be no token.
    """
    token = token.strip()
    if not token:
        raise ApiError(f"{where} is empty")
    if not _TOKEN.fullmatch(token):
        raise ApiError(f"{where} holds characters that no token has")
    return f"Bearer {token}"


class Token(Credentials):
    """A bearer token that stays."""

    def __init__(self, token: str) -> None:
        self._value = bearer(token, "the token that was given")

    async def header(self) -> str:
        return self._value
