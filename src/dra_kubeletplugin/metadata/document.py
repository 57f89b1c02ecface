"""Decodes and encodes a metadata file: a stream of JSON objects with the same content, one per API version, the newest version first.

Both versions have the same fields. Source: ``k8s.io/dynamic-resource-allocation/api/metadata``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from ..errors import MetadataError, describe
from ..resourceapi.types import attribute_value
from ..resourceapi.version import Version

GROUP = "metadata.resource.k8s.io"
VERSIONS = ("v1beta1", "v1alpha1")  # newest first, the order in files
KIND = "DeviceMetadata"
_BLANK = " \t\r\n"
_ESCAPED = re.compile(b"[<>&]|\xe2\x80[\xa8\xa9]")  # characters that Go escapes in JSON
_KNOWN = frozenset(f"{GROUP}/{v}" for v in VERSIONS)

Scalar = bool | int | str | Version
Value = Scalar | Sequence[Scalar]


@dataclass(frozen=True)
class ClaimRef:
    """The ResourceClaim that a device was allocated for.

    Args:
        pod_claim: the claim's name in the pod's ``spec.resourceClaims``, if the claim was created from a template; else empty.
    """

    name: str
    namespace: str = ""
    uid: str = ""
    pod_claim: str = ""


@dataclass(frozen=True)
class Network:
    """The network data of a network device: the interface in the pod, its addresses with prefix length, and its hardware address."""

    interface_name: str = ""
    ips: tuple[str, ...] = ()
    hardware_address: str = ""


@dataclass(frozen=True)
class Device:
    """One allocated device.

    Attributes:
        request: the claim's request, with the chosen alternative if there is one (``gpu/large``).
        driver: name of the driver, as in the device's ResourceSlice.
        pool: name of the pool, as in the ResourceSlice.
        name: name of the device, as in the ResourceSlice.
        attributes: values by name: ``str``, ``int``, ``bool``, :class:`~dra_kubeletplugin.Version`, or a tuple of one of these types.
        network: data of a network device. A driver may add it later, with a higher ``generation``.
        claim: the claim that the device was allocated for.
        generation: the generation of the file: it starts at 1, and each change of the file increases it by 1.
    """

    request: str
    driver: str
    pool: str
    name: str
    claim: ClaimRef
    generation: int = 1
    attributes: Mapping[str, Value] = field(default_factory=dict)
    network: Network | None = None


@dataclass(frozen=True)
class Document:
    """One file: the devices of one driver for one request. ``version`` is the API version of the object that was decoded."""

    claim: ClaimRef
    generation: int
    devices: tuple[Device, ...]
    version: str
    path: Path


class _Meta(msgspec.Struct, omit_defaults=True):
    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0


class _Network(msgspec.Struct, rename="camel", omit_defaults=True):
    interface_name: str = ""
    ips: list[str] | None = None
    hardware_address: str = ""


class _Device(msgspec.Struct, rename="camel", omit_defaults=True):
    driver: str
    pool: str
    name: str
    attributes: dict[str, dict[str, Any]] | None = None
    network_data: _Network | None = None


class _Request(msgspec.Struct, omit_defaults=True):
    name: str
    devices: list[_Device] | None = None


class _Object(msgspec.Struct, rename="camel", omit_defaults=True):
    kind: str
    api_version: str
    metadata: _Meta
    pod_claim_name: str | None = None
    requests: list[_Request] | None = None


def decode(data: bytes, path: Path) -> Document:
    """Decodes the first object of a known version, and ignores the objects after it.

    Raises :class:`MetadataError` with the path if the data is not JSON, a field has a wrong type, or no object has a known version.
    """
    return next(_versions(data, path))


def decode_whole(data: bytes, path: Path) -> Document | None:
    """Decodes all objects of known versions, and returns the first. Returns None if one is invalid or has different content.

    Such a file may be partly written.
    """
    try:
        first, *others = _versions(data, path)
    except MetadataError:
        return None
    return first if all(replace(d, version=first.version) == first for d in others) else None


def _versions(data: bytes, path: Path) -> Iterator[Document]:
    """Yields the document of each object of a known version."""
    unknown: list[str] = []
    found = False
    for obj in _objects(data, path):
        version = obj.get("apiVersion") if isinstance(obj, dict) else None
        if version not in _KNOWN or obj.get("kind") != KIND:
            unknown.append(f"{version} {obj.get('kind')}" if isinstance(obj, dict) else f"a {type(obj).__name__}")
            continue
        try:
            yield _document(msgspec.convert(obj, _Object), path)
        except (msgspec.ValidationError, ValueError, TypeError) as e:
            raise MetadataError(f"{path}: {describe(e)}") from None
        found = True
    if not found:
        why = f"has {', '.join(unknown)}: none of {', '.join(sorted(_KNOWN))} {KIND}" if unknown else "is empty"
        raise MetadataError(f"{path} {why}")


def _objects(data: bytes, path: Path) -> Iterator[Any]:
    decoder = json.JSONDecoder()
    try:
        rest = data.decode().lstrip(_BLANK)
        while rest:
            obj, end = decoder.raw_decode(rest)
            yield obj
            rest = rest[end:].lstrip(_BLANK)
    except UnicodeDecodeError as e:
        raise MetadataError(f"{path} is not UTF-8: {e.reason} at byte {e.start}") from None
    except (ValueError, RecursionError) as e:
        raise MetadataError(f"{path} is not a stream of JSON objects: {describe(e)}") from None


def _document(obj: _Object, path: Path) -> Document:
    meta = obj.metadata
    generation = meta.generation or 1
    claim = ClaimRef(meta.name, meta.namespace, meta.uid, obj.pod_claim_name or "")
    found = tuple(
        _device(device, request.name, claim, generation)
        for request in obj.requests or ()
        for device in request.devices or ()
    )
    return Document(claim, generation, found, obj.api_version.partition("/")[2], path)


def _device(device: _Device, request: str, claim: ClaimRef, generation: int) -> Device:
    attributes = {name: _value(value, name) for name, value in (device.attributes or {}).items()}
    network_data = device.network_data
    network = (
        Network(network_data.interface_name, tuple(network_data.ips or ()), network_data.hardware_address)
        if network_data
        else None
    )
    return Device(request, device.driver, device.pool, device.name, claim, generation, attributes, network)


def _value(attribute: Mapping[str, Any], name: str) -> Value:
    if len(attribute) != 1:
        raise ValueError(f"attribute {name} has {len(attribute)} values: one of bool, int, string, version is expected")
    value = attribute_value(attribute)
    return tuple(value) if isinstance(value, list) else value


def encode(claim: ClaimRef, generation: int, requests: Mapping[str, Sequence[Mapping[str, Any]]]) -> bytes:
    """Returns the same bytes as a Go driver writes: one indented object per version, each followed by a newline.

    Args:
        requests: devices by request, each in JSON form (``driver``, ``pool``, ``name``, ``attributes``, ``networkData``).
    """
    written = _Object(
        KIND,
        "",
        _Meta(claim.name, claim.namespace, claim.uid, generation),
        claim.pod_claim or None,
        [_Request(name, msgspec.convert(devices, list[_Device])) for name, devices in requests.items()],
    )
    data = b""
    for version in VERSIONS:
        written.api_version = f"{GROUP}/{version}"
        # "deterministic" sorts attributes by name, as Go does
        data += msgspec.json.format(msgspec.json.encode(written, order="deterministic"), indent=2) + b"\n"
    return _ESCAPED.sub(lambda found: f"\\u{ord(found[0].decode()):04x}".encode(), data)
