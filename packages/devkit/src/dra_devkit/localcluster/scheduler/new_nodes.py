"""Delays the first attempt to schedule a pod until the node controller has removed the not-ready taint of new nodes.

Without the delay, the first attempt would fail for pods that are applied together with their nodes. Later attempts are
not delayed, as in Kubernetes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from dra_kubeletplugin.base.wakeup import is_set_within

# Seconds to wait for one node. The time is limited, because the node controller may not remove a taint that another client set.
_MAX_WAIT = 0.5
_TAINT = "node.kubernetes.io/not-ready"


class NewNodes:
    """The new nodes that still have the not-ready taint."""

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
        """Waits until no new node has the taint, but at most until half a second after the last node was added."""
        now = asyncio.get_running_loop().time
        while self._until:
            remaining = max(self._until.values()) - now()
            if remaining <= 0:
                self._until.clear()
                return
            self._changed.clear()
            await is_set_within(self._changed, remaining)
