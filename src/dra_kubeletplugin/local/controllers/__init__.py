"""What kube-controller-manager does, as far as pods with devices need it."""

from __future__ import annotations

import asyncio

from ...kube import KubeClient
from ..informer import CLAIMS, PODS, TEMPLATES, Informers
from .base import Controller
from .claims import ClaimController


class ControllerManager:
    """All controllers, with one set of copies between them."""

    def __init__(self, client: KubeClient) -> None:
        self.informers = Informers(client, dict.fromkeys((PODS, CLAIMS, TEMPLATES), ""))
        self.controllers: tuple[Controller, ...] = (ClaimController(client, self.informers),)

    async def run(self) -> None:
        """Never returns."""
        async with asyncio.TaskGroup() as tasks:
            await self.informers.run(tasks)
            for controller in self.controllers:
                tasks.create_task(controller.run(), name=controller.name)


__all__ = ["ControllerManager"]
