"""Finds the version of resource.k8s.io to use: the first of v1, v1beta2 and v1beta1 that the API server serves."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from ..base.shared_call import SharedCall
from ..errors import ApiError, clip, printable
from ..resourceapi.conversion import GROUP, VERSIONS
from .errors import NotFoundError, api_error

log = logging.getLogger(__name__)


class Discovery:
    """Caches the version. ``fetch`` returns the APIGroup within a bounded time and raises only :class:`ApiError`."""

    def __init__(self, fetch: Callable[[], Awaitable[dict[str, Any]]]) -> None:
        self._fetch = fetch
        self._version = ""
        self._request = SharedCall(self._discover, "discovery")

    async def version(self) -> str:
        """Returns the version, from the cache or from the server. Callers that arrive during a request share its result.

        Raises :class:`ApiError`.
        """
        return self._version or await self.refresh()

    async def refresh(self) -> str:
        """Like :meth:`version`, but always sends a request. The cached version is kept if the request fails.

        Raises :class:`ApiError`.
        """
        request = self._request.begin()
        await asyncio.wait({request})  # cancelling one caller must not cancel the request of the others
        fault = request.exception() if not request.cancelled() else ApiError("the client was closed")
        if isinstance(fault, ApiError):
            # A new object for each caller, because callers share the request.
            raise api_error(str(fault), fault.status, fault.details)
        return request.result()

    def forget(self) -> None:
        """Clears the cached version, so that the next caller sends a request."""
        self._version = ""

    async def close(self) -> None:
        await self._request.close()

    async def _discover(self) -> str:
        version = await self._served()
        if self._version and self._version != version:
            log.info("the API server serves another version of %s: %s, before %s", GROUP, version, self._version)
        self._version = version
        return version

    async def _served(self) -> str:
        try:
            group = await self._fetch()
        except NotFoundError:
            group = {"versions": []}
        listed = group.get("versions")
        if not isinstance(listed, list):
            raise ApiError(f"/apis/{GROUP}: the response lists no versions: {clip(printable(group), 300)}")
        served = {str(v.get("version")) for v in listed if isinstance(v, dict)}
        for version in VERSIONS:
            if version in served:
                return version
        found = clip(printable(", ".join(sorted(served))), 300) or "none"
        raise NotFoundError(
            f"the API server serves no version of {GROUP} that is known here (wanted one of {', '.join(VERSIONS)}, "
            f"served: {found}): enable DynamicResourceAllocation, or use Kubernetes 1.34 or later"
        )
