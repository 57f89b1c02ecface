"""One controller: a single lifespan in the cluster, for what belongs to no single node.

Several replicas may run; the one that holds the driver's Lease publishes the pools of no node and binds claims. Work begins
when the Lease is held and ends, with the process, when it is lost: what a driver's thread does cannot be stopped otherwise.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections.abc import AsyncIterator

from ...base.settings import ControllerSettings
from ...base.telemetry.metrics import Metrics
from ...claims.device_status import DeviceStatusReporter
from ...devices.discovery import DeviceDiscovery, Intervals
from ...devices.inventory import Inventory
from ...devices.slices import ClusterScope, Publisher
from ...driver import Driver, Role
from ...driver.calls import Calls
from ...errors import LeaseLostError, NotReadyError, printable
from ...host import Host
from ...kube import ApiConfig, KubeClient, load_config
from ...kube.leader_election import LeaderElector, LeaseTimes
from ..lifecycle import Job, Probes, start_driver, start_tasks, stop_with_timeout, unwrap_single_error
from .binding import Binder, BindingRecords, ClaimWatch
from .binding.binder import RetryIntervals

log = logging.getLogger(__name__)


class Controller:
    """A driver with everything around it, in the controller role.

    Making one has no effects; :meth:`running` starts it. ``api`` replaces what settings say about the API server.

    What it publishes has no owner: a ResourceSlice belongs to the cluster and may not be owned by a Deployment. Slices stay
    while no controller runs, and the next one takes them over.

    Raises :class:`SettingsError` where the API server's address or credentials, or the times of the Lease, are wrong.
    """

    def __init__(
        self,
        driver: Driver,
        settings: ControllerSettings,
        api: ApiConfig | None = None,
        pauses: RetryIntervals | None = None,
    ) -> None:
        self.driver = driver
        self.settings = settings
        self.metrics = Metrics()
        driver.attach(
            Host(settings.sysfs_root, settings.dev_root, lists=settings.list_attributes),
            settings,
            Role.CONTROLLER,
            self._look_again,
        )
        self.calls = Calls()
        self.client = KubeClient(
            api or load_config(settings.kubeconfig, service_account=settings.service_account), settings.api_timeout
        )
        name = settings.driver_name
        self.identity = f"{settings.pod_name or socket.gethostname()}_{secrets.token_hex(4)}"
        self.times = LeaseTimes(settings.lease_duration, settings.renew_deadline, settings.retry_period)
        self.elector = LeaderElector(self.client, settings.namespace, settings.lease_name, self.identity, self.times)
        self.inventory = Inventory("", role=Role.CONTROLLER)
        self.inventory.asked_again = driver.answers_pools
        self.reports = DeviceStatusReporter(self.client, name, f"{name}/controller", self.metrics)
        conditions = DeviceStatusReporter(self.client, name, f"{name}/binding", self.metrics)
        self.records = BindingRecords(self.client, settings.namespace, name)
        self.binder = Binder(
            driver, self.calls, self.records, self.reports, conditions, self.inventory, name, self.metrics,
            lambda: self.elector.leads, pauses,
        )  # fmt: skip
        self.watch = ClaimWatch(self.client, name, self._claim_changed)
        pace = Intervals(interval=settings.rescan_interval, hang=settings.scan_timeout)
        self.scan = DeviceDiscovery(
            driver, self.calls, self.inventory, self.watch.held, self.metrics, settings.sysfs_root, pace
        )
        self.publisher = Publisher(
            self.client,
            self.inventory,
            ClusterScope(name, settings.namespace),
            self.metrics,
            lambda: self.elector.leads,
            gates_off=self.scan.gates_off,
        )
        self.metrics.measure("leader", lambda: float(self.elector.leader.is_set()))
        self.serving = False
        self.stopping = False
        self.http_url = ""

    def _look_again(self) -> None:
        self.scan.request()

    def _claim_changed(self, uid: str) -> None:
        if self.driver.binds:
            self.binder.changed(uid)
        self.scan.claim_ended()

    # --- lifespan -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        """The lifespan. What was started is stopped in reverse, each part in bounded time; the Lease is given back at the end.

        Raises :class:`SettingsError` and what ``Driver.start`` raises; inside, :class:`LeaseLostError` where the lead is lost,
        and what a failing background task raises: each cancels the body.
        """
        self.settings.check()
        async with contextlib.AsyncExitStack() as stack:
            stop_with_timeout(stack, "closing connections", self.client.close)
            probes = Probes(self.metrics, self._measure, self.not_ready, self.notes)
            self.http_url = await probes.serve(stack, self.settings.http_address)
            await start_driver(stack, self.driver, self.calls, self.settings.start_timeout)
            stop_with_timeout(stack, "giving the Lease back", self._release)
            async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
                jobs = start_tasks(tasks, {"leader election": self._elect, "leader's work": self._lead})
                self.serving = True
                try:
                    yield self
                finally:
                    self.stopping = True
                    if self.elector.leader.is_set():
                        await self.binder.stop(self.settings.stop_grace)
                    for job in jobs:
                        job.cancel()

    async def _elect(self) -> None:
        await self.elector.run()
        holder, fault = self.elector.holder, self.elector.fault
        now = "could not be renewed in time" if holder == self.identity else f"is held by {holder or 'nobody'}"
        raise LeaseLostError(
            f"{self.identity} leads no more: lease {self.settings.namespace}/{self.settings.lease_name} {now}"
            + (f": {fault}" if fault else "")
        )

    async def _lead(self) -> None:
        await self.elector.leader.wait()
        async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
            start_tasks(tasks, self._work())

    def _work(self) -> dict[str, Job]:
        """Tasks by name; the controller ends when one of them does."""
        jobs: dict[str, Job] = {
            "claims": self.watch.run,
            "devices": self._look,
            "publisher": self.publisher.run,
            "device status": self.reports.run,
        }
        if self.driver.binds:
            jobs["binding"] = lambda: self.binder.run(self.watch)
        return jobs

    async def _look(self) -> None:
        """A device that vanished is known to be in use or not once the claims are; devices that are there wait for nothing long."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.scan_timeout):
                await self.watch.synced.wait()
        await self.scan.run()

    async def _release(self) -> None:
        """Not while a method of the driver still runs: the next leader must not begin beside it."""
        if self.calls.busy:
            log.warning("the Lease is left to end by itself: %d calls of the driver still run", self.calls.busy)
            return
        await self.elector.release()

    # --- what is so now -------------------------------------------------------------------------

    async def ready(self, timeout: float | None = None) -> None:
        """Waits until this replica leads and its slices are published.

        Raises :class:`NotReadyError` with all that is in the way after ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.elector.leader.wait()
                await self.publisher.published.wait()
        except TimeoutError:
            why = "; ".join([*await self.not_ready(), *await self.notes()])
            raise NotReadyError(f"the controller is not ready after {timeout:g} s: {why}") from None

    async def not_ready(self) -> list[str]:
        """Why the controller is not ready now; empty when it is. One that stands by is ready."""
        if self.stopping:
            return ["stopping"]
        if not self.serving:
            return ["starting"]
        if self.elector.fault:
            return [self.elector.fault]
        if not self.elector.leader.is_set():
            return [] if self.elector.holder else ["nobody leads yet"]
        out = [f for f in (self.scan.fault, self.watch.fault, self.binder.fault) if f]
        out += self.publisher.not_ready()
        return out

    async def notes(self) -> list[str]:
        """What keeps the controller from nothing and should be known."""
        if not self.elector.leader.is_set():
            return [f"stands by: {self.elector.holder or 'nobody'} leads"]
        out = [f"{printable(name)} is not published: {reason}" for name, reason in self.inventory.left_out.items()]
        out += [self.scan.note] if self.scan.note else []
        out += [f"claim {printable(name)}: {reason}" for name, reason in self.binder.faults.items()]
        out += [f"record {name} cannot be read: {reason}" for name, reason in self.records.unreadable.items()]
        return out + ([self.reports.fault] if self.reports.fault else [])

    async def _measure(self) -> None:
        for health, count in self.inventory.health_counts().items():
            self.metrics.set("devices", count, health=health)
