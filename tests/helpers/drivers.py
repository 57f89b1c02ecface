"""Small drivers for tests; they record their calls and the devices in use."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, ClassVar, Literal

from dra_kubeletplugin import (
    Claim,
    Config,
    ContainerEdits,
    Device,
    Driver,
    Health,
    PermanentError,
    PreparedClaim,
    PreparedDevice,
    RetryableError,
)


class ToyConfig(Config):
    KIND = "ToyConfig"
    API_VERSION = "toy.example.com/v1"
    colour: Literal["red", "blue"] = "red"
    slots: int = 1

    def check(self) -> None:
        if self.slots < 1:
            raise ValueError("slots must be at least 1")


class Toy(Driver):
    """Four exclusive devices. Tests change attributes of the class, because a restart creates a new object."""

    name = "toy.example.com"
    config = ToyConfig
    count = 4
    fail: Exception | None = None
    fail_unprepare: Exception | None = None
    delay = 0.0
    block: asyncio.Event | None = None
    calls: ClassVar[list[tuple[str, str]]]
    state: ClassVar[dict[str, Any]]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.calls, cls.state = [], {}

    async def devices(self) -> list[Device]:
        return [
            Device(f"toy-{i}", attributes={"index": i}, capacity={"memory": "1Gi"}) for i in range(type(self).count)
        ]

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        cls = type(self)
        cls.calls.append(("prepare", claim.uid))
        if cls.block is not None:
            await cls.block.wait()
        if cls.delay:
            await asyncio.sleep(cls.delay)
        if cls.fail is not None:
            raise cls.fail
        cls.state[claim.uid] = [d.name for d in claim.devices]
        return [
            d.prepared(
                ContainerEdits(env={f"TOY_{d.attributes['index']}": d.config.colour}),
                data={"index": d.attributes["index"]},
            )
            for d in claim.devices
        ]

    async def unprepare(self, claim: PreparedClaim) -> None:
        cls = type(self)
        cls.calls.append(("unprepare", claim.uid))
        if cls.fail_unprepare is not None:
            raise cls.fail_unprepare
        cls.state.pop(claim.uid, None)


def make_toy_class() -> type[Toy]:
    """Returns a new class, so that tests do not share changed attributes."""

    class FreshToy(Toy):
        pass

    return FreshToy


class BlockingDriver(Driver):
    """Has synchronous methods, like a driver on a blocking vendor library."""

    name = "blocking.example.com"
    threads: ClassVar[set[int]] = set()

    def devices(self) -> list[Device]:
        return [Device(f"b-{i}") for i in range(8)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        self.threads.add(threading.get_ident())
        return [d.prepared(ContainerEdits(env={"B": d.name})) for d in claim.devices]


class HealthReportingDriver(Toy):
    """Reports health."""

    report: ClassVar[dict[str, Health]] = {}

    def health(self) -> dict[str, Health]:
        return type(self).report


__all__ = [
    "BlockingDriver",
    "HealthReportingDriver",
    "PermanentError",
    "RetryableError",
    "Toy",
    "ToyConfig",
    "make_toy_class",
]
