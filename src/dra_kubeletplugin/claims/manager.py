"""Builds the claim manager and its parts, and runs their background tasks."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence

from ..base.backoff import Backoff
from ..base.threads import in_own_thread
from ..base.wakeup import is_set_within
from ..cdi import ClaimSpecs
from ..errors import DraError, RecordsError
from ..kube.event_recorder import EventRecorder
from .alerts import Alerts
from .claim_files import ClaimFiles
from .device_status import DeviceStatusReporter
from .engine import Engine
from .instance_lock import InstanceLock
from .metadata_files import MetadataFiles
from .metadata_updates import MetadataUpdates
from .processes import ProcessWatcher
from .reconcile import Reconciler
from .record import Record, Row, UnreadableRecord
from .recovery import Recovery
from .remote_devices import SliceLookup
from .rollback import PluginContext, Rollback
from .rollback_retries import retry_note
from .running_pods import ClaimPods
from .store.folder import ClaimFolder
from .store.records import Records
from .store.store import Mode, RecordStore
from .verification import Verifier

log = logging.getLogger(__name__)
_MAX_NOTES = 20  # failing prepares, and failing rollbacks, that readiness lists


class ClaimManager:
    """Serves the kubelet's calls for the claims of one driver on one node, and runs the background work on them.

    Args:
        plugin: the objects that the plugin creates before its claim manager.
        process: the lock of this instance. The caller acquires it before :meth:`open` and releases it after :meth:`close`.
        changed: called when a claim has taken or freed devices.
        health_changed: called when :attr:`process_faults` has changed.
    """

    def __init__(
        self,
        plugin: PluginContext,
        process: InstanceLock,
        boot_id: str,
        changed: Callable[[], None] = lambda: None,
        events: EventRecorder | None = None,
        health_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.metrics = metrics = plugin.metrics
        self.settings = settings = plugin.settings
        self.waits = plugin.waits
        driver, calls, client, inventory = plugin.driver, plugin.calls, plugin.client, plugin.inventory
        name, node = settings.driver_name, settings.node_name
        events = events or EventRecorder(client, name, node, metrics)
        specs = ClaimSpecs(settings.cdi_root, name, process.id)
        self.files = ClaimFiles(specs, MetadataFiles(settings.plugin_dir, specs.driver, is_used=driver.metadata))
        self.store = RecordStore(
            ClaimFolder(settings.records_path, specs, process, boot_id, settings.lock_timeout, metrics)
        )
        rollback = Rollback(plugin, process, boot_id, self.store, self.files, events, changed)
        self.tasks = rollback.tasks
        refuse = settings.unhealthy_policy == "refuse"
        slices = SliceLookup(client, name, node, lambda: bool(process.others()))
        verifier = Verifier(client, inventory, slices, driver, name, refuse_unhealthy=refuse)
        self.pods = ClaimPods(
            settings.pod_resources_socket, events, node, metrics, settings.reconcile_grace_period, plugin.clock
        )
        self.reports = DeviceStatusReporter(client, name, f"{name}/{node}", metrics, plugin.waits)
        self.engine = Engine(rollback, verifier, self.pods, self.reports, plugin)
        self.reconciler = Reconciler(rollback, verifier, self.pods, settings)
        self._updates = MetadataUpdates(rollback, settings.call_timeout / 2)
        self.recovery = Recovery(driver, calls, self.store, boot_id, plugin.waits.recover_slow)
        self.alerts = Alerts(events, inventory, node, self.store.everything, self.store.folder.report, plugin.waits)
        self.processes = (
            ProcessWatcher(rollback.processes, boot_id, self.store.everything, events, metrics, health_changed)
            if driver.processes
            else None
        )
        self._startup: list[asyncio.Task[None]] = []  # startup tasks that continue after :meth:`open`
        # Methods that the kubelet's service, the driver and the device discovery call.
        self.prepare, self.unprepare = self.engine.prepare, self.engine.unprepare
        self.kubelet_registered = self.pods.restart_grace_periods
        self.update_metadata = self._updates.begin
        self.held = self.store.held

    # --- lifespan -------------------------------------------------------------------------------

    async def open(self) -> None:
        """Opens the records, repairs them if needed, and rolls back claims that a crash left unfinished.

        It waits a bounded time; longer work continues in the background. Unusable records do not stop the plugin from serving: each call
        and :meth:`faults` report them.
        """
        self._updates.open()
        await self._begin("calling the driver's recover()", self.recovery.once())
        first = self.reconciler.once(ask_server=False)
        await self._begin("rolling back claims that a crash left unfinished", first)

    async def _begin(self, what: str, work: Awaitable[object]) -> None:
        async def run() -> None:
            try:
                await work
            except DraError as e:
                log.error("a step of the start failed, so claims cannot be prepared or unprepared: %s: %s", what, e)
            except Exception as e:
                log.critical("a step of the start failed unexpectedly: %s", what, exc_info=e)

        task = asyncio.create_task(run(), name=what)
        self._startup.append(task)
        done, _ = await asyncio.wait([task], timeout=self.waits.start)
        if not done:
            log.warning("a step of the start takes long and continues in the background: %s", what)

    def background(self) -> Mapping[str, Callable[[], Awaitable[None]]]:
        """Returns the background tasks by name. They never end."""
        rollback = self.engine.rollback
        return {
            "reconciler": lambda: self.reconciler.run(self.settings.reconcile_interval),
            "recovery": self._keep_recovering,
            "records": self._keep_checking_files,
            "device status": self.reports.run,
            "alerts": self.alerts.run,
            "rollbacks": lambda: rollback.retries.run(rollback.tidy),
            **({"processes": self.processes.run} if self.processes else {}),
        }

    async def _keep_checking_files(self) -> None:
        """Checks the records regularly. If they are removed while the plugin is idle, a new instance would otherwise find none."""
        while True:
            await asyncio.sleep(self.waits.files)
            await self.store.check_files()

    async def _keep_recovering(self) -> None:
        """Runs recovery again whenever it is due.

        The records may be repaired at any time, also by an instance that died before it called recover().
        """
        backoff = Backoff(*self.waits.recover_retries)
        while True:
            await is_set_within(self.store.repaired, self.waits.recover_check)
            self.store.repaired.clear()
            try:
                done = await self.recovery.once()
            except DraError as e:
                log.warning("recovery failed and is retried: %s", e)
                done = False
            if done:
                backoff.reset()
            else:
                await asyncio.sleep(backoff.next())
                self.store.repaired.set()

    async def stop(self, grace: float) -> None:
        """Accepts no new work and waits up to ``grace`` seconds for work in flight. The next process rolls back the rest."""
        await self.tasks.end(grace)

    async def close(self) -> None:
        for task in self._startup:
            task.cancel()
        await self.store.close()

    # --- current state --------------------------------------------------------------------------

    def process_faults(self) -> Mapping[str, str]:
        """Returns the text for each device whose process has ended by itself, by ``pool/name``."""
        return self.processes.faults if self.processes else {}

    def hanging(self) -> str:
        """Why the work on files hangs, so that only a restart of the process helps; empty if it does not hang."""
        # The work may wait for another instance's lock.
        limit = max(self.settings.call_timeout, 2 * self.settings.lock_timeout)
        if (seconds := self.store.busy_for) <= limit:
            return ""
        folders = f"{self.settings.plugin_dir} or {self.settings.cdi_root}"
        return (
            f"a file operation in {folders} has not returned for {seconds:.0f} s, so no claim is prepared or unprepared: "
            "see the mounts of these folders, such as a network file system that does not respond"
        )

    async def faults(self) -> list[str]:
        """Returns the reasons why claims cannot be prepared now. If a write has failed before, it first tests the disk again."""
        for failed, probe in (
            (self.store.fault, self.store.probe),
            (self.files.fault, lambda: in_own_thread(self.files.probe)),
        ):
            if failed:
                with contextlib.suppress(RecordsError, TimeoutError):
                    async with asyncio.timeout(self.waits.probe):
                        await probe()
        return [fault for fault in (self.store.fault, self.recovery.fault, self.files.fault) if fault]

    def failing_prepares(self) -> list[str]:
        """Returns a sentence for each claim that cannot be prepared now."""
        return _first(list(self.pods.failing_prepares()), "prepared: see the plugin's log")

    async def notes(self) -> list[str]:
        """Returns further notes for operators: failing rollbacks, repairs, deleted claims in use, and unreadable records."""
        out = [*self.store.folder.report, *self.recovery.report]
        out += self.pods.notes
        out += filter(None, (self.reports.fault, self.engine.verifier.stuck()))
        out += self.processes.notes if self.processes else ()
        with contextlib.suppress(RecordsError, TimeoutError):
            async with asyncio.timeout(self.waits.probe):
                out += _notes_of(await self.store.everything())
        return out

    async def measure(self) -> None:
        """Updates the metrics of claims."""
        with contextlib.suppress(RecordsError, TimeoutError):
            async with asyncio.timeout(self.waits.probe):
                self.metrics.set("prepared_claims", await self.store.do(Records.count_prepared, Mode.READ))
        self.metrics.set("records_healthy", int(not self.store.fault))


def _notes_of(rows: Sequence[Row]) -> list[str]:
    """Returns a sentence for each unreadable record and each failing rollback."""
    unreadable = [
        f"the record of claim {row.shown} cannot be read: {row.reason}"
        for row in rows
        if isinstance(row, UnreadableRecord)
    ]
    failing = [
        f"claim {row.shown} cannot be rolled back and keeps its devices ({note}): {row.error}"
        for row in rows
        if isinstance(row, Record) and (note := retry_note(row))
    ]
    return unreadable + _first(failing, "rolled back: see `dra claims` on the node")


def _first(notes: list[str], what: str) -> list[str]:
    """Returns the first notes, and how many more claims there are."""
    more = len(notes) - _MAX_NOTES
    return notes[:_MAX_NOTES] + ([f"{more} more claims cannot be {what}"] if more > 0 else [])
