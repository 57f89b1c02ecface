"""Notices that somebody changed our slices: the one place where they are watched."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from ..errors import describe
from ..kube import KubeClient, Reflector

log = logging.getLogger(__name__)
_SILENT = 180.0  # seconds without a word of the server after which a watch counts as dead, whatever it says of itself
_MAX_PAUSE = 30.0


class SliceWatch:
    """Calls ``notify`` after every change of the slices that ``fields`` selects."""

    def __init__(self, client: KubeClient, fields: str, notify: Callable[[], None], silent: float = _SILENT) -> None:
        self._notify = notify
        self._silent = silent
        self._made = time.monotonic()
        self._reflector = Reflector(client, "resourceslices", fields=fields, copies=False)
        self._fault = ""

    @property
    def fault(self) -> str:
        """Why changes may go unnoticed now; empty where they do not."""
        if fault := self._fault or self._reflector.fault:
            return f"changes of our slices by others go unnoticed: {fault}"
        silence = time.monotonic() - max(self._reflector.heard, self._made)
        if silence > self._silent:
            return f"changes of our slices by others may go unnoticed: the server has said nothing for {silence:.0f} s"
        return ""

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        failures = 0
        while True:
            try:
                async for _ in self._reflector.events():
                    failures, self._fault = 0, ""
                    self._notify()
            except Exception as e:  # whatever the reflector did not foresee
                failures += 1
                if describe(e) != self._fault:
                    log.exception("watching slices failed and begins anew")
                self._fault = describe(e)
            await asyncio.sleep(min(_MAX_PAUSE, 0.1 * 2 ** min(failures, 10)) * random.uniform(0.5, 1.0))
