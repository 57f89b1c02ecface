"""The claims and devices that the controller has bound, as :meth:`Driver.unbind` gets them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BoundDevice:
    """The name of a device for which :meth:`Driver.bind` was called."""

    request: str
    pool: str
    name: str
    share_id: str | None = None


@dataclass(frozen=True, kw_only=True)
class BoundClaim:
    """A claim to unbind, by the namespace, name and UID of its ResourceClaim, from the controller's record. The object may be gone.

    Attributes:
        node: node of the allocation; empty if there may be several.
        devices: the allocated devices that have binding conditions.
    """

    namespace: str
    name: str
    uid: str
    node: str
    devices: Sequence[BoundDevice]
