"""All that is looked at, in order, with what is known of the place."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DraError, describe
from ...kube import ApiConfig, KubeClient
from . import cluster, kubelet, machine, processes, published, records, runtimes, specs
from .cluster import Permission
from .findings import Finding, failure, unknown


@dataclass(frozen=True, kw_only=True)
class Examination:
    """What to look at.

    Args:
        api: how the API server is asked; a sentence where that is not known.
        permissions: what the account has to be allowed.
        host: whether this machine is looked at: a node is, a laptop is not.
        host_root: where the host's file system is seen from here.
        node: name of the Node object; all nodes' slices are looked at where it is empty.
        devices: by driver, what its code finds on this machine.
        mute: why drivers do not say what they find.
    """

    api: ApiConfig | str
    permissions: Sequence[Permission] = cluster.READER
    host: bool = True
    host_root: Path = Path("/")
    kubelet_root: Path = Path("/var/lib/kubelet")
    cdi_root: Path = Path("/var/run/cdi")
    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    node: str = ""
    devices: Mapping[str, frozenset[str]] = field(default_factory=dict)
    mute: Sequence[str] = ()
    timeout: float = 10.0


async def examine(what: Examination) -> AsyncIterator[Finding]:
    """Findings as they are made. Never raises: what cannot be looked at is a finding too."""
    if what.host:
        async for finding in _of_host(what):
            yield finding
    for why in what.mute:
        yield failure("driver", why, "mend what it names; `dra inspect DRIVER` shows where it was raised")
    if isinstance(what.api, str):
        yield unknown("API server", what.api)  # which says what to give
        if what.host:
            async for finding in _safely("records", lambda: records.look(what.kubelet_root, what.cdi_root, None)):
                yield finding
        return
    async with KubeClient(what.api, what.timeout) as client:
        looks: list[tuple[str, Callable[[], AsyncIterator[Finding]]]] = [
            ("API server", lambda: cluster.look(client, what.permissions)),
            ("slices", lambda: published.look(client, what.node, what.devices)),
        ]
        if what.host:
            looks.append(("records", lambda: records.look(what.kubelet_root, what.cdi_root, client)))
        for topic, look in looks:
            async for finding in _safely(topic, look):
                yield finding


async def _of_host(what: Examination) -> AsyncIterator[Finding]:
    root = what.host_root
    seen = await asyncio.to_thread(lambda: list(processes.running(root)))
    folders = list(dict.fromkeys([*(root / str(f).lstrip("/") for f in runtimes.DEFAULT_FOLDERS), what.cdi_root]))
    looks: list[tuple[str, Callable[[], Iterator[Finding]]]] = [
        ("kernel", lambda: machine.look(root, what.sysfs_root, what.dev_root)),
        ("kubelet", lambda: kubelet.look(root, what.kubelet_root, seen)),
        ("sockets", lambda: kubelet.drivers(root, what.kubelet_root)),
        ("runtime", lambda: runtimes.look(root, what.cdi_root, seen)),
        ("CDI", lambda: specs.look(folders)),
    ]
    for topic, look in looks:
        async for finding in _safely(topic, lambda look=look: _in_thread(look)):  # type: ignore[misc]
            yield finding


async def _in_thread(look: Callable[[], Iterator[Finding]]) -> AsyncIterator[Finding]:
    for finding in await asyncio.to_thread(lambda: list(look())):
        yield finding


async def _safely(topic: str, look: Callable[[], AsyncIterator[Finding]]) -> AsyncIterator[Finding]:
    """A node is odd in ways that nobody thought of: one look that breaks leaves the others."""
    try:
        async for finding in look():
            yield finding
    except DraError as e:
        yield unknown(topic, e.message)
    except Exception as e:
        yield unknown(topic, f"it could not be looked at: {describe(e)}", "please report this")
