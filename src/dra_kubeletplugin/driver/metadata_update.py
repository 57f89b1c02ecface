"""An update of a prepared device's metadata file, which its containers read (KEP-5304)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..base.json_types import JSONValue
from ..errors import DriverError, printable
from ..resourceapi.types import Attribute, attribute_json, device_faults
from .claim import Claim, PreparedClaim
from .status import NetworkData


@dataclass(frozen=True, kw_only=True)
class MetadataUpdate:
    """One update in the form of the record.

    Attributes:
        uid: UID of the claim.
        request: name of the claim's request.
        device: the device's name, ``pool/name``, or empty for the request's only device.
        attributes: in API form; None for an attribute that is removed.
        network_data: in API form; None keeps the present data.
    """

    uid: str
    request: str
    device: str = ""
    attributes: Mapping[str, JSONValue] = field(default_factory=dict)
    network_data: Mapping[str, JSONValue] | None = None


def metadata_update(
    claim: Claim | PreparedClaim | str,
    request: str,
    network_data: NetworkData | None,
    attributes: Mapping[str, Attribute | None] | None,
    device: str,
) -> MetadataUpdate:
    """Checks the arguments of :meth:`Driver.update_metadata`. Raises :class:`DriverError` with the correct form."""
    uid = claim if isinstance(claim, str) else getattr(claim, "uid", "")
    if not (isinstance(uid, str) and uid and isinstance(request, str) and isinstance(device, str)):
        raise DriverError(
            "update_metadata(): pass the claim or its UID, the name of its request, and the device's name, each as text"
        )
    shown = f"update_metadata() of claim {printable(uid)}"
    if not isinstance(network_data, NetworkData | None) or not isinstance(attributes, Mapping | None):
        raise DriverError(f"{shown}: network_data is a NetworkData, attributes is a mapping of names to values")
    if network_data is None and not attributes:
        raise DriverError(f"{shown}: there is nothing to update: pass network_data=, attributes=, or both")
    try:
        wire = {n: None if v is None else attribute_json(v, n) for n, v in (attributes or {}).items()}
        faults = attribute_faults({n: v for n, v in wire.items() if v is not None})
    except (TypeError, ValueError) as e:  # ValueError also for invalid Unicode
        raise DriverError(f"{shown}: {printable(e)}") from None
    if faults:
        raise DriverError(f"{shown}: {faults}")
    network = None if network_data is None else network_data.json()
    return MetadataUpdate(uid=uid, request=request, device=device, attributes=wire, network_data=network)


def attribute_faults(wire: Mapping[str, JSONValue]) -> str:
    """Returns why a slice, and so a metadata file, cannot contain these attributes; empty if it can. Does not check their number."""
    return printable(
        "; ".join(
            fault for name, value in wire.items() for fault in device_faults({"name": "d", "attributes": {name: value}})
        )
    )
