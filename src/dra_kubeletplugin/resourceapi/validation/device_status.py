"""Validates what a driver reports about an allocated device: conditions and network data (KEP-4817)."""

from __future__ import annotations

import ipaddress
import re

from ...base.json_types import ReadOnlyJSON
from . import names
from .common import items
from .field_errors import FieldError, invalid, invalids, required, too_long, unsupported

MAX_IPS = 16
MAX_INTERFACE_NAME = 256
MAX_HARDWARE_ADDRESS = 128
MAX_CONDITION_REASON = 1024
MAX_CONDITION_MESSAGE = 32 * 1024
CONDITION_STATUSES = ("False", "True", "Unknown")
_REASON = re.compile(r"[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?")


def condition_faults(condition: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of a condition of a device."""
    out = invalids(f"{path}.type", condition["type"], names.qualified(condition["type"]))
    if condition["status"] not in CONDITION_STATUSES:
        out.append(unsupported(f"{path}.status", condition["status"], CONDITION_STATUSES))
    if condition.get("observedGeneration", 0) < 0:
        rule = "must be greater than or equal to zero"
        out.append(invalid(f"{path}.observedGeneration", condition["observedGeneration"], rule))
    if not condition["lastTransitionTime"]:
        out.append(required(f"{path}.lastTransitionTime", "must be set"))
    reason = condition["reason"]
    if not reason:
        out.append(required(f"{path}.reason", "must be set"))
    else:
        if not _REASON.fullmatch(reason):
            rule = (
                "a condition reason must start with alphabetic character, optionally followed by a string of alphanumeric "
                "characters or '_,:', and must end with an alphanumeric character or '_'"
            )
            out.append(invalid(f"{path}.reason", reason, rule))
        if len(reason.encode()) > MAX_CONDITION_REASON:
            out.append(too_long(f"{path}.reason", MAX_CONDITION_REASON))
    if len(condition["message"].encode()) > MAX_CONDITION_MESSAGE:
        out.append(too_long(f"{path}.message", MAX_CONDITION_MESSAGE))
    return out


def network_data(data: ReadOnlyJSON, path: str) -> list[FieldError]:
    """Returns every error of the network data of a device."""
    out: list[FieldError] = []
    for field, limit in (("interfaceName", MAX_INTERFACE_NAME), ("hardwareAddress", MAX_HARDWARE_ADDRESS)):
        if len(data.get(field, "").encode()) > limit:
            out.append(too_long(f"{path}.{field}", limit))

    return out + items(data.get("ips"), MAX_IPS, _interface_address, f"{path}.ips", str)


def _interface_address(value: str, path: str) -> list[FieldError]:
    """Validates an address with prefix length in canonical form."""
    rule = 'must be a valid address in CIDR form, (e.g. "10.9.8.7/24" or "2001:db8::1/64")'
    try:
        address = ipaddress.ip_interface(value)
    except ValueError:
        return [invalid(path, value, rule)]
    if "/" not in value or not value.rpartition("/")[2].isdigit():
        return [invalid(path, value, rule)]
    if str(address) != value:
        return [invalid(path, value, f'must be in canonical form ("{address}")')]
    return []
