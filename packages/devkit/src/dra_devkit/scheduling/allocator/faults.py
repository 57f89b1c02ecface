"""The errors of an allocation that ends without a result."""

from __future__ import annotations


class AllocationError(Exception):
    """The allocation failed. Unless a subclass below is raised, it fails on every node. The text is for the pod's event."""


class AllocationTimeout(AllocationError):
    """The search exceeded its time limit. A solution on this node may exist."""


class NodeFault(AllocationError):
    """The claims cannot be allocated on this node, for a reason that the user should see. Another node may be suitable."""


class SelectorFault(AllocationError):
    """A selector or a derived attribute cannot be compiled, or cannot be evaluated on a device."""


class PoolUpdating(AllocationError):
    """A request asks for all devices while slices of a pool are missing."""


class PoolInvalid(AllocationError):
    """A request asks for all devices, and a pool contradicts itself."""


class ConstraintUnmet(AllocationError):
    """A request asks for all devices, which do not meet a constraint of the claim."""


class TooManyDevices(AllocationError):
    """A claim asks for more devices than a claim can have."""
