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
        "POD_NAMESPACE",
        "",
        "Namespace of the Lease and of the controller's records. It must be this pod's namespace, the same for all replicas.",
        to=Audience.CONTROLLER,
        flag="--namespace",
    )
    pod_name: str = option(
        "POD_NAME",
        "",
        "Name of this pod, which identifies the holder of the Lease; by default the host name.",
        to=Audience.CONTROLLER,
    )
    lease_duration: float = duration(
        "LEASE_DURATION",
        15.0,
        "Time after the leader's last renewal until another replica may take the Lease.",
        1,
        to=Audience.CONTROLLER,
    )
    renew_deadline: float = duration(
        "RENEW_DEADLINE",
        10.0,
        "Time after the last renewal at which a leader that cannot renew ends its process.",
        to=Audience.CONTROLLER,
    )
    retry_period: float = duration(
        "RETRY_PERIOD", 2.0, "Interval between attempts to renew or acquire the Lease.", to=Audience.CONTROLLER
    )

    @property
    def lease_name(self) -> str:
        return f"{self.driver_name}-controller"

    def faults(self) -> list[str]:
        out = self.name_faults()
        if not _DNS_LABEL.fullmatch(self.namespace):
            out.append(
                f"--namespace (POD_NAMESPACE) {self.namespace!r} is not a namespace's name: use the downward API field metadata.namespace"
            )
        return out + self.common_faults()


@dataclass(frozen=True, kw_only=True)
class WebhookSettings(Settings):
    """Settings of a webhook process."""

    process: ClassVar[Audience] = Audience.WEBHOOK

    address: str = option(
        "WEBHOOK_ADDRESS",
        ":8443",
        "HOST:PORT that serves admission reviews; :PORT listens on all addresses.",
        read_address,
        to=Audience.WEBHOOK,
        flag="--address",
    )
    tls_cert_file: Path = option(
        "TLS_CERT_FILE",
        Path("/etc/webhook/tls/tls.crt"),
        "Certificate of the webhook with its intermediate certificates, in PEM; read again when the file changes.",
        Path,
        to=Audience.WEBHOOK,
    )
    tls_private_key_file: Path = option(
        "TLS_PRIVATE_KEY_FILE",
        Path("/etc/webhook/tls/tls.key"),
        "Private key of the certificate, in PEM.",
        Path,
        to=Audience.WEBHOOK,
    )

    def faults(self) -> list[str]:
        return self.name_faults()
