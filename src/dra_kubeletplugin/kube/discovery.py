"""Which version of resource.k8s.io the server has: asked once for all who wait, and again when told to."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..errors import ApiError, clip, printable
from ..resourceapi.conversion import GROUP, VERSIONS

log = logging.getLogger(__name__)


class Discovery:
    """``ask`` gets the APIGroup from the server within a bounded time, and raises :class:`ApiError` only."""

    def __init__(self, ask: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._ask = ask
        self._version = ""
        self._asking: asyncio.Task[str] | None = None

    async def version(self) -> str:
        """The best version that both sides know. Those who come while a question is out share its answer.

        Raises :class:`ApiError`.
        """
        return self._version or await self.refresh()

    async def refresh(self) -> str:
        """As :meth:`version`, and asks also where an answer is known; that stays where this one fails.

        Raises :class:`ApiError`.
        """
        if self._asking is None:
            self._asking = asyncio.create_task(self._answer(), name="discovery")
            self._asking.add_done_callback(self._answered)
        asking = self._asking
        await asyncio.wait({asking})  # who is cancelled leaves the question to the others
        fault = asking.exception() if not asking.cancelled() else ApiError("the client was closed")
        if isinstance(fault, ApiError):
            raise ApiError(str(fault), status=fault.status, details=fault.details)  # each waiter raises its own
        return asking.result()

    def forget(self) -> None:
        """The next who wants to know asks again."""
        self._version = ""

    async def close(self) -> None:
        if self._asking:
            self._asking.cancel()
            await asyncio.wait({self._asking})

    def _answered(self, asking: asyncio.Task[str]) -> None:
        self._asking = None
        if not asking.cancelled() and asking.exception() is None:
            if self._version and self._version != asking.result():
                log.info("the API server has %s of %s now, before it was %s", asking.result(), GROUP, self._version)
            self._version = asking.result()

    async def _answer(self) -> str:
        try:
            group = await self._ask()
        except ApiError as e:
            if e.status != 404:
                raise
            group = {"versions": []}
        listed = group.get("versions")
        if not isinstance(listed, list):
            raise ApiError(f"/apis/{GROUP}: the answer lists no versions: {clip(printable(group), 300)}")
        served = {str(v.get("version")) for v in listed if isinstance(v, dict)}
        for version in VERSIONS:
            if version in served:
                return version
        found = clip(printable(", ".join(sorted(served))), 300) or "none"
        raise ApiError(
            f"the API server serves no version of {GROUP} that is known here (wanted one of {', '.join(VERSIONS)}, "
            f"served: {found}): enable DynamicResourceAllocation, or use Kubernetes 1.34 or later",
            status=404,
        )
