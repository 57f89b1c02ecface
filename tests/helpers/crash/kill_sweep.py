"""Kills a real plugin process before each of its steps, starts the next one, and compares the node with the responses to the kubelet.

``python -m tests.helpers.crash.kill_sweep [PHASE...] [--every N]`` kills before all steps, or before every Nth, of the given phases or of
all. The test kills before one step of each phase.
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
from dra_kubeletplugin._proto import dra_v1_pb2 as pb
from dra_kubeletplugin._proto import dra_v1_pb2_grpc as pb_grpc
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.offline import read_rows
from dra_kubeletplugin.errors import RecordsError, describe
from dra_kubeletplugin.host.fake import described
from dra_kubeletplugin.kube.resource import CLAIMS
from dra_kubeletplugin.localcluster.cluster import LocalCluster
from dra_kubeletplugin.localcluster.kubelet import Timers
from dra_kubeletplugin.localcluster.kubelet.plugins import dial
from dra_kubeletplugin.plugin.grpc import socket_paths
from dra_kubeletplugin.plugin.grpc.sockets import is_live
from dra_kubeletplugin.testing.pods import device_class
from tests.helpers.crash.forked_plugins import Order

os.environ.setdefault("CRASH_HARDWARE", "/nonexistent")
DRIVER = "crash.example.com"
_TIMEOUT = 60.0  # seconds
_MISSES = 3  # steps that a phase does not get to, before it is taken for swept: two runs are never quite alike
Ref = tuple[str, str, str]  # namespace, name, UID


class PluginForker:
    """The process that forks plugins."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._forked: asyncio.Queue[int] = asyncio.Queue()
        self._ended: dict[int, asyncio.Future[int]] = {}

    async def fork(self, order: Order) -> tuple[int, asyncio.Future[int]]:
        """PID, and the exit status to come."""
        assert self._process.stdin
        self._process.stdin.write(msgspec.json.encode(order) + b"\n")
        pid = await self._forked.get()
        return pid, self._ended[pid]

    async def listen(self) -> None:
        assert self._process.stdout
        async for line in self._process.stdout:
            pid, what, *status = line.split()
            if what == b"forked":
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
    made = PluginForker(process)
    listening = asyncio.create_task(made.listen())
    try:
        yield made
    finally:
        assert process.stdin
        process.stdin.close()
        await process.wait()
        await listening


class Plugin:
    """One process."""

    def __init__(self, node: Node, pid: int, ended: asyncio.Future[int], path: Path) -> None:
        self.node = node
        self.pid = pid
        self.ended = ended
        self.path = path
        self._channel: Any = None

    async def serves(self) -> bool:
        """False where it ended first."""
        async with asyncio.timeout(_TIMEOUT):
            while not self.ended.done():
                if is_live(self.node.registration(self.path)) and is_live(self.path):
                    return True
                await asyncio.sleep(0.005)
        return False

    async def prepare(self, *refs: Ref) -> Mapping[str, str] | None:
        """By UID an error or nothing; None where the process died at it."""
        return await self._call("NodePrepareResources", pb.NodePrepareResourcesRequest, refs)

    async def unprepare(self, *refs: Ref) -> Mapping[str, str] | None:
        return await self._call("NodeUnprepareResources", pb.NodeUnprepareResourcesRequest, refs)

    async def _call(self, method: str, request: Any, refs: Sequence[Ref]) -> Mapping[str, str] | None:
        channel = dial(self.path)
        try:
            call = getattr(pb_grpc.DRAPluginStub(channel), method)
            claims = [pb.Claim(namespace=n, name=m, uid=u) for n, m, u in refs]
            answer = await call(request(claims=claims), timeout=_TIMEOUT)
            return {uid: result.error for uid, result in answer.claims.items()}
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
    """A kubelet's root of its own, with two claims, ``a`` on c-0 and ``b`` on c-1."""

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
        self.registry = folder / "plugins_registry"
        self.plugin_dir.parent.mkdir()
        self.registry.mkdir()
        self.log = folder / "log"
        self.log.touch()
        described.build(folder / "sys", {"functions": []})
        self.over: list[Ref] = []  # claims of pods that have ended
        self._registrations: dict[Path, Path] = {}
        self._started: list[Plugin] = []

    def registration(self, path: Path) -> Path:
        return self._registrations[path]

    async def start(self, arm: str = "", step: int = -1, pod: str = "", **more: str) -> Plugin:
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
            **more,
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
        """Claim UID to state."""
        path = self.plugin_dir / "records.journal"
        if not path.exists():
            return {}
        return {r.uid: str(r.state) if isinstance(r, Record) else "Unreadable" for r in read_rows(path)}

    def holders(self, part: str) -> dict[str, str]:
        """Device to claim UID; a device has two parts, ``a`` and ``b``."""
        return {p.stem: p.read_text() for p in self.hardware.glob(f"*.{part}")}

    async def published(self, count: int, unless: Plugin) -> None:
        """Waits until the slices tell of ``count`` devices, each once, in whole pools and nothing else; or a plugin has ended."""
        async with asyncio.timeout(_TIMEOUT):
            while not unless.ended.done():
                pools = [s["spec"]["pool"] for s in self.cluster.slices(DRIVER)]
                names = [d["name"] for s in self.cluster.slices(DRIVER) for d in s["spec"].get("devices") or []]
                whole = len({p["generation"] for p in pools}) == 1 and all(
                    p["resourceSliceCount"] == len(pools) for p in pools
                )
                if whole and len(names) == len(set(names)) == count:
                    return
                await asyncio.sleep(0.01)

    def left(self) -> list[str]:
        """All files but those that a plugin leaves: journals, good and damaged, their lock, and what it knows of taints."""
        kept = {".records.lock", "records.journal", "taint-times.json"}
        found = [p for f in (self.plugin_dir, self.registry, self.cdi, self.hardware) for p in f.rglob("*")]
        return sorted(
            str(p.relative_to(self.folder))
            for p in found
            if not (p.is_dir() or p.name in kept or p.name.startswith("records.journal.damaged-"))
        )


