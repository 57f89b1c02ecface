"""Runs all checks of ``dra doctor`` in order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_kubeletplugin.errors import DraError, describe
from dra_kubeletplugin.host.machine import file_system_root
from dra_kubeletplugin.kube import ApiConfig, KubeClient

from . import cluster, kubelet, machine, processes, published, records, runtimes, specs
from .cluster import Permission
from .findings import Finding, ok, unknown

Look = Callable[[], Iterable[Finding]]


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What to check, and where.

    Args:
        api: configuration of the API server; a sentence with the reason if it is unknown.
        permissions: the permissions that the account must have.
        host: whether to check this machine; true on a node, false on a laptop.
        host_root: where the host's file system is mounted here; by default HOST_ROOT.
        node: name of the Node object; empty checks all nodes' slices.
        devices: by driver, the devices that the driver's code finds on this machine.
        driver_findings: results of the drivers' own checks, and why drivers could not report their devices.
        timeout: seconds for a request to the API server.
        local: whether the kubelet's folders are those of a running `dra dev`, which has neither a kubelet nor a runtime of this machine.
    """

    api: ApiConfig | str
    permissions: Sequence[Permission] = cluster.READER
    host: bool = True
    host_root: Path = field(default_factory=file_system_root)
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_root: Path = Path("/var/run/cdi")
    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    node: str = ""
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    driver_findings: Sequence[Finding] = ()
    timeout: float = 10.0
    local: bool = False


async def examine(what: Examination) -> AsyncIterator[Finding]:
    """Yields findings as they are made. Never raises: a check that fails yields a finding."""
    registered = kubelet.Registered()
    for topic, look in _host_checks(what, registered) if what.host else ():
        async for finding in _safely(topic, _in_thread(look)):
            yield finding
    for finding in what.driver_findings:
        yield finding
    if isinstance(what.api, str):
        yield unknown("API server", what.api)  # the text contains the options to use
        if what.host:
            async for finding in _safely("records", records.look(what.kubelet_root, what.cdi_root, None)):
                yield finding
        return
    devices = what.devices if what.host and what.node else {}
    for driver in sorted(what.devices.keys() - devices.keys()):
        yield unknown(
            "slices",
            f"the devices that {driver} finds here are not compared with its slices, because no node of the cluster is checked here",
            "on a node, add --node-name NODE",
        )
    async with KubeClient(what.api, what.timeout) as client:
        names = registered.names if registered.complete else None
        checks = {
            "API server": cluster.look(client, what.permissions),
            "slices": published.look(client, what.node, devices, names),
        }
        if what.host:
            checks["records"] = records.look(what.kubelet_root, what.cdi_root, client)
        for topic, findings in checks.items():
            async for finding in _safely(topic, findings):
                yield finding


def _host_checks(what: Examination, registered: kubelet.Registered) -> Iterator[tuple[str, Look]]:
    root, cdi = what.host_root, what.cdi_root
    yield "kernel", lambda: machine.look(root, what.sysfs_root, what.dev_root)
    if what.local:
        text = f"`dra dev` runs it, with its folders at {what.kubelet_root}; this machine's kubelet and runtime are not checked"
        yield "kubelet", lambda: [ok("kubelet", text)]
    else:
        yield "kubelet", lambda: kubelet.look(root, what.kubelet_root, list(processes.running(root)))
    yield "sockets", lambda: kubelet.drivers(root, what.kubelet_root, registered)
    folders = [cdi]
    if not what.local:
        yield "runtime", lambda: runtimes.look(root, cdi, list(processes.running(root)))
        folders = list(dict.fromkeys([*(root / str(f).lstrip("/") for f in runtimes.DEFAULT_FOLDERS), cdi]))
    yield "CDI", lambda: specs.look(folders)


async def _in_thread(look: Look) -> AsyncIterator[Finding]:
    for finding in await asyncio.to_thread(lambda: list(look())):
        yield finding


async def _safely(topic: str, findings: AsyncIterator[Finding]) -> AsyncIterator[Finding]:
    """Runs one check. If it raises, a finding reports the error, and the other checks still run."""
    try:
        async for finding in findings:
            yield finding
    except DraError as e:
        yield unknown(topic, e.message)
    except Exception as e:
        yield unknown(topic, f"this check failed: {describe(e)}", "please report this")
