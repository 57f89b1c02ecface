"""What a driver says later of a prepared device, for the metadata file that its containers have (KEP-5304)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import DriverError, printable
from ..resourceapi.types import Attribute, attribute_json, device_faults
from .claim import Claim, PreparedClaim
from .status import NetworkData

JSON = Any


@dataclass(frozen=True, kw_only=True)
class MetadataUpdate:
    """One update as the record takes it.

    ``attributes`` are as on the wire, None for one that goes; ``network_data`` too, None to leave what is there; ``device`` is a
    name, ``pool/name``, or empty for the only one of the request.
    """

    uid: str
    request: str
    device: str = ""
    attributes: Mapping[str, JSON] = field(default_factory=dict)
    network_data: Mapping[str, JSON] | None = None


def metadata_update(
    claim: Claim | PreparedClaim | str,
    request: str,
    network_data: NetworkData | None,
    attributes: Mapping[str, Attribute | None] | None,
    device: str,
) -> MetadataUpdate:
    """What an author gave, checked. Raises :class:`DriverError` with what to give instead."""
    uid = claim if isinstance(claim, str) else getattr(claim, "uid", "")
    if not (isinstance(uid, str) and uid and isinstance(request, str) and isinstance(device, str)):
        raise DriverError("update_metadata(): give the claim or its UID, the name of its request, and names as text")
    shown = f"update_metadata() of claim {printable(uid)}"
    if not isinstance(network_data, NetworkData | None) or not isinstance(attributes, Mapping | None):
        raise DriverError(f"{shown}: network_data is a NetworkData, attributes is a mapping of names to values")
    if network_data is None and not attributes:
        raise DriverError(f"{shown}: there is nothing to tell: give network_data=, attributes=, or both")
    try:
        wire = {n: None if v is None else attribute_json(v, n) for n, v in (attributes or {}).items()}
        faults = attribute_faults({n: v for n, v in wire.items() if v is not None})
    except (TypeError, ValueError) as e:  # a text that is no Unicode, too
        raise DriverError(f"{shown}: {printable(e)}") from None
    if faults:
        raise DriverError(f"{shown}: {faults}")
    network = None if network_data is None else network_data.json()
    return MetadataUpdate(uid=uid, request=request, device=device, attributes=wire, network_data=network)


def attribute_faults(wire: Mapping[str, JSON]) -> str:
    """Why no slice, and so no metadata file, may have such attributes; empty where they may. Their number is another matter."""
    return printable(
        "; ".join(
            fault for name, value in wire.items() for fault in device_faults({"name": "d", "attributes": {name: value}})
        )
    )
