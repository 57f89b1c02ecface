"""Builds the OCI spec of a container, as containerd does."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dra_kubeletplugin.base.json_types import JSON

from ...cdi.cache import CdiCache, CdiInjectError
from .interface import ContainerConfig, ContainerError, Limits, Mount

CAPABILITIES = (
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
)
_NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_NET_RAW": 13,
    "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_MOUNTS: list[JSON] = [
    {"destination": "/proc", "type": "proc", "source": "proc", "options": ["nosuid", "noexec", "nodev"]},
    {
        "destination": "/dev",
        "type": "tmpfs",
        "source": "tmpfs",
        "options": ["nosuid", "strictatime", "mode=755", "size=65536k"],
    },
    {
        "destination": "/dev/pts",
        "type": "devpts",
        "source": "devpts",
        "options": ["nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"],
    },
    {"destination": "/dev/mqueue", "type": "mqueue", "source": "mqueue", "options": ["nosuid", "noexec", "nodev"]},
    {"destination": "/sys", "type": "sysfs", "source": "sysfs", "options": ["nosuid", "noexec", "nodev", "ro"]},
    {
        "destination": "/sys/fs/cgroup",
        "type": "cgroup",
        "source": "cgroup",
        "options": ["nosuid", "noexec", "nodev", "relatime", "ro"],
    },
]
_PERIOD = 100_000  # microseconds
_SHARES = 1024  # the weight of a cgroup without requests
_MASKED = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True)
class OciProcess:
    """The process of a container."""

    args: Sequence[str]
    env: Sequence[str]
    cwd: str
    uid: int
    gid: int
    groups: Sequence[int] = ()
    capabilities: Sequence[str] = CAPABILITIES
    no_new_privileges: bool = False
    terminal: bool = False


@dataclass(frozen=True)
class ContainerContext:
    """The surroundings of a container's process. ``namespaces`` contains the file of each namespace of the pod, by type."""

    mounts: Sequence[Mount]
    namespaces: Mapping[str, str] = field(default_factory=dict)
    cgroup: str = ""
    read_only_root: bool = False
    limits: Limits = field(default_factory=Limits)


def base_spec(process: OciProcess, context: ContainerContext) -> JSON:
    """Returns the OCI spec of a container without CDI devices. It allows no device; runc adds the devices of every container."""
    own = ("pid", "mount", "cgroup", *(t for t in ("network", "ipc", "uts") if t not in context.namespaces))
    namespaces: list[JSON] = [{"type": t} for t in own]
    namespaces += [{"type": t, "path": path} for t, path in context.namespaces.items()]
    user: JSON = {"uid": process.uid, "gid": process.gid}
    if process.groups:
        user["additionalGids"] = list(process.groups)
    capabilities = sorted(set(process.capabilities) & available())
    linux: JSON = {
        "resources": {"devices": [{"allow": False, "access": "rwm"}], **_resources(context.limits)},
        "namespaces": namespaces,
        "maskedPaths": list(_MASKED),
        "readonlyPaths": list(_READ_ONLY),
    }
    if context.cgroup:
        linux["cgroupsPath"] = context.cgroup
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": process.terminal,
            "user": user,
            "args": list(process.args),
            "env": list(process.env),
            "cwd": process.cwd,
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "noNewPrivileges": process.no_new_privileges,
        },
        "root": {"path": "rootfs", "readonly": context.read_only_root},
        "mounts": [*copy.deepcopy(_MOUNTS), *map(bind, context.mounts)],
        "linux": linux,
    }


def _resources(limits: Limits) -> JSON:
    """Returns the CPU and memory limits of the cgroup. Source: kubernetes, pkg/kubelet/cm/helpers_linux.go.

    The cgroup is beside the cgroups of this machine's processes, not below ``kubepods``, which has the weight of the whole machine. So a
    container has at least the weight of a process here. With less, a plugin that requests 10m would not start on a busy machine.
    """
    out: JSON = {"memory": {"limit": limits.memory}} if limits.memory else {}
    cpu: JSON = {"shares": max(_SHARES, limits.share * 1024 // 1000)} if limits.share else {}
    if limits.cpu:
        cpu |= {"quota": max(1000, limits.cpu * _PERIOD // 1000), "period": _PERIOD}
    return out | ({"cpu": cpu} if cpu else {})


def bind(mount: Mount) -> JSON:
    options = ["rbind", "rprivate", "ro" if mount.read_only else "rw"]
    return {"destination": mount.container, "type": "bind", "source": str(mount.host), "options": options}


def available() -> frozenset[str]:
    """Returns the default capabilities of a container, without those that this process cannot grant."""
    bits = 0
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapBnd:"):
            bits = int(line.split()[1], 16)
    return frozenset(name for name, number in _NUMBERS.items() if bits >> number & 1)


def with_devices(spec: JSON, container: ContainerConfig, cdi_dirs: Sequence[Path], dev: Path) -> JSON:
    """Returns the spec with the container's devices. Device nodes are looked up below ``dev``.

    Raises:
        ContainerError: the injection failed. The text is the same as containerd's.
    """
    try:
        return CdiCache(cdi_dirs).inject(spec, container.cdi_devices, dev)
    except CdiInjectError as e:
        raise ContainerError(f"failed to create containerd container: CDI device injection failed: {e}") from None
