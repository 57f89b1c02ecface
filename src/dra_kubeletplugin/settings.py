"""Every option of the plugin: environment variable, flag, default; all paths derive from one kubelet root."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar, overload

from .errors import SettingsError
from .mounts import in_container, on_root

DNS_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
MAX_DRIVER_NAME = 63
HEALTH_TIMEOUT = 30.0  # seconds, the kubelet's own default
MAX_DURATION = 30 * 86400.0
_MAX_NODE_NAME = 253
_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_UID = re.compile(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,126}[A-Za-z0-9])?")


def _option(flag: str, env: str, default: Any, help: str, parse: Callable[[str], Any] = str) -> Any:
    return field(default=default, metadata={"flag": flag, "env": env, "help": help, "parse": parse})


def _duration(flag: str, env: str, default: float, help: str, least: float = 0.1) -> Any:
    """A duration in seconds of at least ``least``, which is below what makes sense so that tests may be quick."""
    return field(default=default, metadata={"flag": flag, "env": env, "help": help, "parse": _seconds, "least": least})


def _seconds(text: str) -> float:
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h)?", text, re.ASCII)
    if not match:
        raise ValueError("not a duration; write it like 500ms, 45s, 5m or 1h")
    return float(match[1]) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[match[2] or "s"]


def _choice(*allowed: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError(f"not one of {', '.join(filter(None, allowed))}")
        return text

    return parse


def _flag(text: str) -> bool:
    if text.lower() in {"1", "true", "yes", "on"}:
        return True
    if text.lower() in {"0", "false", "no", "off"}:
        return False
    raise ValueError("neither 1 nor 0")


def _count(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII):
        raise ValueError("not a number from 1 to 9999")
    return int(text)


def _address(text: str) -> str:
    match = re.fullmatch(r"(?:\[[0-9a-fA-F:]+\]|[^:\s]*):(\d{1,5})", text, re.ASCII)
    if text and (not match or int(match[1]) > 65535):
        raise ValueError("not HOST:PORT or :PORT")
    return text


S = TypeVar("S", bound="Settings")


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
        "Path of a kubeconfig, or several as kubectl takes them; without it the service account is used. Needs the extra `kubeconfig`.",
    )
    service_account: str = _option(
        "--service-account",
        "SERVICE_ACCOUNT",
        "",
        "Folder with a service account's `token` and `ca.crt`, for the server at KUBERNETES_SERVICE_HOST; the pod's own when empty.",
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
        "--http-address",
        "HTTP_ADDRESS",
        "",
        "HOST:PORT for /metrics, /healthz and /readyz; on a node also a page at /, for the loopback alone; off when empty.",
        _address,
    )
    log_format: str = _option("--log-format", "LOG_FORMAT", "text", "text or json.", _choice("text", "json"))
    log_level: str = _option(
        "--log-level",
        "LOG_LEVEL",
        "info",
        "debug, info, warning or error.",
        _choice("debug", "info", "warning", "error"),
    )
    call_timeout: float = _duration(
        "--call-timeout", "CALL_TIMEOUT", 40.0, "Answer the kubelet within this; it gives up after 45s."
    )
    api_timeout: float = _duration(
        "--api-timeout", "API_TIMEOUT", 15.0, "Longest wait for one answer of the API server."
    )
    start_timeout: float = _duration(
        "--start-timeout", "START_TIMEOUT", 60.0, "Longest wait for the driver's start(); the plugin ends after it."
    )
    scan_timeout: float = _duration(
        "--scan-timeout",
        "SCAN_TIMEOUT",
        10.0,
        "A devices() of the driver that takes longer is reported; start waits no longer for the first.",
    )
    stop_grace: float = _duration(
        "--stop-grace",
        "STOP_GRACE",
        20.0,
        "Let calls in flight end for this long at SIGTERM; 10s below the pod's own grace, because a stop that hangs is cut "
        "5s later.",
        least=0,
    )
    lock_wait: float = _duration(
        "--lock-wait", "LOCK_WAIT", 10.0, "Longest wait for another instance that holds the records or a claim."
    )
    rescan_interval: float = _duration(
        "--rescan-interval", "RESCAN_INTERVAL", 60.0, "Look at the hardware again this often, events or not."
    )
    health_interval: float = _duration(
        "--health-interval", "HEALTH_INTERVAL", 10.0, "Ask the driver for its devices' health this often."
    )
    reconcile_interval: float = _duration(
        "--reconcile-interval", "RECONCILE_INTERVAL", 300.0, "Compare records with the API server this often."
    )
    reconcile_grace: float = _duration(
        "--reconcile-grace",
        "RECONCILE_GRACE",
        120.0,
        "A claim must be gone for this long before it is unprepared.",
        least=0,
    )
    local_cluster: bool = _option(
        "--local-cluster",
        "LOCAL_CLUSTER",
        False,
        "1 when the machine is somebody's own and its hardware must be left as it is; `dra dev` sets it.",
        _flag,
    )
    unhealthy_policy: str = _option(
        "--unhealthy-policy",
        "UNHEALTHY_POLICY",
        "refuse",
        "refuse or allow a prepare of a device that the driver reports as unhealthy.",
        _choice("refuse", "allow"),
    )
    unhealthy_effect: str = _option(
        "--unhealthy-effect",
        "UNHEALTHY_EFFECT",
        "",
        "Effect of every taint for bad health, in place of what the driver says: None, NoSchedule, or NoExecute, which evicts pods.",
        _choice("", "None", "NoSchedule", "NoExecute"),
    )
    unhealthy_after: int = _option(
        "--unhealthy-after",
        "UNHEALTHY_AFTER",
        1,
        "Reports in a row that must call a healthy device unhealthy before it counts; the first of all counts at once.",
        _count,
    )
    healthy_after: int = _option(
        "--healthy-after",
        "HEALTHY_AFTER",
        3,
        "Reports in a row that must call an unhealthy device healthy before it counts.",
        _count,
    )
    list_attributes: bool = _option(
        "--list-attributes",
        "LIST_ATTRIBUTES",
        False,
        "1 where the cluster's feature gate DRAListTypeAttributes is on: numaNode is published as a list then.",
        _flag,
    )

    def __post_init__(self) -> None:
        """Of settings that are made in Python; what :func:`load` reads is a number already."""
        out = [
            f"{f.name} is {value!r}, not a number of seconds"
            for f in fields(self)
            if "least" in f.metadata
            and (isinstance(value := getattr(self, f.name), bool) or not isinstance(value, int | float))
        ]
        if out:
            raise SettingsError(*out)

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
    def health_timeout(self) -> float:
        """Seconds after which a health report says nothing any more."""
        return max(HEALTH_TIMEOUT, 3 * self.health_interval)

    def faults(self) -> list[str]:
        """A sentence for everything that keeps a plugin from running with these settings."""
        out = self.name_faults()
        if not self.node_name:
            out.append("no node name: set --node-name (NODE_NAME), in a pod from the downward API field spec.nodeName")
        elif len(self.node_name) > _MAX_NODE_NAME or not DNS_SUBDOMAIN.fullmatch(self.node_name):
            out.append(
                f"--node-name (NODE_NAME) {self.node_name!r} is no name of a Node object: see `kubectl get nodes`"
            )
        if self.pod_uid and not _UID.fullmatch(self.pod_uid):
            out.append(f"--pod-uid (POD_UID) {self.pod_uid!r} is no UID: use the downward API field metadata.uid")
        out += self._folder_faults()
        if not self.sysfs_root.is_dir():
            out.append(f"--sysfs-root (SYSFS_ROOT) {self.sysfs_root} is not a folder")
        if not self.dev_root.is_dir():
            out.append(f"--dev-root (DEV_ROOT) {self.dev_root} is not a folder: mount the host's /dev there")
        return out + self.common_faults()

    def common_faults(self) -> list[str]:
        """A sentence for everything that is wrong in either role, besides the name."""
        out = []
        if self.kubeconfig and not any(Path(p).expanduser().is_file() for p in self.kubeconfig.split(os.pathsep) if p):
            out.append(f"--kubeconfig (KUBECONFIG) {self.kubeconfig} is not a file")
        for f in fields(self):
            least, value = f.metadata.get("least"), getattr(self, f.name)
            if least is not None and not least <= value <= MAX_DURATION:
                out.append(
                    f"{f.metadata['flag']} ({f.metadata['env']}) {value:g}s must be at least {least:g}s and at most 30 days"
                )
        if self.call_timeout >= 45:
            out.append("--call-timeout (CALL_TIMEOUT) must be below the kubelet's 45s")
        return out

    def name_faults(self) -> list[str]:
        """What is wrong with the driver's name."""
        out = []
        if not self.driver_name:
            out.append("the driver has no name: set `name` in its class, or --driver-name (DRIVER_NAME)")
        elif len(self.driver_name.encode()) > MAX_DRIVER_NAME or not DNS_SUBDOMAIN.fullmatch(self.driver_name):
            out.append(
                f"--driver-name (DRIVER_NAME) {self.driver_name!r} is not a DNS subdomain of at most {MAX_DRIVER_NAME} "
                "bytes (lower case letters, digits, '-' and '.'): choose one like fpga.example.com"
            )
        return out

    def _folder_faults(self) -> list[str]:
        """Only the driver's own folder is made: a folder that is missing is a mount that is missing."""
        out = []
        kubelet, cdi = "--kubelet-root (KUBELET_ROOT)", "--cdi-root (CDI_ROOT)"
        # A laptop's containers may have no mounts at all, and who says where the API server is knows where things are.
        told = self.local_cluster or self.kubeconfig or self.service_account
        inside = not told and in_container()
        plugins = self.kubelet_root / "plugins"
        missing = [p.name for p in (self.registry_dir, plugins) if not p.is_dir()]
        if missing:
            out.append(
                f"{kubelet} {self.kubelet_root} has no folder {' and no folder '.join(missing)}: give the kubelet's "
                "--root-dir (k0s, k3s and microk8s use others than /var/lib/kubelet) and mount both folders into the pod"
            )
        elif inside and (own := [p for p in (self.registry_dir, plugins) if on_root(p)]):
            out += [_not_mounted(kubelet, p) for p in own]
        else:
            if not os.access(self.registry_dir, os.W_OK | os.X_OK):
                out.append(f"{self.registry_dir} cannot be written by uid {os.getuid()}: run as a user who can")
            if not self.name_faults():  # a name such as ../x must not become a path
                out += _unwritable(self.plugin_dir, kubelet)
        if inside and on_root(self.cdi_root):
            out.append(_not_mounted(cdi, self.cdi_root))
        else:
            out += _unwritable(self.cdi_root, cdi)
        return out

    def check(self) -> None:
        """Raises :class:`SettingsError` with all faults at once."""
        if faults := self.faults():
            raise SettingsError(*faults)


