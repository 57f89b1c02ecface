"""Kubernetes DRA drivers in Python: subclass :class:`Driver`, test it whole on a laptop, run it as a DaemonSet.

About ten names are enough for a first driver; the docstrings of :class:`Driver` are the contract.
"""

from ._version import __version__
from .cdi import ContainerEdits, DeviceNode, Hook, Mount, NetDevice
from .driver import (
    AllocatedDevice,
    BoundClaim,
    BoundDevice,
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
)
from .errors import DraError, DriverError, PermanentError, RetryableError
from .host import Host, PciFunction
from .resources.amounts import Capacity, NodeResource, RequestPolicy
from .resources.gates import Gate
from .resources.partitions import Partition, Partitioned, Profile, partitions
from .resources.pools import Nodes, Pool
from .resources.quantity import Quantity
from .resources.types import CounterSet, Device, Taint
from .resources.version import Version


def run(driver: type[Driver]) -> None:
    """Runs a driver class as a plugin until SIGTERM; options come from flags and environment, as with ``dra run``."""
    # Imported here, so that a unit test of a driver does not load a gRPC server.
    from .cli import run_class
    from .driver.loading import importing

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
    "Taint",
    "Version",
    "__version__",
    "partitions",
    "run",
]
