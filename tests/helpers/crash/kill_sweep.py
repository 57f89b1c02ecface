"""Kills a real plugin process before each of its steps, starts the next one, and compares the node with the responses to the kubelet.

``python -m tests.helpers.crash.kill_sweep [PHASE...] [--every N]`` kills before all steps, or before every Nth, of the given phases or of
all. The test kills before three steps of each phase.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec

from bench.node import ROOT, allocate
from dra_devkit.hosts import described
from dra_devkit.localcluster.cluster import LocalCluster
from dra_devkit.localcluster.kubelet import Timers
from dra_devkit.localcluster.kubelet.plugins import dial
from dra_devkit.testing.pods import device_class
from dra_kubeletplugin._proto import dra_v1_pb2 as pb
from dra_kubeletplugin._proto import dra_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.claims.store.folder import LOCK
from dra_kubeletplugin.claims.store.records import NODE_FILE
from dra_kubeletplugin.errors import describe
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.plugin.grpc.sockets import is_live, socket_paths
from tests.helpers.crash.forked_plugins import Order
from tests.helpers.crash.record_stores import remove_records
from tests.helpers.pod_resources import listing_pods

DRIVER = "crash.example.com"
_TIMEOUT = 60.0  # seconds
_MISSES = 3  # unreached steps, or faults, in a row that end a sweep: the number of steps differs between runs
Ref = tuple[str, str, str]  # namespace, name, UID


class PluginForker:
    """The process that forks plugins."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def fork(self, order: Order) -> tuple[int, asyncio.Future[int]]:
        """Forks a plugin. Returns its PID and a future of its exit status."""
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        pid = await self._forked.get()
        return pid, self._ended[pid]

    async def listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            pid, event, *status = line.split()
            if event == b"forked":
                self._ended[int(pid)] = asyncio.get_running_loop().create_future()
                self._forked.put_nowait(int(pid))
            else:
                self._ended[int(pid)].set_result(int(status[0]))


@contextlib.asynccontextmanager
async def plugin_forker() -> AsyncIterator[PluginForker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.helpers.crash.forked_plugins"),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"},
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    forker = PluginForker(process)
    listening = asyncio.create_task(forker.listen())
    try:
        yield forker
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()
        await listening


