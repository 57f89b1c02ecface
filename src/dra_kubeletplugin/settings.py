"""Every option of the plugin: environment variable, flag, default; all paths derive from one kubelet root."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from .errors import SettingsError

DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_DRIVER_NAME = 63


def _option(flag: str, env: str, default: Any, help: str, parse: Callable[[str], Any] = str) -> Any:
    return field(default=default, metadata={"flag": flag, "env": env, "help": help, "parse": parse})


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m|h)?", text)
    if not match:
        raise ValueError("not a duration; write it like 500ms, 45s, 5m or 1h")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(allowed)}")
        return text

    return parse


def _address(text: str) -> str:
    if text and not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:\s]*):\d{1,5}", text):
        raise ValueError("not HOST:PORT or :PORT")
    return text


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a plugin process is told. Durations are seconds. Paths are absolute after :func:`load`."""

    driver_name: str = _option(
        "--driver-name",
        "DRIVER_NAME",
        "",
        "Name of the driver, in place of the class's own; a DNS subdomain of 63 bytes.",
    )
    node_name: str = _option(
        "--node-name", "NODE_NAME", "", "Name of this node's Node object (downward spec.nodeName)."
    )
    pod_uid: str = _option(
        "--pod-uid", "POD_UID", "", "UID of this pod (downward metadata.uid); turns rolling update on."
    )
    kubeconfig: str = _option(
        "--kubeconfig",
        "KUBECONFIG",
        "",
        "Path of a kubeconfig, or several as kubectl takes them; without it the pod's service account is used.",
    )
    kubelet_root: Path = _option(
        "--kubelet-root", "KUBELET_ROOT", Path("/var/lib/kubelet"), "The kubelet's --root-dir.", Path
    )
    cdi_root: Path = _option(
        "--cdi-root", "CDI_ROOT", Path("/var/run/cdi"), "Folder for CDI specs that the container runtime reads.", Path
    )
    sysfs_root: Path = _option("--sysfs-root", "SYSFS_ROOT", Path("/sys"), "Where sysfs is, or a described host.", Path)
    dev_root: Path = _option("--dev-root", "DEV_ROOT", Path("/dev"), "Where the host's /dev is seen from here.", Path)
    http_address: str = _option(
        "--http-address", "HTTP_ADDRESS", "", "HOST:PORT for /metrics, /healthz and /readyz; off when empty.", _address
    )
    log_format: str = _option("--log-format", "LOG_FORMAT", "text", "text or json.", _choice("text", "json"))
    log_level: str = _option(
        "--log-level",
        "LOG_LEVEL",
        "info",
        "debug, info, warning or error.",
        _choice("debug", "info", "warning", "error"),
    )
    call_timeout: float = _option(
        "--call-timeout", "CALL_TIMEOUT", 40.0, "Answer the kubelet within this; it gives up after 45s.", _seconds
    )
    stop_grace: float = _option(
        "--stop-grace",
        "STOP_GRACE",
        20.0,
        "Let calls in flight end for this long at SIGTERM; below the pod's own grace.",
        _seconds,
    )
    lock_wait: float = _option(
        "--lock-wait",
        "LOCK_WAIT",
        10.0,
        "Longest wait for another instance that holds the records or a claim.",
        _seconds,
    )
    rescan_interval: float = _option(
        "--rescan-interval", "RESCAN_INTERVAL", 60.0, "Look at the hardware again this often, events or not.", _seconds
    )
    health_interval: float = _option(
        "--health-interval", "HEALTH_INTERVAL", 10.0, "Ask the driver for its devices' health this often.", _seconds
    )
    reconcile_interval: float = _option(
        "--reconcile-interval", "RECONCILE_INTERVAL", 300.0, "Compare records with the API server this often.", _seconds
    )
    reconcile_grace: float = _option(
        "--reconcile-grace",
        "RECONCILE_GRACE",
        120.0,
        "A claim must be gone for this long before it is unprepared.",
        _seconds,
    )
    local_cluster: bool = _option(
        "--local-cluster",
        "LOCAL_CLUSTER",
        False,
        "1 when the machine is somebody's own and its hardware must be left as it is; `dra dev` sets it.",
        lambda text: text.lower() in {"1", "true", "yes"},
    )
    unhealthy_policy: str = _option(
        "--unhealthy-policy",
        "UNHEALTHY_POLICY",
        "refuse",
        "refuse or allow a prepare of a device that the driver reports as unhealthy.",
        _choice("refuse", "allow"),
    )

    @property
    def registry_dir(self) -> Path:
        """Where the kubelet looks for registration sockets."""
        return self.kubelet_root / "plugins_registry"

    @property
    def plugin_dir(self) -> Path:
        """This driver's own folder: DRA socket, claim records, process locks."""
        return self.kubelet_root / "plugins" / self.driver_name

    @property
    def records_path(self) -> Path:
        return self.plugin_dir / "records.db"

    @property
    def rolling_update(self) -> bool:
        return bool(self.pod_uid)

    def faults(self) -> list[str]:
        """A sentence for everything that keeps a plugin from running with these settings."""
        out = []
        if not self.driver_name:
            out.append("the driver has no name: set `name` in its class, or --driver-name (DRIVER_NAME)")
        elif len(self.driver_name.encode()) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(self.driver_name):
            out.append(
                f"--driver-name (DRIVER_NAME) {self.driver_name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} "
                "bytes (lower case letters, digits, '-' and '.'): choose one like fpga.example.com"
            )
        if not self.node_name:
            out.append("no node name: set --node-name (NODE_NAME), in a pod from the downward API field spec.nodeName")
        if not self.registry_dir.is_dir():
            out.append(
                f"--kubelet-root (KUBELET_ROOT) {self.kubelet_root} has no folder plugins_registry: give the kubelet's "
                "--root-dir (k0s, k3s and microk8s use others than /var/lib/kubelet) and mount it into the pod"
            )
        elif not os.access(self.registry_dir, os.W_OK | os.X_OK):
            out.append(f"{self.registry_dir} cannot be written by uid {os.getuid()}: run as a user who can")
        out += _unwritable(self.plugin_dir, "--kubelet-root (KUBELET_ROOT)")
        out += _unwritable(self.cdi_root, "--cdi-root (CDI_ROOT)")
        if not self.sysfs_root.is_dir():
            out.append(f"--sysfs-root (SYSFS_ROOT) {self.sysfs_root} is not a folder")
        if self.kubeconfig and not any(Path(p).expanduser().is_file() for p in self.kubeconfig.split(os.pathsep) if p):
            out.append(f"--kubeconfig (KUBECONFIG) {self.kubeconfig} is not a file")
        if self.call_timeout >= 45:
            out.append("--call-timeout (CALL_TIMEOUT) must be below the kubelet's 45s")
        return out

    def check(self) -> None:
        """Raises :class:`SettingsError` with all faults at once."""
        if faults := self.faults():
            raise SettingsError(*faults)


