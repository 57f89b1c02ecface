"""Namespaces of a pod, held by descriptors of this process."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from dra_kubeletplugin.localcluster.runtime import pod_namespaces
from dra_kubeletplugin.localcluster.runtime.pod_namespaces import PodNamespaces


async def test_namespaces_of_a_start_that_is_cancelled_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()
    reading, writing = os.pipe()

    def slowly(hostname: str) -> dict[str, int]:
        begun.set()
        go.wait()
        return {"network": writing}

    monkeypatch.setattr(pod_namespaces, "_create", slowly)
    making = asyncio.create_task(PodNamespaces.make("p"))
    await asyncio.to_thread(begun.wait)
    making.cancel()
    with pytest.raises(asyncio.CancelledError):
        await making
    let_go = asyncio.Event()
    asyncio.get_running_loop().add_reader(reading, let_go.set)  # nobody writes: it is the end that is read
    go.set()
    try:
        await asyncio.wait_for(let_go.wait(), 30)
    finally:
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
