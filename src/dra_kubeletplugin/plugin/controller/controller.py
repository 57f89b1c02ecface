"""The controller: publishes the pools that belong to no single node, and binds claims.

Several replicas may run; only the replica that holds the driver's Lease works. When it loses the Lease, the process ends, because a
driver's thread cannot be stopped in any other way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator

from ...base.settings import ControllerSettings
from ...base.telemetry.metrics import Metrics
from ...base.wakeup import is_set_within
from ...claims.device_status import DeviceStatusReporter
from ...devices.discovery import DeviceDiscovery, Intervals
from ...devices.inventory import Inventory
from ...devices.slices import ClusterScope, Leadership, Publisher
from ...driver import Driver, Role
from ...driver.attachment import attach, overrides
from ...driver.calls import Calls
from ...driver.contract import DriverProcess
from ...errors import LeaseLostError, NotReadyError, printable
from ...host import Host
from ...kube import ApiConfig, KubeClient, load_config
from ...kube.leader_election import LeaderElector, LeaseTimes
from ..driver_checks import DriverChecks
from ..lifecycle import Job, Probes, start_driver, start_tasks, stop_with_timeout, unwrap_single_error
from .binding.bind_calls import BindCalls
from .binding.binder import RETRY_DELAYS, Binder
from .binding.claims import ClaimWatch
from .binding.records import BindingRecords

log = logging.getLogger(__name__)


class Controller:
    """A driver and all parts that run it in the controller role.

    Creating one has no effects; :meth:`running` starts it.

    Its slices have no owner: a ResourceSlice belongs to the cluster, and a Deployment must not own it. Slices stay while no controller
    runs, and the next controller takes them over.

    Args:
        driver: the driver.
        settings: the options of the process.
        api: replaces the API server's address and credentials in ``settings``.
        delays: seconds between attempts of ``bind`` and ``unbind``: first, longest.

    Raises:
        SettingsError: the API server's address or credentials, or the times of the Lease, are invalid.
    """

    def __init__(
        self,
        driver: Driver,
        settings: ControllerSettings,
        api: ApiConfig | None = None,
        delays: tuple[float, float] = RETRY_DELAYS,
    ) -> None:
        self.driver = driver
        self.settings = settings
        self.metrics = Metrics()
        self.metrics.add(driver.metrics)
        attach(driver, Host.of(settings), settings, Role.CONTROLLER, DriverProcess(self._request_rescan))
        self.calls = Calls()
        self.client = KubeClient(
            api or load_config(settings.kubeconfig, service_account=settings.service_account), settings.api_timeout
        )
        name = settings.driver_name
        self.identity = f"{settings.pod_name or socket.gethostname()}_{os.urandom(4).hex()}"
        self.times = LeaseTimes(settings.lease_duration, settings.renew_deadline, settings.retry_period)
        self.elector = LeaderElector(self.client, settings.namespace, settings.lease_name, self.identity, self.times)
        self.inventory = Inventory("", role=Role.CONTROLLER)
        self.reports = DeviceStatusReporter(self.client, name, f"{name}/controller", self.metrics)
        conditions = DeviceStatusReporter(self.client, name, f"{name}/binding", self.metrics)
        self.records = BindingRecords(self.client, settings.namespace, name)
        calls = BindCalls(driver, self.calls, self.client, self.inventory, self.reports)
        self.binder = Binder(calls, self.records, conditions, self.metrics, lambda: self.elector.leads, delays)
        self.watch = ClaimWatch(self.client, name, self._claim_changed)
        intervals = Intervals(interval=settings.rescan_interval, hang=settings.discovery_timeout)
        self.discovery = DeviceDiscovery(
            driver, self.calls, self.inventory, self.watch.held, self.metrics, settings.sysfs_root, intervals
        )
        self.checks = DriverChecks(driver, self.calls, self.metrics, settings.rescan_interval)
        self.publisher = Publisher(
            self.client,
            self.inventory,
            ClusterScope(name, settings.namespace),
            self.metrics,
            Leadership(lambda: self.elector.leads),
            self.discovery.set_gates_off,
        )
        self.metrics.measure("leader", lambda: float(self.elector.leader.is_set()))
        self.serving = False
        self.stopping = False
        self.http_url = ""

    def _request_rescan(self) -> None:
        self.checks.request()
        self.discovery.request()

    def _claim_changed(self, uid: str) -> None:
        if overrides(self.driver, "bind"):
            self.binder.changed(uid)
        self.discovery.claim_ended()

    # --- lifespan -------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Controller]:
        """Starts the controller, and stops it at the end: all parts in reverse order, each with a time limit.

        The Lease is released after all background tasks and ``Driver.stop`` have ended. If leadership is lost or a background task fails,
        the body is cancelled and the exception is raised.

        Raises:
            SettingsError: a setting is wrong.
            LeaseLostError: leadership was lost.
            Exception: anything that ``Driver.start`` or a background task raises.
        """
        self.settings.check()
        async with contextlib.AsyncExitStack() as stack:
            stop_with_timeout(stack, "closing connections", self.client.close)
            probes = Probes(self.metrics, self._measure, self.not_ready, self.notes, passed=self.checks.passed)
            self.http_url = await probes.serve(stack, self.settings.http_address)
            stop_with_timeout(stack, "releasing the Lease", self._release)
            await start_driver(stack, self.driver, self.calls, self.settings.start_timeout)
            async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
                always: dict[str, Job] = {"leader election": self._elect, "leader's work": self._lead}
                jobs = start_tasks(
                    tasks, always | ({"checks": self.checks.run} if overrides(self.driver, "checks") else {})
                )
                self.serving = True
                try:
                    yield self
                finally:
                    self.stopping = True
                    if self.elector.leader.is_set():
                        await self.binder.stop(self.settings.shutdown_grace_period)
                    for job in jobs:
                        job.cancel()

    async def _elect(self) -> None:
        await self.elector.run()
        holder, fault = self.elector.holder, self.elector.fault
        now = "could not be renewed in time" if holder == self.identity else f"is held by {holder or 'no replica'}"
        raise LeaseLostError(
            f"{self.identity} no longer leads: lease {self.settings.namespace}/{self.settings.lease_name} {now}"
            + (f": {fault}" if fault else "")
        )

    async def _lead(self) -> None:
        await self.elector.leader.wait()
        async with unwrap_single_error(), asyncio.TaskGroup() as tasks:
            start_tasks(tasks, self._work())

    def _work(self) -> dict[str, Job]:
        """Returns the background tasks by name; the controller ends when one of them does."""
        jobs: dict[str, Job] = {
            "claims": self.watch.run,
            "devices": self._run_discovery,
            "publisher": self.publisher.run,
            "device status": self.reports.run,
        }
        if overrides(self.driver, "bind"):
            jobs["binding"] = lambda: self.binder.run(self.watch)
        return jobs

    async def _run_discovery(self) -> None:
        """Runs discovery after the claims are known, because they decide whether a vanished device is in use.

        It waits for the claims only a limited time.
        """
        await is_set_within(self.watch.synced, self.settings.discovery_timeout)
        await self.discovery.run()

    async def _release(self) -> None:
        """Releases the Lease, unless a method of the driver still runs: the next leader must not work at the same time."""
        if self.calls.busy:
            log.warning(
                "the Lease is not released and expires, because methods of the driver still run: %d", self.calls.busy
            )
            return
        await self.elector.release()

    # --- state ----------------------------------------------------------------------------------

    async def ready(self, timeout: float | None = None) -> None:
        """Waits until this replica leads and its slices are published.

        Raises:
            NotReadyError: with all reasons, after ``timeout`` seconds.
        """
        try:
            async with asyncio.timeout(timeout):
                await self.elector.leader.wait()
                await self.publisher.published.wait()
        except TimeoutError:
            why = "; ".join([*await self.not_ready(), *await self.notes()])
            raise NotReadyError(f"the controller is not ready after {timeout:g} s: {why}") from None

    async def not_ready(self) -> list[str]:
        """Returns why the controller is not ready now; empty if it is. A replica on standby is ready."""
        if self.stopping:
            return ["stopping"]
        if not self.serving:
            return ["starting"]
        if self.elector.fault:
            return [self.elector.fault]
        if not self.elector.leader.is_set():
            return [] if self.elector.holder else ["no replica leads yet"]
        out = [f for f in (self.discovery.fault, self.watch.fault, self.binder.fault) if f]
        out += self.publisher.not_ready()
        return out + self.checks.not_ready()

    async def notes(self) -> list[str]:
        """Returns facts for the operator that do not affect readiness."""
        if not self.elector.leader.is_set():
            return [f"on standby: {self.elector.holder or 'no replica'} leads"]
        out = [f"{printable(name)} is not published: {reason}" for name, reason in self.inventory.rejected.items()]
        out += [self.discovery.note] if self.discovery.note else []
        out += [f"claim {printable(name)}: {reason}" for name, reason in self.binder.faults.items()]
        out += [f"record {name} cannot be read: {reason}" for name, reason in self.records.unreadable.items()]
        out += self.checks.notes()
        return out + ([self.reports.fault] if self.reports.fault else [])

    async def _measure(self) -> None:
        for health, count in self.inventory.health_counts().items():
            self.metrics.set("devices", count, health=health)
