"""Notices that somebody changed our slices: the one place where they are watched."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable

from ..errors import ApiError, describe
from ..kube import KubeClient, Reflector, Resource
from ..resources.convert import GROUP

log = logging.getLogger(__name__)
_CHECK = 60.0  # seconds between looks whether the watched version is still served
_SILENT = 180.0  # seconds without any answer after which the watch counts as dead
_MAX_PAUSE = 30.0


class SliceWatch:
    """Calls ``notify`` after every change of the slices that ``fields`` selects, through changes of the served version too.

    ``fault`` is why changes may go unnoticed now; empty where they do not.
    """

    def __init__(self, client: KubeClient, fields: str, notify: Callable[[], None], check: float = _CHECK) -> None:
        self.fault = ""
        self._client = client
        self._fields = fields
        self._notify = notify
        self._check = check
        self._heard = time.monotonic()
        self._failures = 0

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        while True:
            try:
                resource = await self._client.dra("resourceslices")
                await self._follow(resource)
            except Exception as e:  # whatever the server answers
                self._failed(e)
                await asyncio.sleep(min(_MAX_PAUSE, 0.1 * 2 ** min(self._failures, 10)) * random.uniform(0.5, 1.0))

    async def _follow(self, resource: Resource) -> None:
        """Until the version is served no more. A watch alone would not tell: it waits for a path that is gone."""
        follower = asyncio.create_task(self._events(resource), name="watch of slices")
        try:
            while not follower.done():
                await asyncio.wait({follower}, timeout=self._check * random.uniform(0.8, 1.0))
                if not follower.done() and not await self._served(resource):
                    log.warning("%s is served no more: slices are watched in another version", resource.api_version)
                    self._client.forget_version()
                    return
            follower.result()
        finally:
            follower.cancel()
            await asyncio.wait({follower})

    async def _events(self, resource: Resource) -> None:
        async for _ in Reflector(self._client, resource, fields=self._fields).events():
            self._well()
            self._notify()

    async def _served(self, resource: Resource) -> bool:
        """False where the server says that it does not have the version; unknown is not False."""
        try:
            group = await self._client.call("GET", f"/apis/{GROUP}")
            versions = {v["version"] for v in group["versions"]}
        except ApiError as e:
            if e.status == 404:
                return False
            self._silent(e)
            return True
        except (KeyError, TypeError) as e:
            self._silent(e)
            return True
        self._well()
        return resource.version in versions

    def _well(self) -> None:
        self._heard = time.monotonic()
        self._failures, self.fault = 0, ""

    def _silent(self, e: Exception) -> None:
        if time.monotonic() - self._heard > _SILENT:
            self.fault = f"changes of our slices by others go unnoticed: {describe(e)}"

    def _failed(self, e: Exception) -> None:
        self._failures += 1
        text = f"slices cannot be watched: {e.message if isinstance(e, ApiError) else describe(e)}"
        if text != self.fault:
            log.warning("%s", text, exc_info=None if isinstance(e, ApiError) else e)
        self.fault = text
        if isinstance(e, ApiError) and e.status == 404:
            self._client.forget_version()
