"""Tells on the Node which devices are not published, where an operator looks: one Event for each, the same for the same fault."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import random
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from ..errors import ApiError, clip
from ..inventory import Inventory
from ..kube import KubeClient, Resource

log = logging.getLogger(__name__)
EVENTS = Resource("", "v1", "events", namespaced=True)
_NAMESPACE = "default"  # where those of nodes are
_MOST = 10  # devices that are named one by one
_AGAIN = 3000.0  # seconds; the server forgets an Event after an hour
_RETRY = 60.0
_BURST = (
    25  # Events at once, and then one in so many seconds: as client-go keeps its own writers from flooding a server
)
_EACH = 300.0
_MAX_MESSAGE = 1000  # of 1,024 bytes that the server takes
_MAX_NAME = 200


class Notices:
    """Events in the namespace ``default`` about ``node``, from ``component``. A server that refuses them costs the Events alone."""

    def __init__(self, client: KubeClient, inventory: Inventory, node: str, component: str) -> None:
        self._client = client
        self._inventory = inventory
        self._node = node
        self._component = component
        self._told: set[str] = set()
        self._left = float(_BURST)
        self._counted_at = time.monotonic()
        self._fault = ""

    async def run(self) -> None:
        """Never returns; no fault from outside ends it."""
        while True:
            seen = self._inventory.version
            whole = await self._tell(list(self._texts()))
            wait = _AGAIN if whole else _RETRY
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait * random.uniform(0.8, 1.0)):
                    await self._inventory.changed(seen)
                    continue
            if whole:
                self._told = set()

    def _texts(self) -> Iterator[str]:
        left_out = sorted(self._inventory.left_out.items())
        for name, reason in left_out[:_MOST]:
            yield clip(f"{name} is not published: {reason}", _MAX_MESSAGE)
        if len(left_out) > _MOST:
            yield "more devices are not published: see the readiness of the driver's plugin, /readyz"

    async def _tell(self, texts: list[str]) -> bool:
        self._told &= set(texts)
        for text in texts:
            if text in self._told:
                continue
            if not self._may():
                return False
            try:
                await self._send(text)
            except ApiError as e:
                if str(e) != self._fault:
                    log.warning("an Event cannot be written (see docs/deploy.md): %s", e)
                self._fault = str(e)
                return False
            self._told.add(text)
        return True

    def _may(self) -> bool:
        """Whether one more Event is sent now; a driver may say something else of a device at each look."""
        now = time.monotonic()
        self._left = min(float(_BURST), self._left + (now - self._counted_at) / _EACH)
        self._counted_at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True

    async def _send(self, text: str) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # The name is that of the content, so that neither another try nor another process makes a second one.
        digest = hashlib.sha256(f"{self._component} {text}".encode()).hexdigest()[:16]
        name = f"{self._node[:_MAX_NAME].rstrip('-.')}.{digest}"
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": _NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": "Warning",
            "reason": "DeviceNotPublished",
            "message": text,
            "source": {"component": self._component, "host": self._node},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        try:
            await self._client.create(EVENTS, event, _NAMESPACE)
        except ApiError as e:
            if e.status != 409:
                raise
            await self._client.patch(EVENTS, name, {"lastTimestamp": now}, _NAMESPACE)