class Plugin:
    """A forked plugin process."""

    def __init__(self, node: Node, pid: int, ended: asyncio.Future[int], path: Path) -> None:
        self.node = node
        self.pid = pid
        self.ended = ended
        self.path = path
        self._channel: Any = None

    async def serves(self) -> bool:
        """Waits until the plugin accepts connections. Returns False if the process ended first."""
        async with asyncio.timeout(_TIMEOUT):
            while not self.ended.done():
                if is_live(self.node.registration(self.path)) and is_live(self.path):
                    return True
                await asyncio.sleep(0.005)
        return False

    async def prepare(self, *refs: Ref) -> Mapping[str, str] | None:
        """Returns the error of each claim by UID, empty for success; None if the process died during the call."""
        return await self._call("NodePrepareResources", pb.NodePrepareResourcesRequest, refs)

    async def unprepare(self, *refs: Ref) -> Mapping[str, str] | None:
        return await self._call("NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, refs)

    async def _call(self, method: str, request: Any, refs: Sequence[Ref]) -> Mapping[str, str] | None:
        channel = dial(self.path)
        try:
            call = getattr(pb_grpc.DRAPluginStub(channel), method)
            claims = [pb.Claim(namespace=n, name=m, uid=u) for n, m, u in refs]
            response = await call(request(claims=claims), timeout=_TIMEOUT)
            return {uid: result.error for uid, result in response.claims.items()}
        except grpc.aio.AioRpcError:
            if not (await asyncio.wait([self.ended], timeout=_TIMEOUT))[0]:
                raise
            return None
        finally:
            await channel.close()

    async def end(self, number: int = signal.SIGKILL) -> int:
        if not self.ended.done():
            os.kill(self.pid, number)
        async with asyncio.timeout(_TIMEOUT):
            return await asyncio.shield(self.ended)


class Node:
    """A node with its own kubelet root and two claims: ``a`` has device c-0, ``b`` has device c-1."""

    def __init__(self, forks: PluginForker, cluster: LocalCluster, folder: Path, a: Ref, b: Ref) -> None:
        self.forks = forks
        self.cluster = cluster
        self.folder = folder
        self.a = a
        self.b = b
        self.hardware = folder / "hardware"
        self.hardware.mkdir()
        self.cdi = folder / "cdi"
        self.plugin_dir = folder / "plugins" / DRIVER
        self.records_path = self.plugin_dir / "claims"
        self.registry = folder / "plugins_registry"
        self.plugin_dir.parent.mkdir()
        self.registry.mkdir()
        self.log = folder / "log"
        self.log.touch()
        described.build(folder / "sys", {"functions": []})
        self.claims_of_ended_pods: list[Ref] = []
        self._registrations: dict[Path, Path] = {}
        self._started: list[Plugin] = []

    def registration(self, path: Path) -> Path:
        return self._registrations[path]

    async def start(self, arm: str = "", step: int = -1, pod: str = "", **variables: str) -> Plugin:
        environment = {
            **{k: v for k, v in os.environ.items() if k in {"PATH", "HOME", "LANG"}},
            "NODE_NAME": self.cluster.node.name,
            "KUBECONFIG": str(self.cluster.kubeconfig),
            "KUBELET_ROOT": str(self.folder),
            "CDI_ROOT": str(self.cdi),
            "SYSFS_ROOT": str(self.folder / "sys"),
            "CRASH_HARDWARE": str(self.hardware),
            "RECONCILE_INTERVAL": "100ms",
            "RECONCILE_GRACE_PERIOD": "1h",
            "LOCK_TIMEOUT": "5s",
            **({"POD_UID": pod} if pod else {}),
            **variables,
        }
        paths = socket_paths(self.registry, self.plugin_dir, DRIVER, pod)
        self._registrations[paths.dra] = paths.registration
        self.log.write_text(f"{self.log.read_text(errors='replace')}--- {arm or 'plugin'} {step}\n")
        order = Order(environment, str(self.folder), str(self.log), arm, step)
        self._started.append(Plugin(self, *await self.forks.fork(order), paths.dra))
        return self._started[-1]

    async def end(self) -> None:
        for plugin in self._started:
            await plugin.end()

    def records(self) -> dict[str, str]:
        """Returns the state of each claim by UID."""
        return {r.uid: str(r.state) if isinstance(r, Record) else "Unreadable" for r in read_rows(self.records_path)}

    def holders(self, part: str) -> dict[str, str]:
        """Returns the claim UID of each device. A device has two parts, ``a`` and ``b``."""
        return {p.stem: p.read_text() for p in self.hardware.glob(f"*.{part}")}

    async def published(self, count: int, unless: Plugin) -> None:
        """Waits until complete pools publish ``count`` devices, each once, or until the plugin has ended."""
        async with asyncio.timeout(_TIMEOUT):
            while not unless.ended.done():
                pools = [s["spec"]["pool"] for s in self.cluster.slices(DRIVER)]
                names = [d["name"] for s in self.cluster.slices(DRIVER) for d in s["spec"].get("devices") or []]
                is_one_generation = len({p["generation"] for p in pools}) == 1 and all(
                    p["resourceSliceCount"] == len(pools) for p in pools
                )
                if is_one_generation and len(names) == len(set(names)) == count:
                    return
                await asyncio.sleep(0.01)

    def leftover_files(self) -> list[str]:
        """Returns all files except those that a plugin keeps: metadata and lock of the records."""
        kept = {LOCK, NODE_FILE}
        paths = [p for f in (self.plugin_dir, self.registry, self.cdi, self.hardware) for p in f.rglob("*")]
        return sorted(str(p.relative_to(self.folder)) for p in paths if not (p.is_dir() or p.name in kept))


# --- phases: each runs until the kill or until its end --------------


async def start(node: Node, step: int) -> None:
    plugin = await node.start("start", step)
    await plugin.serves()


async def prepare(node: Node, step: int) -> None:
    plugin = await node.start("prepare", step)
    assert await plugin.serves()
    _check_no_error(await plugin.prepare(node.a, node.b))


async def unprepare(node: Node, step: int) -> None:
    plugin = await node.start("unprepare", step)
    assert await plugin.serves()
    _check_no_error(await plugin.prepare(node.a, node.b))
    _check_no_error(await plugin.unprepare(node.a))


async def undo(node: Node, step: int) -> None:
    """Starts a plugin when one claim is half prepared and another claim is prepared."""
    await _prepare_half(node)
    await start(node, step)


async def free(node: Node, step: int) -> None:
    """Prepares a claim whose device belongs to a half-prepared claim, after the rollback at the start failed."""
    await _prepare_half(node)
    faults = node.folder / "faults"
    faults.mkdir()
    (faults / "undo-raises").touch()
    plugin = await node.start("prepare", step, RECONCILE_INTERVAL="1h")
    assert await plugin.serves()
    other_ref = await allocate(node.cluster, DRIVER, f"{node.a[1]}-free", "c-0")
    node.claims_of_ended_pods.append(other_ref)
    _check_no_error(await plugin.prepare(other_ref))
    _check_no_error(await plugin.unprepare(other_ref))


async def _prepare_half(node: Node) -> None:
    first = await node.start(KILL_AT="prepare: between two steps of hardware", KILL_SKIP="1")
    assert await first.serves()
    assert not any((await first.prepare(node.b) or {"": "died"}).values())
    assert await first.prepare(node.a) is None


async def reconcile(node: Node, step: int) -> None:
    """Deletes a prepared claim from the API server. The kubelet does not unprepare it, so reconciliation must."""
    plugin = await node.start("reconcile", step, RECONCILE_GRACE_PERIOD="0s")
    if await plugin.serves() and (errors := await plugin.prepare(node.a, node.b)) is not None:
        _check_no_error(errors)
        await node.cluster.client.delete(CLAIMS, node.a[1], node.a[0])
        async with asyncio.timeout(_TIMEOUT), listing_pods(node.folder):
            while not plugin.ended.done() and node.a[2] in node.records():
                await asyncio.sleep(0.01)


async def repair(node: Node, step: int) -> None:
    """Starts a plugin when all records are damaged and a claim is half prepared, so that its record has no copy."""
    await _prepare_half(node)
    for path in node.records_path.glob("*.json"):
        path.write_bytes(b"no record" * 1000)
    await start(node, step)


async def restore(node: Node, step: int) -> None:
    """Starts a plugin when the folder of the records was removed and a claim is half prepared."""
    await _prepare_half(node)
    remove_records(node.records_path)
    await start(node, step)


async def publish(node: Node, step: int) -> None:
    """Publishes a pool that grows from three slices to four while one of its devices becomes unhealthy."""
    plugin = await node.start(CRASH_DEVICES="130")
    await node.published(130, plugin)
    await plugin.end()
    (node.folder / "faults").mkdir()
    (node.folder / "faults" / "device-unhealthy").touch()
    second_plugin = await node.start("publish", step, CRASH_DEVICES="200")
    await node.published(200, second_plugin)
    async with asyncio.timeout(_TIMEOUT):
        while not second_plugin.ended.done() and not any(
            d.get("taints") for s in node.cluster.slices(DRIVER) for d in s["spec"].get("devices") or []
        ):
            await asyncio.sleep(0.01)


async def update(node: Node, step: int) -> None:
    """Kills the new instance while it starts; the old instance continues."""
    old_plugin = await node.start(pod="old")
    assert await old_plugin.serves()
    _check_no_error(await old_plugin.prepare(node.a))
    new_plugin = await node.start("start", step, pod="new")
    await new_plugin.serves()
    await new_plugin.end()
    _check_no_error(await old_plugin.prepare(node.a, node.b))


async def handover(node: Node, step: int) -> None:
    """Kills the old instance while it stops; the new instance continues."""
    old_plugin = await node.start("stop", step, pod="old")
    assert await old_plugin.serves()
    _check_no_error(await old_plugin.prepare(node.a))
    new_plugin = await node.start(pod="new")
    assert await new_plugin.serves()
    calls = asyncio.gather(new_plugin.prepare(node.b), new_plugin.prepare(node.a))
    await old_plugin.end(signal.SIGTERM)
    for errors in await calls:
        _check_no_error(errors)


async def together(node: Node, step: int) -> None:
    """Kills one of two instances while it prepares and unprepares claims of one card; the other instance continues."""
    old_plugin = await node.start(pod="old")
    assert await old_plugin.serves()
    _check_no_error(await old_plugin.prepare(node.a))
    new_plugin = await node.start("prepare", step, pod="new")
    assert await new_plugin.serves()
    for call, ref in ((new_plugin.prepare, node.b), (new_plugin.unprepare, node.a), (new_plugin.unprepare, node.b)):
        _check_no_error(await call(ref))
    await new_plugin.end()
    _check_no_error(await old_plugin.prepare(node.a, node.b))


PHASES: dict[str, Callable[[Node, int], Awaitable[None]]] = {
    f.__name__: f
    for f in (start, prepare, unprepare, undo, free, reconcile, repair, restore, publish, update, handover, together)
}


def _check_no_error(errors: Mapping[str, str] | None) -> None:
    """Asserts that no claim got an error. A call during which the process died has no errors."""
    assert not any((errors or {}).values()), errors


# --- checks after each kill ------------------------------------------------------------------------------------------------------


async def _check_recovery(node: Node) -> None:
    """Starts the next instance and checks its responses, that each device has one holder, and that unprepare removes all files."""
    uids_before = _prepared_uids(node)
    next_ = await node.start()
    assert await next_.serves()
    if node.claims_of_ended_pods:
        _check_no_error(await next_.unprepare(*node.claims_of_ended_pods))
    other_ref = await allocate(node.cluster, DRIVER, f"{node.a[1]}-other", "c-0")
    errors = await next_.prepare(other_ref)
    assert errors is not None
    error = errors[other_ref[2]]
    assert not error or error.startswith("DEVICE_HELD"), error
    assert bool(error) is (node.a[2] in _prepared_uids(node)), error
    assert error or node.a[2] not in uids_before
    assert node.holders("a").get("c-0") == (node.a[2] if error else other_ref[2])
    repeated = await next_.prepare(node.a, node.b)
    assert repeated is not None
    is_not_found = repeated[node.a[2]].startswith("NOT_FOUND")
    assert bool(repeated[node.a[2]]) is (is_not_found or not error), repeated
    assert not repeated[node.b[2]], repeated
    assert node.holders("a") == node.holders("b") == {"c-0": node.a[2] if error else other_ref[2], "c-1": node.b[2]}
    _check_no_error(await next_.unprepare(node.a, node.b, other_ref))
    assert node.records() == {}
    await node.published(4, next_)
    assert await next_.end(signal.SIGTERM) == 0
    assert not (leftover_files := node.leftover_files()), leftover_files
    assert not list(node.hardware.glob("VIOLATION*"))


def _prepared_uids(node: Node) -> set[str]:
    return {uid for uid, state in node.records().items() if state == "Prepared"}


def _where(e: BaseException) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{describe(e)} ({Path(last.filename).name}:{last.lineno} {last.line})"


class Sweep:
    """Runs phases on one cluster, each with a fresh node."""

    def __init__(self, forks: PluginForker, cluster: LocalCluster) -> None:
        self._forks = forks
        self._cluster = cluster
        self._nodes = 0

    async def steps(self, phase: str) -> list[str]:
        """Runs a phase without a kill and returns its steps."""
        return await self._run(phase, -1, settle=False)

    async def kill(self, phase: str, step: int) -> bool:
        """Runs a phase, kills the plugin before the step, and checks the recovery.

        Returns whether the phase reached the step. Raises ``AssertionError`` with the plugins' log.
        """
        return len(await self._run(phase, step, settle=True)) == step + 1

    async def _run(self, phase: str, step: int, *, settle: bool) -> list[str]:
        self._nodes += 1
        a, b = [
            await allocate(self._cluster, DRIVER, f"{n}-{phase}-{self._nodes}", d)
            for n, d in (("a", "c-0"), ("b", "c-1"))
        ]
        folder = Path(tempfile.mkdtemp(prefix="k"))
        node = Node(self._forks, self._cluster, folder, a, b)
        try:
            await PHASES[phase](node, step)
            await node.end()
            step_lines = [
                line for line in node.log.read_text(errors="replace").splitlines() if line.startswith("STEP ")
            ]
            if settle:
                await _check_recovery(node)
        except Exception as e:
            message = f"{phase}, killed before step {step}: {_where(e)}\na is {a[2]}, b {b[2]}\n{node.log.read_text(errors='replace')}"
            raise AssertionError(message) from e
        finally:
            await node.end()
            shutil.rmtree(folder)
        return step_lines


@contextlib.asynccontextmanager
async def sweep() -> AsyncIterator[Sweep]:
    async with plugin_forker() as forker, LocalCluster(timers=Timers(plugin_poll_interval=0.05)) as cluster:
        await cluster.apply(device_class("devices", DRIVER))
        yield Sweep(forker, cluster)


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("phases", nargs="*", default=list(PHASES), help=f"of {', '.join(PHASES)}")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    faults = 0
    async with sweep() as s:
        for phase in args.phases:
            start_time, step, kills, missed = time.monotonic(), args.first, 0, 0
            while missed < _MISSES:
                try:
                    reached = await s.kill(phase, step)
                    kills, missed = kills + reached, 0 if reached else missed + 1
                except AssertionError as e:
                    faults, missed = faults + 1, missed + 1
                    print(f"FAULT {e}", flush=True)
                step += args.every
            print(f"{phase}: {kills} kills, {time.monotonic() - start_time:.0f} s", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
