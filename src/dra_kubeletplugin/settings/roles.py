"""What a controller and a webhook are told besides, and which of a node's options say something to them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from .node import Settings
from .values import duration, option, read_address

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")

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

    namespace: str = option(
        "--namespace",
        "POD_NAMESPACE",
        "",
        "Namespace of the Lease and of the controller's records; this pod's own. One for a driver in a cluster.",
    )
    pod_name: str = option(
        "--pod-name", "POD_NAME", "", "Name of this pod, for the Lease's holder; the host's name when left out."
    )
    lease_duration: float = duration(
        "--lease-duration", "LEASE_DURATION", 15.0, "Other replicas wait for this long after the leader's last sign.", 1
    )
    renew_deadline: float = duration(
        "--renew-deadline", "RENEW_DEADLINE", 10.0, "A leader that has not renewed its Lease for this long ends."
    )
    retry_period: float = duration("--retry-period", "RETRY_PERIOD", 2.0, "Renew, or try to lead, this often.")

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

    address: str = option(
        "--address",
        "WEBHOOK_ADDRESS",
        ":8443",
        "HOST:PORT where reviews are answered; :PORT for every address.",
        read_address,
    )
    tls_cert: Path = option(
        "--tls-cert",
        "TLS_CERT",
        Path("/etc/webhook/tls/tls.crt"),
        "The webhook's certificate with those that signed it, PEM; read again when it changes.",
        Path,
    )
    tls_key: Path = option(
        "--tls-key", "TLS_KEY", Path("/etc/webhook/tls/tls.key"), "The certificate's key, PEM.", Path
    )

    def faults(self) -> list[str]:
        return self.name_faults()