def _unwritable(folder: Path, option: str) -> list[str]:
    """Tries to make and write ``folder``; access bits alone lie on read-only mounts."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe-{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        return [f"{option}: {folder} cannot be written ({e.strerror}): mount it read-write, or name another folder"]
    return []


def load(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from flags (``given``, by field name; None means not given), else environment, else default.

    Raises :class:`SettingsError` with all unreadable values at once. Whether they can work together on this
    machine is :meth:`Settings.check`.
    """
    given = given or {}
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    faults = []
    for f in fields(Settings):
        raw = given.get(f.name)
        source = f.metadata["flag"]
        if raw is None and environ.get(f.metadata["env"]):
            raw, source = environ[f.metadata["env"]], f.metadata["env"]
        if raw is None:
            continue
        try:
            values[f.name] = f.metadata["parse"](raw) if isinstance(raw, str) else raw
        except ValueError as e:
            faults.append(f"{source} {raw!r} is {e}")
    if faults:
        raise SettingsError(*faults)
    for name in ("kubelet_root", "cdi_root", "sysfs_root", "dev_root"):
        if name in values:
            values[name] = values[name].absolute()
    return Settings(**values)


def page() -> str:
    """The Markdown page that lists all options."""
    lines = ["# Options", "", "Generated from `src/dra_kubeletplugin/settings.py` by `make docs`.", ""]
    lines += ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for f in fields(Settings):
        default = f"{f.default:g}s" if isinstance(f.default, float) else str(f.default)
        lines.append(f"| `{f.metadata['flag']}` | `{f.metadata['env']}` | `{default or ' '}` | {f.metadata['help']} |")
    return "\n".join(lines) + "\n"
