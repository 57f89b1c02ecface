"""Why an allocation ends without a result."""

from __future__ import annotations


class AllocationError(Exception):
    """The claims can never be allocated as they are; the text is for the pod's event."""


class AllocationTimeout(AllocationError):
    """The search took too long: there may be a solution on this node, but nobody knows."""


class NodeFault(AllocationError):
    """The claims cannot be allocated on this node, for a reason worth telling; another node may do."""
