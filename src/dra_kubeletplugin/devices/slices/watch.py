"""Notices that somebody changed our slices: the one place where they are watched."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...kube import KubeClient, Reflector

_PASSING = 5.0  # seconds for which a failing watch is no news: a connection that was cut is soon back
_SILENT = 180.0  # seconds without a word of the server after which the watch counts as dead


class SliceWatch:
    """Calls ``notify`` after every change of the slices that ``fields`` selects, through changes of the served version too, and
    ``cut`` when it goes on after a connection that broke: the server may have been upgraded, or configured anew."""

    def __init__(self, client: KubeClient, fields: str, notify: Callable[[], None], cut: Callable[[], None]) -> None:
        self._reflector = Reflector(client, "resourceslices", fields=fields, copies=False, cut=cut)
        self._notify = notify
        self._since = time.monotonic()

    @property
    def fault(self) -> str:
        """Why changes may go unnoticed now; empty where they do not."""
        quiet = time.monotonic() - (self._reflector.heard or self._since)
        if self._reflector.fault and (quiet > _PASSING or not self._reflector.heard):
            return f"changes of our slices by others go unnoticed: {self._reflector.fault}"
        if quiet > _SILENT:
            return f"changes of our slices by others go unnoticed: no word of the API server for {quiet:.0f}s"
        return ""

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        async for _ in self._reflector.events():
            self._notify()