# --- phases: what happens until the kill, or the end of the phase. --------------


async def start(node: Node, step: int) -> None:
    one = await node.start("start", step)
    await one.serves()


async def prepare(node: Node, step: int) -> None:
    one = await node.start("prepare", step)
    assert await one.serves()
    _check_no_error(await one.prepare(node.a, node.b))


async def unprepare(node: Node, step: int) -> None:
    one = await node.start("unprepare", step)
    assert await one.serves()
    _check_no_error(await one.prepare(node.a, node.b))
    _check_no_error(await one.unprepare(node.a))


async def undo(node: Node, step: int) -> None:
    """A start that finds a claim half prepared, and another."""
    await _prepare_half(node)
    await start(node, step)


async def free(node: Node, step: int) -> None:
    """A prepare of a claim whose device another has, half prepared, and whose undo failed at the start."""
    await _prepare_half(node)
    faults = node.folder / "faults"
    faults.mkdir()
    (faults / "undo-raises").touch()
    one = await node.start("prepare", step, RECONCILE_INTERVAL="1h")
    assert await one.serves()
    other = await allocate(node.cluster, DRIVER, f"{node.a[1]}-free", "c-0")
    node.over.append(other)
    _check_no_error(await one.prepare(other))
    _check_no_error(await one.unprepare(other))


async def _prepare_half(node: Node) -> None:
    first = await node.start(KILL_AT="prepare: between two steps of hardware", KILL_SKIP="1")
    assert await first.serves()
    assert not any((await first.prepare(node.b) or {"": "died"}).values())
    assert await first.prepare(node.a) is None


async def reconcile(node: Node, step: int) -> None:
    """A claim that is gone from the API server, and that nobody unprepares."""
    one = await node.start("reconcile", step, RECONCILE_GRACE_PERIOD="0s")
    if await one.serves() and (told := await one.prepare(node.a, node.b)) is not None:
        _check_no_error(told)
        await node.cluster.client.delete(CLAIMS, node.a[1], node.a[0])
        async with asyncio.timeout(_TIMEOUT):
            while not one.ended.done() and node.a[2] in node.records():
                await asyncio.sleep(0.01)


async def repair(node: Node, step: int) -> None:
    """A start that finds no journal in the file, and a claim half prepared."""
    await _prepare_half(node)
    path = node.plugin_dir / "records.journal"
    path.write_bytes(b"no journal" * 1000)
    await start(node, step)


async def publish(node: Node, step: int) -> None:
    """A pool that grows from three slices to four, and one of whose devices has fallen ill."""
    one = await node.start(CRASH_DEVICES="130")
    await node.published(130, one)
    await one.end()
    times = node.plugin_dir / "taint-times.json"
    times.unlink(missing_ok=True)  # of slices that the last kill left
    (node.folder / "faults").mkdir()
    (node.folder / "faults" / "device-sick").touch()
    two = await node.start("publish", step, CRASH_DEVICES="200")
    await node.published(200, two)
    async with asyncio.timeout(_TIMEOUT):
        while not two.ended.done() and not times.exists():
            await asyncio.sleep(0.01)


async def update(node: Node, step: int) -> None:
    """The next instance is killed while it starts; the one before goes on."""
    old = await node.start(pod="old")
    assert await old.serves()
    _check_no_error(await old.prepare(node.a))
    new = await node.start("start", step, pod="new")
    await new.serves()
    await new.end()
    _check_no_error(await old.prepare(node.a, node.b))


