"""Watches the slices of one publisher and reports every change."""

from __future__ import annotations

import time
from collections.abc import Callable

from ...kube import KubeClient, Reflector

_REPORT_AFTER = 5.0  # seconds until a failing watch is reported; a broken connection usually recovers sooner
_DEAD_AFTER = 180.0  # seconds without any message of the API server until the watch counts as failed


class SliceWatch:
    """Calls ``notify`` after every change of the selected slices, or of the served API version.

    Args:
        fields: the field selector.
        cut: called when the watch continues after a broken connection, because the API server may have been upgraded or reconfigured.
    """

    def __init__(self, client: KubeClient, fields: str, notify: Callable[[], None], cut: Callable[[], None]) -> None:
        self._reflector = Reflector(client, "resourceslices", fields=fields, copies=False, cut=cut)
        self._notify = notify
        self._since = time.monotonic()

    @property
    def fault(self) -> str:
        """Why changes are not noticed now; empty if the watch works."""
        silent_for = time.monotonic() - (self._reflector.last_message or self._since)
        if self._reflector.fault and (silent_for > _REPORT_AFTER or not self._reflector.last_message):
            return f"changes of the slices by other writers are not noticed: {self._reflector.fault}"
        if silent_for > _DEAD_AFTER:
            return (
                "changes of the slices by other writers are not noticed: no response of the API server for "
                f"{silent_for:.0f} s"
            )
        return ""

    async def run(self) -> None:
        """Watches the slices. Never returns; external failures do not stop it."""
        async for _ in self._reflector.events():
            self._notify()