NODE_ONLY = frozenset(
    {
        "node_name", "pod_uid", "kubelet_root", "cdi_root", "sysfs_root", "dev_root", "call_timeout", "lock_wait",
        "health_interval", "reconcile_interval", "reconcile_grace", "local_cluster", "unhealthy_policy", "unhealthy_effect",
        "unhealthy_after", "healthy_after",
    }
)  # fmt: skip
"""Options that say nothing to a controller."""


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(Settings):
    """What a controller process is told; :data:`NODE_ONLY` keep their defaults."""

    namespace: str = _option(
        "--namespace",
        "POD_NAMESPACE",
        "",
        "Namespace of the Lease and of the controller's records; this pod's own. One for a driver in a cluster.",
    )
    pod_name: str = _option(
        "--pod-name", "POD_NAME", "", "Name of this pod, for the Lease's holder; the host's name when left out."
    )
    lease_duration: float = _duration(
        "--lease-duration", "LEASE_DURATION", 15.0, "Other replicas wait for this long after the leader's last sign.", 1
    )
    renew_deadline: float = _duration(
        "--renew-deadline", "RENEW_DEADLINE", 10.0, "A leader that has not renewed its Lease for this long ends."
    )
    retry_period: float = _duration("--retry-period", "RETRY_PERIOD", 2.0, "Renew, or try to lead, this often.")

    @property
    def lease_name(self) -> str:
        return f"{self.driver_name}-controller"

    def faults(self) -> list[str]:
        out = self.name_faults()
        if not _DNS_LABEL.fullmatch(self.namespace):
            out.append(
                f"--namespace (POD_NAMESPACE) {self.namespace!r} is no namespace: use the downward API field metadata.namespace"
            )
        return out + self.common_faults()