async def handover(node: Node, step: int) -> None:
    """The instance before is killed while it stops; the next goes on."""
    old = await node.start("stop", step, pod="old")
    assert await old.serves()
    _check_no_error(await old.prepare(node.a))
    new = await node.start(pod="new")
    assert await new.serves()
    calls = asyncio.gather(new.prepare(node.b), new.prepare(node.a))
    await old.end(signal.SIGTERM)
    for told in await calls:
        _check_no_error(told)


PHASES: dict[str, Callable[[Node, int], Awaitable[None]]] = {
    f.__name__: f for f in (start, prepare, unprepare, undo, free, reconcile, repair, publish, update, handover)
}


def _check_no_error(told: Mapping[str, str] | None) -> None:
    """Nothing was refused; or the process died."""
    assert not any((told or {}).values()), told


# --- what holds after any kill ------------------------------------------------------------------------------------------------------


async def _check_recovery(node: Node) -> None:
    """The next instance answers as it must, hands nothing out twice, and when all is unprepared nothing is left."""
    before = _prepared_uids(node)
    next_ = await node.start()
    assert await next_.serves()
    if node.over:
        _check_no_error(await next_.unprepare(*node.over))
    other = await allocate(node.cluster, DRIVER, f"{node.a[1]}-other", "c-0")
    told = await next_.prepare(other)
    assert told is not None
    refused = told[other[2]]
    assert not refused or refused.startswith("DEVICE_HELD"), refused
    assert bool(refused) is (node.a[2] in _prepared_uids(node)), refused
    assert refused or node.a[2] not in before
    assert node.holders("a").get("c-0") == (node.a[2] if refused else other[2])
    again = await next_.prepare(node.a, node.b)
    assert again is not None
    gone = again[node.a[2]].startswith("NOT_FOUND")
    assert bool(again[node.a[2]]) is (gone or not refused), again
    assert not again[node.b[2]], again
    assert node.holders("a") == node.holders("b") == {"c-0": node.a[2] if refused else other[2], "c-1": node.b[2]}
    _check_no_error(await next_.unprepare(node.a, node.b, other))
    assert node.records() == {}
    await node.published(4, next_)
    assert await next_.end(signal.SIGTERM) == 0
    assert not (left := node.left()), left
    assert not list(node.hardware.glob("VIOLATION*"))


def _prepared_uids(node: Node) -> set[str]:
    """UIDs, as far as the database can be read."""
    try:
        return {uid for uid, state in node.records().items() if state == "Prepared"}
    except RecordsError:
        return set()


def _where(e: BaseException) -> str:
    last = traceback.extract_tb(e.__traceback__)[-1]
    return f"{describe(e)} ({Path(last.filename).name}:{last.lineno} {last.line})"


class Sweep:
    """Kills, on one cluster."""

    def __init__(self, forks: PluginForker, cluster: LocalCluster) -> None:
        self._forks = forks
        self._cluster = cluster
        self._nodes = 0

    async def steps(self, phase: str) -> list[str]:
        """Those of a phase in which nothing is killed."""
        return await self._run(phase, -1, settle=False)

    async def kill(self, phase: str, step: int) -> bool:
        """Whether the phase got to this step. Raises ``AssertionError`` with the plugins' log."""
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
            taken = [line for line in node.log.read_text(errors="replace").splitlines() if line.startswith("STEP ")]
            if settle:
                await _check_recovery(node)
        except Exception as e:
            told = f"{phase}, killed before step {step}: {_where(e)}\na is {a[2]}, b {b[2]}\n{node.log.read_text(errors='replace')}"
            raise AssertionError(told) from e
        finally:
            await node.end()
            shutil.rmtree(folder)
        return taken


@contextlib.asynccontextmanager
async def sweep() -> AsyncIterator[Sweep]:
    async with plugin_forker() as made, LocalCluster(timers=Timers(plugin_poll_interval=0.05)) as cluster:
        await cluster.apply(device_class("devices", DRIVER))
        yield Sweep(made, cluster)


async def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("phases", nargs="*", default=list(PHASES), help=f"of {', '.join(PHASES)}")
    parser.add_argument("--every", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    args = parser.parse_args()
    faults = 0
    async with sweep() as s:
        for phase in args.phases:
            began, step, kills, missed = time.monotonic(), args.first, 0, 0
            while missed < _MISSES:
                try:
                    reached = await s.kill(phase, step)
                    kills, missed = kills + reached, 0 if reached else missed + 1
                except AssertionError as e:
                    faults += 1
                    print(f"FAULT {e}", flush=True)
                step += args.every
            print(f"{phase}: {kills} kills, {time.monotonic() - began:.0f} s", flush=True)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
