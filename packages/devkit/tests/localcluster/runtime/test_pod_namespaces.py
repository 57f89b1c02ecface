"""Namespaces of a pod, which file descriptors of this process keep open."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest

from dra_devkit.localcluster.runtime import pod_namespaces
from dra_devkit.localcluster.runtime.pod_namespaces import PodNamespaces


async def test_a_cancelled_start_releases_its_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    started, go = threading.Event(), threading.Event()
    reading, writing = os.pipe()

    def create_slowly(hostname: str) -> dict[str, int]:
        started.set()
        go.wait()
        return {"network": writing}

    monkeypatch.setattr(pod_namespaces, "_create", create_slowly)
    creation = asyncio.create_task(PodNamespaces.make("p"))
    await asyncio.to_thread(started.wait)
    creation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creation
    closed = asyncio.Event()
    asyncio.get_running_loop().add_reader(
        reading, closed.set
    )  # no data is written: the reader wakes only when the other end is closed
    go.set()
    try:
        await asyncio.wait_for(closed.wait(), 30)
    finally:
        asyncio.get_running_loop().remove_reader(reading)
        os.close(reading)