WEBHOOK_OPTIONS = frozenset({"driver_name", "log_format", "log_level", "stop_grace", "address", "tls_cert", "tls_key"})
"""Options that say something to a webhook."""


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Settings):
    """What a webhook's process is told; options but :data:`WEBHOOK_OPTIONS` keep their defaults."""

    address: str = _option(
        "--address",
        "WEBHOOK_ADDRESS",
        ":8443",
        "HOST:PORT where reviews are answered; :PORT for every address.",
        _address,
    )
    tls_cert: Path = _option(
        "--tls-cert",
        "TLS_CERT",
        Path("/etc/webhook/tls/tls.crt"),
        "The webhook's certificate with those that signed it, PEM; read again when it changes.",
        Path,
    )
    tls_key: Path = _option(
        "--tls-key", "TLS_KEY", Path("/etc/webhook/tls/tls.key"), "The certificate's key, PEM.", Path
    )

    def faults(self) -> list[str]:
        return self.name_faults()


def _unwritable(folder: Path, option: str) -> list[str]:
    """Tries to make and write ``folder``, not its parents; access bits alone lie on read-only mounts."""
    try:
        folder.mkdir(exist_ok=True)
        probe = folder / f".probe-{secrets.token_hex(4)}"  # process ids are the same in every container
        probe.write_bytes(b"")
        probe.unlink()
    except OSError as e:
        return [f"{option}: {folder} cannot be written ({e.strerror}): mount it read-write, or name another folder"]
    return []


