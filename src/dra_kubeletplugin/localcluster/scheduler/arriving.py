"""Delays new pods until the node controller has removed the not-ready taint of new nodes.

Without the delay, the first attempt would fail for pods that are applied together with their nodes. Only a pod's first
attempt waits; later attempts begin at once, as in Kubernetes.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

# Seconds to wait for one node. If another client has set the taint, the node controller may not remove it.
_MAX_WAIT = 0.5
_TAINT = "node.kubernetes.io/not-ready"


class ArrivingNodes:
    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        self._changed = asyncio.Event()

    def observe(self, node: Mapping[str, Any], *, new: bool, gone: bool) -> None:
        name = node["metadata"]["name"]
        tainted = any(t.get("key") == _TAINT for t in (node.get("spec") or {}).get("taints") or [])
        if gone or not tainted:
            if self._until.pop(name, None) is not None:
                self._changed.set()
        elif new:
            self._until[name] = asyncio.get_running_loop().time() + _MAX_WAIT

    async def wait(self) -> None:
        """Waits until no new node has the taint, at most until half a second after the last new node."""
        now = asyncio.get_running_loop().time
        while self._until:
            remaining = max(self._until.values()) - now()
            if remaining <= 0:
                self._until.clear()
                return
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(remaining):
                    await self._changed.wait()
