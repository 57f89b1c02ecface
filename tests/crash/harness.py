"""A plugin as a real process that may be killed, beside a local cluster that goes on."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from dra_kubeletplugin.host import described
from dra_kubeletplugin.local.cluster import LocalCluster
from dra_kubeletplugin.local.kubelet import Timers
from dra_kubeletplugin.testing import pods

ROOT = Path(__file__).parents[2]
DRIVER = "crash.example.com"
TIMERS = Timers(look=0.02, retry=0.1, wipe=30)


class Box:
    """One node. ``plugins`` are the processes that were started, by a name of the test's choice."""

    def __init__(self, cluster: LocalCluster, folder: Path) -> None:
        self.cluster = cluster
        self.hardware = folder / "hardware"
        self.hardware.mkdir()
        self.faults = folder / "faults"
        self.faults.mkdir()
        self.sysfs = described.build(folder / "sys", {"functions": []})
        self.log = folder / "plugin.log"
        self.plugins: dict[str, asyncio.subprocess.Process] = {}

    @property
    def node(self) -> Any:
        return self.cluster.node

    async def start(
        self, name: str = "plugin", *, ready: bool = True, **environment: str
    ) -> asyncio.subprocess.Process:
        """``environment`` adds variables of the process: KILL_AT, POD_UID, any setting."""
        base = {k: v for k, v in os.environ.items() if k not in {"KUBECONFIG", "POD_UID"}}
        base |= {
            "NODE_NAME": self.node.name,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "KUBELET_ROOT": str(self.node.kubelet_root),
            "CDI_ROOT": str(self.node.cdi_root),
            "SYSFS_ROOT": str(self.sysfs),
            "CRASH_HARDWARE": str(self.hardware),
            "RECONCILE_INTERVAL": "500ms",
            "RECONCILE_GRACE": "1s",
            "LOCK_WAIT": "2s",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}",
            **environment,
        }
        with self.log.open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "dra_kubeletplugin.cli",
                "run",
                "tests/crash/driver.py:Crash",
                env=base,
                cwd=ROOT,
                stderr=log,
            )
        self.plugins[name] = process
        if ready:
            await self.until(f"{name} to register", lambda: self._registered(process))
        return process

    def _registered(self, process: asyncio.subprocess.Process) -> bool:
        if process.returncode is not None:
            raise RuntimeError(f"the plugin ended with {process.returncode}: {self.log.read_text()[-2000:]}")
        before = getattr(process, "seen", None)
        newest = self.node.kubelet.plugins.newest(DRIVER)
        if before is None:
            process.seen = 0 if newest is None else newest.order  # type: ignore[attr-defined]
            return False
        return newest is not None and newest.order > before

    async def kill(self, name: str = "plugin", number: int = signal.SIGKILL) -> int:
        """Sends a signal and waits for the end; answers the exit code."""
        process = self.plugins.pop(name)
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
        return await process.wait()

    async def died(self, name: str = "plugin", timeout: float = 15) -> None:
        """Waits until the process has killed itself."""
        process = self.plugins.pop(name)
        async with asyncio.timeout(timeout):
            code = await process.wait()
        assert code == -signal.SIGKILL, f"exit code {code}: {self.log.read_text()[-2000:]}"

    async def until(self, what: str, check: Callable[[], Any], timeout: float = 15) -> Any:
        async def ask() -> Any:
            return check()

        try:
            return await self.cluster.wait(what, ask, timeout)
        except TimeoutError as e:
            raise TimeoutError(f"{e}; {self.cluster.events()[-4:]}; {self.log.read_text()[-3000:]}") from None

    # --- what must hold -------------------------------------------------------------------------

    async def apply_pod(self, name: str, **spec: Any) -> None:
        template = pods.template(f"{name}-t", pods.claim_spec("devices", **spec))
        await self.cluster.apply(template, pods.pod(name, templates=[f"{name}-t"]))

    def holders(self) -> dict[str, str]:
        """Device → claim UID, for devices that are taken whole."""
        return {p.stem: p.read_text() for p in self.hardware.glob("*.b")}

    def taken(self) -> list[str]:
        return sorted(p.name for p in self.hardware.iterdir())

    def files(self) -> list[str]:
        return sorted(p.name for p in self.node.cdi_root.iterdir())

    def records(self) -> dict[str, str]:
        """Claim UID → state, read beside the running plugin."""
        path = self.node.kubelet_root / "plugins" / DRIVER / "records.db"
        if not path.exists():
            return {}
        db = sqlite3.connect(path, timeout=10)
        try:
            return dict(db.execute("SELECT uid, state FROM claims"))
        finally:
            db.close()

    def check(self) -> None:
        """At any moment: nobody took what another holds."""
        violations = [p.read_text() for p in self.hardware.glob("VIOLATION-*")]
        assert not violations, violations

    def check_quiet(self) -> None:
        """When nothing is under way: files, records and hardware tell the same story."""
        self.check()
        records = self.records()
        assert set(records.values()) <= {"Prepared"}, records
        assert {f.rpartition("_")[2].removesuffix(".json") for f in self.files()} == set(records), (
            "CDI files and records"
        )
        assert set(self.holders().values()) == set(records), "hardware and records"
        claims = {c["metadata"]["uid"] for c in self.cluster.claims()}
        assert set(records) <= claims, "records and claims"

    def is_empty(self) -> bool:
        return not (self.taken() or self.files() or self.records())


@contextlib.asynccontextmanager
async def box(folder: Path) -> AsyncIterator[Box]:
    """Socket paths are short, so the cluster keeps its own folder below /tmp."""
    async with LocalCluster(timers=TIMERS) as cluster:
        await cluster.apply(pods.device_class("devices", DRIVER))
        b = Box(cluster, folder)
        try:
            yield b
        finally:
            for process in b.plugins.values():
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