def _not_mounted(option: str, folder: Path) -> str:
    return (
        f"{option}: {folder} is on this container's own file system, where nobody else sees it: mount the host's with "
        f"hostPath {folder}"
    )


@overload
def load(given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None) -> Settings: ...


@overload
def load(given: Mapping[str, Any] | None, environ: Mapping[str, str] | None, kind: type[S]) -> S: ...


def load(
    given: Mapping[str, Any] | None = None, environ: Mapping[str, str] | None = None, kind: type[Settings] = Settings
) -> Settings:
    """Settings from flags (``given``, by field name; None means not given), else environment, else default.

    Raises :class:`SettingsError` with all unreadable values at once. Whether they can work together on this
    machine is :meth:`Settings.check`.
    """
    given = given or {}
    environ = os.environ if environ is None else environ
    values: dict[str, Any] = {}
    faults = []
    for f in fields(kind):
        raw = given.get(f.name)
        source = f.metadata["flag"]
        if raw is None and environ.get(f.metadata["env"]):
            raw, source = environ[f.metadata["env"]], f.metadata["env"]
        if raw is None:
            continue
        try:
            if isinstance(raw, str):
                _checked(raw)
            values[f.name] = f.metadata["parse"](raw) if isinstance(raw, str) else raw
        except ValueError as e:
            faults.append(f"{source} {raw!r} is {e}")
    if faults:
        raise SettingsError(*faults)
    for name in ("kubelet_root", "cdi_root", "sysfs_root", "dev_root"):
        if name in values:
            values[name] = values[name].absolute()
    return kind(**values)


def _checked(text: str) -> None:
    """Raises ``ValueError`` for bytes that are no text: the API server, gRPC and the records take none."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("not valid UTF-8") from None


def page() -> str:
    """The Markdown page that lists all options."""
    lines = ["# Options", "", "Generated from `src/dra_kubeletplugin/settings.py` by `make docs`.", ""]
    lines += _table(fields(Settings))
    both = ", ".join(f"`{f.metadata['flag']}`" for f in fields(Settings) if f.name not in NODE_ONLY)
    known = {f.name for f in fields(Settings)}
    lines += ["", "## Controller", "", f"`dra controller` takes {both}, and:", ""]
    lines += _table([f for f in fields(ControllerSettings) if f.name not in known])
    own = ", ".join(f"`{f.metadata['flag']}`" for f in fields(Settings) if f.name in WEBHOOK_OPTIONS)
    lines += ["", "## Webhook", "", f"`dra webhook` takes {own}, and:", ""]
    lines += _table([f for f in fields(WebhookSettings) if f.name not in known])
    return "\n".join(lines) + "\n"


def _table(options: Iterable[Field[Any]]) -> list[str]:
    out = ["| flag | environment | default | meaning |", "|---|---|---|---|"]
    for f in options:
        default = f"{f.default:g}s" if isinstance(f.default, float) else str(f.default)
        out.append(f"| `{f.metadata['flag']}` | `{f.metadata['env']}` | `{default or ' '}` | {f.metadata['help']} |")
    return out
