"""Kubernetes DRA drivers in Python: subclass :class:`Driver`, test it completely on a laptop, run it as a DaemonSet.

About ten names are enough for a first driver; the docstrings of :class:`Driver` are the contract.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .base.lazy_names import lazy_names

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .cdi import ContainerEdits, DeviceNode, Hook, Mount, NetDevice
    from .driver import (
        AllocatedDevice,
        BoundClaim,
        BoundDevice,
        Check,
        Claim,
        Condition,
        Config,
        DeviceStatus,
        Driver,
        Health,
        NetworkData,
        PreparedClaim,
        PreparedDevice,
        RecoveredClaim,
        Role,
        SharedStep,
    )
    from .errors import DraError, PermanentError, RetryableError
    from .host import Host, PciFunction
    from .resourceapi.amounts import Capacity, NodeResource, RequestPolicy
    from .resourceapi.gated_fields import Gate
    from .resourceapi.partitions import Partition, Partitioned, Profile, partitions
    from .resourceapi.pools import Nodes, Pool
    from .resourceapi.quantity import Quantity
    from .resourceapi.types import CounterSet, Device, Taint
    from .resourceapi.version import Version

__getattr__ = lazy_names(
    __name__,
    {
        ".cdi": "ContainerEdits DeviceNode Hook Mount NetDevice",
        ".driver": "AllocatedDevice BoundClaim BoundDevice Check Claim Condition Config DeviceStatus Driver Health NetworkData "
        "PreparedClaim PreparedDevice RecoveredClaim Role SharedStep",
        ".errors": "DraError PermanentError RetryableError",
        ".host": "Host PciFunction",
        ".resourceapi.amounts": "Capacity NodeResource RequestPolicy",
        ".resourceapi.gated_fields": "Gate",
        ".resourceapi.partitions": "Partition Partitioned Profile partitions",
        ".resourceapi.pools": "Nodes Pool",
        ".resourceapi.quantity": "Quantity",
        ".resourceapi.types": "CounterSet Device Taint",
        ".resourceapi.version": "Version",
    },
)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def run(driver: type[Driver]) -> None:
    """Runs a driver class as a plugin until SIGTERM; options come from flags and environment, as with ``dra run``."""
    # Imported here, so that a unit test of a driver does not load a gRPC server.
    from .cli import run_class
    from .driver.loading import importing
    from .errors import DriverError

    if importing():
        raise DriverError(
            f'run({driver.__name__}) is called while its file is imported: write it below `if __name__ == "__main__":`'
        )
    raise SystemExit(run_class(driver))


__all__ = [
    "AllocatedDevice",
    "BoundClaim",
    "BoundDevice",
    "Capacity",
    "Check",
    "Claim",
    "Condition",
    "Config",
    "ContainerEdits",
    "CounterSet",
    "Device",
    "DeviceNode",
    "DeviceStatus",
    "DraError",
    "Driver",
    "Gate",
    "Health",
    "Hook",
    "Host",
    "Mount",
    "NetDevice",
    "NetworkData",
    "NodeResource",
    "Nodes",
    "Partition",
    "Partitioned",
    "PciFunction",
    "PermanentError",
    "Pool",
    "PreparedClaim",
    "PreparedDevice",
    "Profile",
    "Quantity",
    "RecoveredClaim",
    "RequestPolicy",
    "RetryableError",
    "Role",
    "SharedStep",
    "Taint",
    "Version",
    "__version__",
    "partitions",
    "run",
]
