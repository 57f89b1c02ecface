"""Credentials from kubeconfig files: tokens, passwords, certificates, and the credentials of an exec plugin.

Changed files are read again. A request waits at most 8 s for an exec plugin.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass

import msgspec

from ..base.threads import in_own_thread
from ..errors import ApiError, DraError, SettingsError, describe, printable
from .credentials import Credentials, TokenFile
from .kubeconfig_file import SelectedContext, check_header, select_context
from .proxy import Proxy
from .tls import RECHECK, Tls, TlsFiles

log = logging.getLogger(__name__)
_WAIT = 8.0  # seconds that a request waits for an exec plugin, which continues for the next request
_MIN_INTERVAL = 5.0  # minimum seconds between runs of an exec plugin, also if the server returns 401 more often
_EXPIRY_MARGIN = 300.0  # credentials are renewed this number of seconds before they expire, as in the official client


@dataclass(frozen=True)
class _Loaded:
    """Credentials. ``header`` is empty if the user has no token; ``expires`` is in seconds since 1970."""

    selected: SelectedContext
    header: str
    files: TlsFiles
    expires: float | None = None

    @property
    def is_expired(self) -> bool:
        return self.expires is not None and self.expires - _EXPIRY_MARGIN <= time.time()


class Kubeconfig(Credentials):
    """One context of one or more kubeconfig files.

    Args:
        paths: one path, or several as in KUBECONFIG; missing files are skipped.
        context: name of the context; empty for the current one.

    Raises :class:`SettingsError` with the file, the field and the cause.
    """

    def __init__(self, paths: str, context: str = "") -> None:
        self._paths, self._context = paths, context
        self._where = f"--kubeconfig (KUBECONFIG) {paths}"
        selected = self._select()
        self.server: str = selected.server
        self.proxy: Proxy | None = selected.proxy
        self.namespace: str = selected.namespace
        self.token_file: TokenFile | None = TokenFile(selected.token_file) if selected.token_file else None
        self.tls = Tls(selected.files)
        self._shown = selected.plugin.shown if selected.plugin else "reading it"  # what a request may wait for
        self._loaded = None if selected.plugin else _Loaded(selected, selected.header, selected.files)
        self._checked = time.monotonic()
        self._stale = False
        self._renewing: asyncio.Future[_Loaded] | None = None
        self._started = 0.0
        self._fault = ""  # of the last attempt to get credentials

    def _select(self) -> SelectedContext:
        try:
            return select_context(self._paths, self._context, self._where)
        except OSError as e:
            raise SettingsError(f"{self._where} cannot be read: {describe(e)}") from None

    async def header(self) -> str:
        header = await self._current()
        return await self.token_file.header() if self.token_file else header

    async def _current(self) -> str:
        """Returns the header of the current credentials. Reads the files again when a check is due."""
        now = time.monotonic()
        is_needed = self._loaded is None or self._stale
        if self._renewing is None and (is_needed or now - self._checked >= RECHECK):
            if is_needed and self._started and now - self._started < _MIN_INTERVAL:
                return self._last()
            self._started = now
            self._renewing = asyncio.ensure_future(in_own_thread(self._renew))
            self._renewing.add_done_callback(self._renewed)
        if self._renewing is not None and is_needed:
            done, _ = await asyncio.wait({self._renewing}, timeout=_WAIT)
            if not done:
                raise ApiError(f"{self._where}: {self._shown} takes longer than {_WAIT:g}s")
            if self._stale and self._fault:
                raise ApiError(self._fault)
        # Credentials that the server has not rejected are valid for some minutes more, so this request does not wait for new ones.
        return self._last()

    def _last(self) -> str:
        if self._loaded is None:
            raise ApiError(self._fault or f"{self._where}: there are no credentials yet")
        return self._loaded.header

    def rejected(self) -> None:
        self._stale = True
        if self.token_file:
            self.token_file.rejected()

    def _renew(self) -> _Loaded:
        """Returns current credentials. Runs in a thread. Raises :class:`SettingsError` or :class:`ApiError`."""
        loaded, selected = self._loaded, self._select()
        if loaded and not self._stale and not loaded.is_expired and selected == loaded.selected:
            return loaded
        plugin = selected.plugin
        if plugin is None:
            return _Loaded(selected, selected.header, selected.files)
        try:
            found = plugin.run()
            header = (
                check_header(f"Bearer {found.token.strip()}", f"the token of {plugin.shown}") if found.token else ""
            )
        except DraError as e:
            raise ApiError(f"{self._where}: {describe(e)}") from None
        files = selected.files
        if found.client_certificate_data and found.client_key_data:
            cert, key = found.client_certificate_data.encode(), found.client_key_data.encode()
            files = msgspec.structs.replace(files, cert=cert, key=key)
        expires = found.expiration_timestamp.timestamp() if found.expiration_timestamp else None
        return _Loaded(selected, header, files, expires)

    def _renewed(self, renewing: asyncio.Future[_Loaded]) -> None:
        fault = None if renewing.cancelled() else renewing.exception()
        if renewing.cancelled() or renewing is not self._renewing:
            return
        self._renewing = None
        self._checked = time.monotonic()
        self._fault = printable(fault) if fault else ""
        if fault is not None:
            if self._loaded is not None:
                log.warning("cannot renew the credentials: %s", self._fault)
            return
        self._stale = False
        self._loaded = renewing.result()
        self.tls.use(self._loaded.files)
