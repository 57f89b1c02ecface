"""Settings of a plugin process on a node. The paths of the plugin's own files derive from the kubelet root."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import Field, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

from ...errors import SettingsError
from ..files import at_home
from .folders import folder_faults
from .values import (
    MAX_DURATION,
    Audience,
    OptionFault,
    duration,
    one_of,
    option,
    read_address,
    read_count,
    read_flag,
    values_of,
)

DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_DRIVER_NAME = 63
HEALTH_TIMEOUT = 30.0  # seconds, the kubelet's own default
UNHEALTHY_AFTER = 1  # reports in a row
HEALTHY_AFTER = 3  # reports in a row
_FOLDERS = {"kubelet_root", "cdi_root", "sysfs_root", "dev_root", "proc_root"}
_MAX_NODE_NAME = 253
_UID = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,126}[A-Za-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of a plugin process. Durations are in seconds. Paths are absolute after :meth:`load`."""

    process: ClassVar[Audience] = Audience.NODE
    """The process to which these settings apply. Options of other processes keep their defaults."""

    driver_name: str = option(
        "DRIVER_NAME",
        "",
        "Name of the driver, a DNS subdomain of at most 63 bytes; by default the name in its class.",
        to=Audience.ALL,
    )
    node_name: str = option(
        "NODE_NAME", "", "Name of this node's Node object; in a pod, from the downward API field spec.nodeName."
    )
    pod_uid: str = option(
        "POD_UID", "", "UID of this pod, from the downward API field metadata.uid; it enables rolling updates."
    )
    kubeconfig: str = option(
        "KUBECONFIG",
        "",
        "Path of a kubeconfig, or several paths as for kubectl, separated by ':'; without it, the service account is used.",
        to=Audience.ROLES,
    )
    service_account: str = option(
        "SERVICE_ACCOUNT",
        "",
        "Folder with a service account's `token` and `ca.crt`, for the API server at KUBERNETES_SERVICE_HOST; by default the pod's.",
        to=Audience.ROLES,
    )
    kubelet_root: Path = option(
        "KUBELET_ROOT", Path("/var/lib/kubelet"), "Folder that the kubelet uses as its --root-dir.", Path
    )
    cdi_root: Path = option(
        "CDI_ROOT", Path("/var/run/cdi"), "Folder from which the container runtime reads CDI specs.", Path
    )
    sysfs_root: Path = option(
        "SYSFS_ROOT", Path("/sys"), "Folder where sysfs is mounted, or the root of a described host.", Path
    )
    dev_root: Path = option("DEV_ROOT", Path("/dev"), "Folder where the host's /dev is mounted.", Path)
    proc_root: Path = option(
        "PROC_ROOT",
        Path("/proc"),
        "Folder where the host's /proc is mounted. A container's own /proc has the kernel's files too, but no other processes.",
        Path,
    )
    process_supervisor: str = option(
        "PROCESS_SUPERVISOR",
        "",
        "Unix socket of the process supervisor that starts the processes of claims; a name without '/' is in the driver's folder. "
        "Without it, the plugin starts them itself.",
    )
    http_address: str = option(
        "HTTP_ADDRESS",
        "",
        "HOST:PORT that serves /metrics, /healthz and /readyz, and on a node a status page at / for clients on the loopback; off if empty.",
        read_address,
        to=Audience.ROLES,
    )
    log_format: str = option(
        "LOG_FORMAT", "text", "Format of log lines: text or json.", one_of("text", "json"), to=Audience.ALL
    )
    log_level: str = option(
        "LOG_LEVEL",
        "info",
        "Lowest level of log lines: debug, info, warning or error.",
        one_of("debug", "info", "warning", "error"),
        to=Audience.ALL,
    )
    call_timeout: float = duration(
        "CALL_TIMEOUT",
        40.0,
        "Time limit of a response to the kubelet; it must be below the kubelet's time limit of 45s.",
    )
    api_timeout: float = duration("API_TIMEOUT", 15.0, "Time limit of a response of the API server.", to=Audience.ROLES)
    start_timeout: float = duration(
        "START_TIMEOUT",
        60.0,
        "Time limit of the driver's start(); the plugin ends if it is exceeded.",
        to=Audience.ROLES,
    )
    discovery_timeout: float = duration(
        "DISCOVERY_TIMEOUT",
        10.0,
        "Time after which a running devices() of the driver is reported as hanging, and the start no longer waits for it.",
        to=Audience.ROLES,
    )
    shutdown_grace_period: float = duration(
        "SHUTDOWN_GRACE_PERIOD",
        20.0,
        "Time that calls in flight may take after SIGTERM. It must be at least 10s shorter than the pod's "
        "terminationGracePeriodSeconds: a plugin whose shutdown hangs exits 5s after this time, and the other 5s are a reserve.",
        least=0,
        to=Audience.ALL,
    )
    lock_timeout: float = duration(
        "LOCK_TIMEOUT", 10.0, "Longest wait for another instance that locks the records or works on a claim."
    )
    rescan_interval: float = duration(
        "RESCAN_INTERVAL",
        60.0,
        "Interval between calls of the driver's devices(); hardware events cause further calls.",
        to=Audience.ROLES,
    )
    health_interval: float = duration("HEALTH_INTERVAL", 10.0, "Interval between calls of the driver's health().")
    reconcile_interval: float = duration(
        "RECONCILE_INTERVAL",
        300.0,
        "Interval between reconcile passes, which compare records, CDI specs and the API server's claims.",
    )
    reconcile_grace_period: float = duration(
        "RECONCILE_GRACE_PERIOD",
        120.0,
        "Time for which a claim must be missing from the API server before the plugin unprepares it.",
        least=0,
    )
    local_cluster: bool = option(
        "LOCAL_CLUSTER",
        False,
        "1 on a developer's machine, whose hardware must not be changed; `dra dev` sets it.",
        read_flag,
    )
    unhealthy_policy: str = option(
        "UNHEALTHY_POLICY",
        "refuse",
        "Whether a claim with an unhealthy device is prepared: refuse or allow.",
        one_of("refuse", "allow"),
    )
    unhealthy_effect: str = option(
        "UNHEALTHY_EFFECT",
        "",
        "Effect of all taints for bad health: None, NoSchedule, or NoExecute (evicts pods). It replaces the driver's effect.",
        one_of("", "None", "NoSchedule", "NoExecute"),
    )
    unhealthy_after: int = option(
        "UNHEALTHY_AFTER",
        UNHEALTHY_AFTER,
        "Number of consecutive reports that make a healthy device unhealthy; the first report of a device counts at once.",
        read_count,
    )
    healthy_after: int = option(
        "HEALTHY_AFTER",
        HEALTHY_AFTER,
        "Number of consecutive reports that make an unhealthy device healthy.",
        read_count,
    )
    list_attributes: bool = option(
        "LIST_ATTRIBUTES",
        False,
        "1 if the cluster's feature gate DRAListTypeAttributes is on; then numaNode is published as a list.",
        read_flag,
        to=Audience.ROLES,
    )

    @classmethod
    def options(cls) -> list[Field[Any]]:
        """Returns the fields that apply to this process."""
        return [f for f in fields(cls) if cls.process in f.metadata["to"]]

    @classmethod
    def load(cls, given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Self:
        """Loads settings: a flag wins over the environment, which wins over the default.

        Args:
            given: values of flags by field name; None for a flag that is not set.
            environ: environment; None for the process's own.

        Raises :class:`SettingsError` with all values that cannot be parsed. :meth:`check` checks whether the settings work on this machine.
        """
        values, faults = values_of(cls.options(), given or {}, os.environ if environ is None else environ)
        if faults:
            raise SettingsError(*faults)
        return cls(**{k: v.absolute() if k in _FOLDERS else v for k, v in values.items()})

    @property
    def registry_dir(self) -> Path:
        """Folder in which the kubelet looks for registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def pod_resources_socket(self) -> Path:
        """Socket at which the kubelet lists its pods."""
        return self.kubelet_root.absolute() / "pod-resources" / "kubelet.sock"

    @property
    def plugin_dir(self) -> Path:
        """This driver's own folder: DRA socket, claim records, process locks. It follows from the kubelet root and the driver's name."""
        return self.kubelet_root / "plugins" / self.driver_name

    @property
    def records_path(self) -> Path:
        """The folder with a file for each claim."""
        return self.plugin_dir / "claims"

    @property
    def health_timeout(self) -> float:
        """Seconds after which a health report is out of date."""
        return max(HEALTH_TIMEOUT, 3 * self.health_interval)

    def faults(self) -> list[str]:
        """Returns a sentence for each fault that prevents a plugin from running with these settings."""
        out = self.name_faults()
        if not self.node_name:
            out.append("no node name: set --node-name (NODE_NAME), in a pod from the downward API field spec.nodeName")
        elif len(self.node_name) > _MAX_NODE_NAME or not DNS_SUBDOMAIN.fullmatch(self.node_name):
            out.append(
                f"--node-name (NODE_NAME) {self.node_name!r} is not the name of a Node object: see `kubectl get nodes`"
            )
        if self.pod_uid and not _UID.fullmatch(self.pod_uid):
            out.append(f"--pod-uid (POD_UID) {self.pod_uid!r} is not a UID: use the downward API field metadata.uid")
        out += folder_faults(self)
        if not self.sysfs_root.is_dir():
            out.append(f"--sysfs-root (SYSFS_ROOT) {self.sysfs_root} is not a folder")
        if not self.dev_root.is_dir():
            out.append(f"--dev-root (DEV_ROOT) {self.dev_root} is not a folder: mount the host's /dev there")
        if self.proc_root != Path("/proc") and not self.proc_root.is_dir():
            out.append(f"--proc-root (PROC_ROOT) {self.proc_root} is not a folder: mount the host's /proc there")
        return out + self.common_faults()

    def common_faults(self) -> list[str]:
        """Returns a sentence for each fault that applies to all roles, except faults of the driver's name."""
        out: list[str] = []
        if self.kubeconfig and not any(at_home(p).is_file() for p in self.kubeconfig.split(os.pathsep) if p):
            out.append(f"--kubeconfig (KUBECONFIG) {self.kubeconfig} is not a file")
        for f in fields(self):
            least, value = f.metadata.get("least"), getattr(self, f.name)
            if least is None:
                continue
            is_number = isinstance(value, int | float)  # settings of a test may have another type
            if not is_number or not least <= value <= MAX_DURATION:
                flag, env = f.metadata["flag"], f.metadata["env"]
                text = f"{value:g}s" if is_number else f"{value!r} is not a number of seconds: it"
                problem = f"{text} must be at least {least:g}s and at most 30 days"
                out.append(OptionFault.of(f"{flag} ({env})", env, problem))
            elif f.name == "call_timeout" and value >= 45:
                problem = "must be below the kubelet's time limit of 45s"
                out.append(OptionFault.of("--call-timeout (CALL_TIMEOUT)", "CALL_TIMEOUT", problem))
        return out

    def name_faults(self) -> list[str]:
        """Returns the faults of the driver's name."""
        out = []
        if not self.driver_name:
            out.append("the driver has no name: set `name` in its class, or --driver-name (DRIVER_NAME)")
        elif len(self.driver_name.encode()) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(self.driver_name):
            out.append(
                f"--driver-name (DRIVER_NAME) {self.driver_name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} "
                "bytes (lower case letters, digits, '-' and '.'): choose one like fpga.example.com"
            )
        return out

    def check(self) -> None:
        """Raises :class:`SettingsError` with all faults at once."""
        if faults := self.faults():
            raise SettingsError(*faults)
