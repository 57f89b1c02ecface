"""Runs the plugin as real processes that a test can kill, next to a local cluster that continues."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from dra_devkit.hosts import described
from dra_devkit.localcluster.child_signals import signal_child
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.claims import PrepareError
from dra_devkit.testing import ClaimSpec, Request, pods
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.claims.store.folder import LOCK
from dra_kubeletplugin.claims.store.records import NODE_FILE
from dra_kubeletplugin.errors import MetadataError
from dra_kubeletplugin.metadata.document import decode
from tests.helpers.crash.faulty_proxy import FaultyProxy

ROOT = Path(__file__).parents[3]
DRIVER = "crash.example.com"
TIMERS = Timers(plugin_poll_interval=0.02, pod_sync_backoff=0.1, slice_wipe_delay=30)
Found = TypeVar("Found")
WAIT = 100.0  # seconds; after a failed connection the kubelet looks for a new socket after 13, 26 and 51 s


def _retry_when_file_vanishes(check: Callable[[NodeHarness], Found]) -> Callable[[NodeHarness], Found]:
    """Repeats a check when a plugin removes a file between the listing of the folder and the read of the file."""

    @functools.wraps(check)
    def repeat(harness: NodeHarness) -> Found:
        for _ in range(1000):
            try:
                return check(harness)
            except FileNotFoundError:
                continue
        return check(harness)

    return repeat


def _claim_uid_in_file(path: Path) -> str:
    """Returns the claim UID in a metadata file, or the path if the file is incomplete; a path never equals a UID."""
    try:
        return decode(path.read_bytes(), path).claim.uid
    except MetadataError:
        return str(path)


class NodeHarness:
    """One node of the cluster; the first node if ``node`` is empty. ``plugins`` maps names that the test chose to processes.

    With a ``proxy``, the plugins run as in a pod: with a service account, and with the proxy as their API server. The cluster's
    own components connect to the API server directly.
    """

    def __init__(
        self, cluster: LocalCluster, folder: Path, proxy: FaultyProxy | None = None, *, node: str = ""
    ) -> None:
        self.cluster = cluster
        self._node = node
        self.proxy = proxy
        self.hardware = folder / "hardware"
        self.hardware.mkdir()
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.sysfs = described.build(folder / "sys", {"functions": []})
        self.log = folder / "plugin.log"
        self.has_small_cdi_folder = False  # whether the CDI folder is a separate small file system
        self.plugins: dict[str, asyncio.subprocess.Process] = {}
        self.response_seconds: list[float] = []  # seconds of each kubelet call that got a response
        self.timed_out_calls: list[str] = []  # calls that timed out: method and claim UIDs
        self._measure_calls()

    @property
    def node(self) -> Any:
        return self.cluster.nodes[self._node] if self._node else self.cluster.node

    @property
    def records_path(self) -> Path:
        path: Path = self.node.kubelet_root / "plugins" / DRIVER / "claims"
        return path

    def _measure_calls(self) -> None:
        manager = self.node.kubelet.manager
        call = manager._call

        async def measured(driver: str, method: str, infos: Any) -> Any:
            start_time = time.monotonic()
            try:
                response = await call(driver, method, infos)
            except PrepareError:
                # A quick error means that no plugin runs or that it died. Only a running plugin can time out.
                if time.monotonic() - start_time >= manager.timeout:
                    self.timed_out_calls.append(f"{method} {[i.uid for i in infos]}")
                raise
            self.response_seconds.append(time.monotonic() - start_time)
            return response

        manager._call = measured

    async def start(
        self, name: str = "plugin", *, ready: bool = True, timeout: float = WAIT, **environment: str
    ) -> asyncio.subprocess.Process:
        """Starts a plugin process. ``environment`` adds variables, for example KILL_AT, POD_UID or a setting."""
        # Python may write compiled files, as in the image: tests start the plugin a hundred times.
        left_out = {"KUBECONFIG", "POD_UID", "PYTHONDONTWRITEBYTECODE"}
        base = {k: v for k, v in os.environ.items() if k not in left_out}
        base |= {
            "NODE_NAME": self.node.name,
            **self._server(),
            "KUBELET_ROOT": str(self.node.kubelet_root),
            "CDI_ROOT": str(self.node.cdi_root),
            "SYSFS_ROOT": str(self.sysfs),
            "CRASH_HARDWARE": str(self.hardware),
            "RECONCILE_INTERVAL": "500ms",
            "RECONCILE_GRACE_PERIOD": "1s",
            "LOCK_TIMEOUT": "2s",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            **environment,
        }
        registrations_before = self._registrations()
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-m", "dra_kubeletplugin.cli", "run", "tests/helpers/crash/driver.py:Crash"),
                env=base,
                cwd=ROOT,
                stderr=log,
            )
        self.plugins[name] = process
        if ready:
            await self.until(f"{name} to register", lambda: self._registered(process, registrations_before), timeout)
        return process

    def _server(self) -> dict[str, str]:
        if self.proxy is None:
            return {"KUBECONFIG": str(self.cluster.kubeconfig)}
        # In a container, the plugin requires mounted folders, unless LOCAL_CLUSTER is set.
        return {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(self.proxy.port),
            "SERVICE_ACCOUNT": str(self.proxy.account),
            "LOCAL_CLUSTER": "1",
        }

    def _registrations(self) -> int:
        newest = self.node.kubelet.plugins.newest(DRIVER)
        return 0 if newest is None else newest.order

    def _registered(self, process: asyncio.subprocess.Process, registrations_before: int) -> bool:
        if process.returncode is not None:
            raise RuntimeError(f"the plugin ended with {process.returncode}: {self.logged[-2000:]}")
        return self._registrations() > registrations_before

    async def kill(self, name: str = "plugin", number: int = signal.SIGKILL) -> int:
        """Sends a signal, waits for the end of the process and returns its exit code."""
        process = self.plugins.pop(name)
        signal_child(process, signal.Signals(number))
        return await process.wait()

    async def died(self, name: str = "plugin", timeout: float = WAIT) -> None:
        """Waits until the process has killed itself."""
        process = self.plugins.pop(name)
        async with asyncio.timeout(timeout):
            code = await process.wait()
        assert code == -signal.SIGKILL, f"exit code {code}: {self.logged[-2000:]}"

    async def until(self, name: str, check: Callable[[], Any], timeout: float = WAIT) -> Any:
        async def call_check() -> Any:
            return check()

        try:
            return await self.cluster.wait(name, call_check, timeout)
        except TimeoutError as e:
            details = (self.cluster.events()[-4:], self.node.kubelet.plugins.registered, self.logged[-3000:])
            raise TimeoutError("; ".join(map(str, (e, *details)))) from None

    @contextlib.contextmanager
    def full_cdi(self) -> Iterator[None]:
        """Fills the CDI folder for the context.

        Within :func:`small_cdi_folder` the file system is really full; otherwise the driver injects ENOSPC.
        """
        filler = self.node.cdi_root / "filler" if self.has_small_cdi_folder else self.faults / "cdi-full"
        try:
            with filler.open("wb", buffering=0) as file:
                while self.has_small_cdi_folder:
                    file.write(bytes(4096))
        except OSError as e:
            if e.errno != errno.ENOSPC:
                raise
        try:
            yield
        finally:
            filler.unlink(missing_ok=True)

    # --- invariants -----------------------------------------------------------------------------

    async def apply_pod(self, name: str, *, count: int = 1, selector: str = "") -> None:
        request = Request(count=count, selectors=[selector] if selector else ())
        template = pods.template(f"{name}-t", ClaimSpec(request))
        await self.cluster.apply(template, pods.pod(name, templates=[f"{name}-t"], restart_policy="Always"))

    async def apply_pod_and_hold_prepare(self, name: str) -> Path:
        """Creates a pod and returns when its prepare has done the first of two hardware steps on the first of two devices.

        Each prepare waits at this point until the test deletes the returned file.
        """
        hold_file = self.faults / "prepare-held"
        hold_file.touch()
        await self.apply_pod(name)
        await self.until("the first of two devices in hardware", lambda: self.device_files() == ["c-0.a"])
        return hold_file

    @property
    def logged(self) -> str:
        """Returns the log of all plugins. Its last line may be incomplete."""
        return self.log.read_text(errors="replace")

    @_retry_when_file_vanishes
    def holders(self) -> dict[str, str]:
        """Returns the claim UID of each device for which both hardware steps are done."""
        return {p.stem: p.read_text() for p in self.hardware.glob("*.b")}

    def device_files(self) -> list[str]:
        """Returns the names of the device files."""
        return sorted(p.name for p in self.hardware.iterdir() if not p.name.startswith("card."))

    def power(self) -> list[str]:
        """Returns the names of the card's files. The claims of all devices share the card."""
        return sorted(p.name for p in self.hardware.glob("card.*"))

    def files(self) -> list[str]:
        """Returns the file names in the CDI folder."""
        return sorted(p.name for p in self.node.cdi_root.iterdir())

    def leftover_files(self) -> list[str]:
        """Returns the files below the records that belong to no record."""
        kept = {LOCK, NODE_FILE, *(name for uid in self.records() for name in (f"{uid}.json", f".{uid}.synced"))}
        names = (p.name for p in self.records_path.iterdir()) if self.records_path.exists() else ()
        return sorted(name for name in names if name not in kept)

    @_retry_when_file_vanishes
    def metadata_pairs(self) -> dict[str, bool]:
        """Returns, for each claim with a metadata file or a spec that mounts it, whether the claim has both."""
        top = self.records_path.parent / "dra-device-metadata"
        files = {_claim_uid_in_file(p) for p in top.glob("*.json")}
        specs = {p.stem.partition("_")[2] for p in self.node.cdi_root.glob("*.json") if str(top) in p.read_text()}
        return {uid: uid in specs and uid in files for uid in {*specs, *files}}

    def records(self) -> dict[str, str]:
        """Returns the state of each claim by UID. It reads the records while the plugin runs."""
        return {r.uid: str(r.state) if isinstance(r, Record) else "Unreadable" for r in read_rows(self.records_path)}

    def check(self) -> None:
        """Asserts that no claim has taken a device of another claim. This must hold at any moment."""
        violations = [p.read_text() for p in self.hardware.glob("VIOLATION-*")]
        if violations:  # each contains the UIDs of both claims
            raise AssertionError(
                self._with_log_lines("\n".join(violations), {w for v in violations for w in v.split() if len(w) == 36})
            )

    def _with_log_lines(self, message: str, uids: set[str]) -> str:
        """Returns ``what``, followed by the log lines about these claims and about the records."""
        uids = {*uids, "claims.store", "started as"}
        lines = self.logged.splitlines()
        return "\n".join([message, *[line for line in lines if any(uid in line for uid in uids)][-120:]])

    def check_quiet(self) -> None:
        """Asserts that files, records and hardware agree. This must hold when no call is in progress."""
        self.check()
        records = self.records()
        assert set(records.values()) <= {"Prepared"}, records
        files = {f.partition("_")[2].partition(".")[0] for f in self.files()}
        if files != set(records):
            raise AssertionError(self._with_log_lines(f"files {self.files()}, records {records}", files ^ set(records)))
        described = self.metadata_pairs()
        if set(described) != set(records) or not all(described.values()):
            raise AssertionError(
                self._with_log_lines(f"metadata {described}, records {records}", set(described) ^ set(records))
            )
        holders = set(self.holders().values())
        if holders != set(records):
            raise AssertionError(
                self._with_log_lines(f"hardware {self.holders()}, records {records}", holders ^ set(records))
            )
        assert self.power() == (["card.on", "card.ready"] if records else []), (self.power(), records)
        claims = {c["metadata"]["uid"] for c in self.cluster.claims()}
        assert set(records) <= claims, self._with_log_lines("records of no claim", set(records) - claims)

    def is_empty(self) -> bool:
        hardware = self.device_files() or self.power()
        return not (hardware or self.files() or self.records() or self.metadata_pairs() or self.leftover_files())


