"""The claim manager of one plugin instance: with a real database and CDI files, a fake API server, and no sockets."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from dra_kubeletplugin import Device, Driver, Host, Pool
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.telemetry.metrics import Metrics
from dra_kubeletplugin.claims import ClaimIdentity, ClaimManager, ClaimOutcome, PluginContext
from dra_kubeletplugin.claims.waits import Waits
from dra_kubeletplugin.devices.inventory import Inventory
from dra_kubeletplugin.driver.attachment import attach
from dra_kubeletplugin.driver.calls import Calls
from dra_kubeletplugin.driver.contract import DriverProcess
from dra_kubeletplugin.errors import ApiError, DraError
from dra_kubeletplugin.kube import Resource
from dra_kubeletplugin.kube.decoding import Metadata, Page
from dra_kubeletplugin.kube.errors import ForbiddenError, NotFoundError
from dra_kubeletplugin.kube.http1 import HttpResponse
from tests.helpers.crash.record_stores import KillableLock
from tests.helpers.pod_resources import listing_pods


class FakeApiServer:
    """A fake API client: returns claims, slices and nodes from dictionaries."""

    def __init__(self) -> None:
        self.claims: dict[str, Any] = {}
        self.is_unreachable = False
        self.slices: list[Any] = []
        self.nodes: dict[str, dict[str, str]] = {}  # labels by name
        self.nodes_read = 0
        self.ready: Any = "True"  # the status of the nodes' condition Ready
        self.forbidden = False  # whether reads of nodes are forbidden
        self.listed: list[str] = []  # the selectors of lists

    async def dra(self, plural: str) -> Resource:
        return Resource("resource.k8s.io", "v1", plural, namespaced=True)

    async def raw(self, method: str, path: str, *, timeout: float | None = None) -> HttpResponse:
        *_, namespace, plural, name = path.split("/")
        claim_object = await self.get(await self.dra(plural), name, namespace, timeout=timeout)
        return HttpResponse(200, {}, msgspec.json.encode(claim_object))

    async def get(self, resource: Resource, name: str, namespace: str = "", *, timeout: float | None = None) -> Any:
        if self.is_unreachable:
            raise ApiError("away")
        if resource.plural == "nodes":
            self.nodes_read += 1
            if self.forbidden:
                raise ForbiddenError("nodes is forbidden")
            ready = {"type": "Ready", "status": self.ready}
            return {"metadata": {"name": name, "labels": self.nodes.get(name, {})}, "status": {"conditions": [ready]}}
        if name not in self.claims:
            raise NotFoundError("gone", details={"details": {"name": name}})
        return self.claims[name]

    async def page(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        fields: str = "",
        limit: int = 0,
        cont: str = "",
        checked: bool = True,
    ) -> Page:
        """Returns all slices that match, and ignores the limit."""
        self.listed.append(fields)
        if self.is_unreachable:
            raise ApiError("away")
        field_selectors = dict(f.split("=") for f in fields.split(","))
        slices = [
            s for s in self.slices
            if (s["spec"]["driver"], s["spec"].get("nodeName", "")) == (field_selectors["spec.driver"], field_selectors["spec.nodeName"])
        ]  # fmt: skip
        return Page(Metadata("1"), [msgspec.Raw(msgspec.json.encode(s)) for s in slices])

    def allocate(self, name: str, uid: str, device: str, driver: str, **result: Any) -> ClaimIdentity:
        """Creates a claim to which the scheduler has allocated ``device``."""
        allocated = {"request": "r", "driver": driver, "pool": "node", "device": device, **result}
        self.claims[name] = {
            "metadata": {"name": name, "namespace": "ns", "uid": uid},
            "spec": {"devices": {"requests": []}},
            "status": {"allocation": {"devices": {"results": [allocated]}}},
        }
        return ClaimIdentity("ns", name, uid)


class Clock:
    """A clock that the test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class RunningManager:
    """One plugin instance. ``claims`` is its claim manager. ``changes`` counts how often claims acquired or released devices.

    ``options`` are settings, waits of :class:`Waits`, and ``clock``.
    """

    def __init__(self, folder: Path, driver: Driver, api: FakeApiServer, boot: str, **options: Any) -> None:
        # Long time-outs: on a busy machine, a slow step must not fail the test.
        options = {"call_timeout": 60, "lock_timeout": 30, "reconcile_grace_period": 0, **options}
        waits = {name: options.pop(name) for name in Waits.__struct_fields__ if name in options}
        clock: Callable[[], float] = options.pop("clock", time.monotonic)
        self.settings = Settings(
            driver_name=driver.name, node_name="node", kubelet_root=folder, cdi_root=folder / "cdi", **options
        )
        self.api = api
        self.driver = driver
        self.calls = Calls()
        self.inventory = Inventory("node")
        self.metrics = Metrics()
        self.changes = 0
        self.process = KillableLock(self.settings.plugin_dir / "processes")
        self.claims = ClaimManager(
            PluginContext(
                driver,
                self.calls,
                api,
                self.inventory,
                self.settings,
                self.metrics,
                Waits(**waits),
                clock,  # type: ignore[arg-type]
            ),
            self.process,
            boot,
            self._changed,
        )
        attach(
            driver,
            Host(folder / "sys"),
            self.settings,
            process=DriverProcess(update_metadata=self.claims.update_metadata),
        )

    def _changed(self) -> None:
        self.changes += 1

    async def open(self) -> None:
        self.process.acquire()
        self.process.reap_dead()
        await self.inventory.update([Pool("node", [Device(f"d-{i}") for i in range(40)])])
        await self.claims.open()

    async def close(self) -> None:
        await self.claims.stop(1)
        await self.claims.close()
        self.calls.when_idle(self.process.release)

    async def prepare(self, ref: ClaimIdentity) -> ClaimOutcome:
        return (await self.claims.prepare([ref]))[ref.uid]

    async def unprepare(self, ref: ClaimIdentity) -> ClaimOutcome:
        return (await self.claims.unprepare([ref]))[ref.uid]

    async def decided(self) -> None:
        """Returns when the calls that have begun have decided from the records, unless they wait for something else."""
        for _ in range(5):
            await self.claims.store.all()

    @contextlib.asynccontextmanager
    async def background(self, name: str) -> AsyncIterator[None]:
        """Runs a background task, and asserts that it does not end."""
        task = asyncio.ensure_future(self.claims.background()[name]())
        try:
            yield
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def records(self) -> dict[str, str]:
        """Returns the state of each claim by UID."""
        return {r.uid: str(r.state) for r in await self.claims.store.all()}


@contextlib.asynccontextmanager
async def running_manager(
    folder: Path, driver: Driver, api: FakeApiServer | None = None, boot: str = "boot", **options: Any
) -> AsyncIterator[RunningManager]:
    """Opens a claim manager, and closes it at the end of the context. The kubelet of its node lists no pods."""
    manager = RunningManager(folder, driver, api or FakeApiServer(), boot, **options)
    async with listing_pods(folder):
        try:
            await manager.open()
            yield manager
        finally:
            await manager.close()


async def check_success(call: Awaitable[object]) -> None:
    """Asserts that a prepare or an unprepare returns no error."""
    response = await call
    assert not isinstance(response, DraError), response


async def error_of(call: Awaitable[object]) -> str:
    """Returns the text of the error that a prepare or an unprepare returns."""
    response = await call
    assert isinstance(response, DraError), response
    return str(response)
