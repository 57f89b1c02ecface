"""Additional settings of a controller and a webhook."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from .node import Settings
from .values import Audience, duration, option, read_address

_DNS_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, kw_only=True)
class ControllerSettings(Settings):
    """Settings of a controller process."""

    process: ClassVar[Audience] = Audience.CONTROLLER

    namespace: str = option(
        "--namespace",
        "POD_NAMESPACE",
        "",
        "Namespace of the Lease and of the controller's records; this pod's own. One for a driver in a cluster.",
        to=Audience.CONTROLLER,
    )
    pod_name: str = option(
        "--pod-name",
        "POD_NAME",
        "",
        "Name of this pod, for the Lease's holder; the host's name when left out.",
        to=Audience.CONTROLLER,
    )
    lease_duration: float = duration(
        "--lease-duration",
        "LEASE_DURATION",
        15.0,
        "Other replicas wait for this long after the leader's last sign.",
        1,
        to=Audience.CONTROLLER,
    )
    renew_deadline: float = duration(
        "--renew-deadline",
        "RENEW_DEADLINE",
        10.0,
        "A leader that has not renewed its Lease for this long ends.",
        to=Audience.CONTROLLER,
    )
    retry_period: float = duration(
        "--retry-period", "RETRY_PERIOD", 2.0, "Renew, or try to lead, this often.", to=Audience.CONTROLLER
    )

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


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Settings):
    """Settings of a webhook process."""

    process: ClassVar[Audience] = Audience.WEBHOOK

    address: str = option(
        "--address",
        "WEBHOOK_ADDRESS",
        ":8443",
        "HOST:PORT where reviews are answered; :PORT for every address.",
        read_address,
        to=Audience.WEBHOOK,
    )
    tls_cert_file: Path = option(
        "--tls-cert-file",
        "TLS_CERT_FILE",
        Path("/etc/webhook/tls/tls.crt"),
        "The webhook's certificate with those that signed it, PEM; read again when it changes.",
        Path,
        to=Audience.WEBHOOK,
    )
    tls_private_key_file: Path = option(
        "--tls-private-key-file",
        "TLS_PRIVATE_KEY_FILE",
        Path("/etc/webhook/tls/tls.key"),
        "The certificate's key, PEM.",
        Path,
        to=Audience.WEBHOOK,
    )

    def faults(self) -> list[str]:
        return self.name_faults()