@contextlib.asynccontextmanager
async def node_harness(
    folder: Path, *, proxied: bool = False, call: float = TIMERS.call_timeout, retry: float = TIMERS.pod_sync_backoff
) -> AsyncIterator[NodeHarness]:
    """Starts a local cluster and yields its node. The cluster has its own folder below /tmp, because socket paths must be short.

    ``call`` is the kubelet's time-out and ``retry`` its wait before the next try, in seconds.
    """
    async with contextlib.AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            LocalCluster(timers=dataclasses.replace(TIMERS, call_timeout=call, pod_sync_backoff=retry))
        )
        await cluster.apply(pods.device_class("devices", DRIVER))
        proxy = FaultyProxy(cluster.api.url, cluster.api.token, folder / "account") if proxied else None
        b = NodeHarness(cluster, folder, proxy and await stack.enter_async_context(proxy))
        try:
            yield b
        finally:
            for process in b.plugins.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()


@contextlib.contextmanager
def small_cdi_folder(b: NodeHarness, size: str = "128k") -> Iterator[bool]:
    """Mounts a small tmpfs on the CDI folder, so that a test can fill it. Yields False if the process may not mount."""
    root = str(b.node.cdi_root)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=755", "tmpfs", root]
    try:
        mounted = subprocess.run(command, check=False, capture_output=True).returncode == 0
    except FileNotFoundError:
        mounted = False
    b.has_small_cdi_folder = mounted
    try:
        yield mounted
    finally:
        b.has_small_cdi_folder = False
        if mounted:
            subprocess.run(["umount", "--lazy", root], check=True)
