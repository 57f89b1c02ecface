"""Writes the device metadata files of prepared claims (KEP-5304), together with each claim's CDI spec.

For each request there is ``<plugin folder>/dra-device-metadata/<claim uid>/<request>/metadata.json``. A CDI spec named
``<driver>_metadata_<claim uid>_<request>.json`` mounts it read-only at the standard path. The folder of a request is created before
its spec and removed after it. So the folders of a claim list all specs that may exist, even if a process dies in between.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..base.files import named
from ..base.rewrite import rewrite
from ..cdi import ClaimSpecs, validate_device_name, version_to_declare
from ..cdi.directory import content_of, ignoring_absence, is_uid, name_of, naming, remove_file, write_file
from ..driver import Claim, MetadataUpdate, PreparedDevice
from ..driver.claim import annotations_of
from ..driver.metadata_update import attribute_faults
from ..errors import BadAnswerError, ClaimError, DriverError, MetadataUpdateError, printable
from ..metadata.document import ClaimRef, encode
from ..metadata.paths import base_request, in_container
from ..resourceapi.types import attribute_json
from ..resourceapi.validation.names import label
from .record import Record

JSON = dict[str, Any]
FOLDER = "dra-device-metadata"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_FILE, _JSON = "metadata.json", ".json"
_MAX_ATTRIBUTES = 32


def describe(record: Record, claim: Claim, prepared: Sequence[PreparedDevice], specs: ClaimSpecs) -> None:
    """Adds the metadata of all devices to ``record``, and each request's metadata CDI id to the first device of the request.

    Raises :class:`BadAnswerError` for attributes that are not allowed in the file, and :class:`ClaimError` for names that are not
    allowed in its path.
    """
    pod_claim = _pod_claim(claim)
    by_key = {(p.request, p.pool, p.name, p.share_id): p for p in prepared}
    requests: dict[str, list[JSON]] = {}
    seen: set[str] = set()
    entries = []
    for allocated, entry in zip(claim.devices, record.devices, strict=True):
        given = by_key[allocated.request, allocated.pool, allocated.name, allocated.share_id]
        device: JSON = {"driver": specs.driver, "pool": allocated.pool, "name": allocated.name}
        if attributes := _attributes(claim, allocated.attributes, given):
            device["attributes"] = attributes
        if given.status and given.status.network_data:
            device["networkData"] = given.status.network_data.json()
        requests.setdefault(allocated.request, []).append(device)
        base = base_request(allocated.request)
        if base not in seen:
            seen.add(base)
            try:
                in_container(claim.name, pod_claim, allocated.request, specs.driver)
            except ValueError as e:
                shown = f"claim {claim.namespace}/{claim.name} cannot have device metadata"
                raise ClaimError(f"{shown}: {printable(e)}") from None
            entry = {**entry, "cdi": [*(entry.get("cdi") or ()), _id(specs.driver, claim.uid, base)]}
        entries.append(entry)
    record.doc["devices"] = entries
    record.doc["metadata"] = {"generation": 1, "podClaim": pod_claim, "requests": requests}


def _pod_claim(claim: Claim) -> str:
    """Returns the claim's name in its pod spec, for a claim created from a template; otherwise empty.

    Users may write any text into the annotation. The claim controller writes a DNS label, so another text is ignored.
    """
    name = str(annotations_of(claim).get(POD_CLAIM) or "")
    return "" if label(name) else name


def updated(record: Record, update: MetadataUpdate) -> JSON:
    """Returns the document of ``record`` with an update for one device; the file of its request gets the next generation.

    The same document is returned if the update changes nothing.

    Raises :class:`MetadataUpdateError` for a claim without metadata. Raises :class:`DriverError` for an unknown request or device, or
    too many attributes.
    """
    metadata = record.doc.get("metadata")
    if not metadata:
        raise MetadataUpdateError(
            f"claim {record.shown} has no device metadata: it was prepared by a version of the driver that wrote none"
        )
    request, index = _found(record, metadata["requests"], update)
    devices = list(metadata["requests"][request])
    devices[index] = _with(record, devices[index], update)
    if devices[index] == metadata["requests"][request][index]:
        return record.doc
    base = base_request(request)
    updates = metadata.get("updates") or {}
    metadata = {
        **metadata,
        "requests": {**metadata["requests"], request: devices},
        "updates": {**updates, base: updates.get(base, 0) + 1},
    }
    return {**record.doc, "metadata": metadata}


def generation(record: Record, request: str) -> int:
    """Returns the generation of a request's file.

    Each file has its own generation, so an update of one request does not wake readers of another.
    """
    metadata = record.doc["metadata"]
    found: int = metadata["generation"] + (metadata.get("updates") or {}).get(base_request(request), 0)
    return found


def _found(record: Record, requests: Mapping[str, Sequence[JSON]], update: MetadataUpdate) -> tuple[str, int]:
    """Returns the request and the index of the device that an update means."""
    candidates = [
        (name, i, device)
        for name, devices in requests.items()
        if update.request in (name, base_request(name))
        for i, device in enumerate(devices)
    ]
    if not candidates:
        raise DriverError(f"claim {record.shown} has no request {update.request!r}: it has {', '.join(requests)}")
    matches = [p for p in candidates if update.device in ("", p[2]["name"], f"{p[2]['pool']}/{p[2]['name']}")]
    if len(matches) != 1:
        names = ", ".join(f"{d['pool']}/{d['name']}" for _, _, d in candidates)
        hint = f"device {update.device!r} matches none or several of them" if update.device else "pass device="
        raise DriverError(f"request {update.request} of claim {record.shown} has devices {names}: {hint}")
    return matches[0][0], matches[0][1]


def _with(record: Record, device: JSON, update: MetadataUpdate) -> JSON:
    merged = {**device.get("attributes", {}), **update.attributes}
    attributes = {name: value for name, value in merged.items() if value is not None}
    if len(attributes) > _MAX_ATTRIBUTES:
        raise DriverError(_too_many(f"claim {record.shown}", device["name"], attributes))
    out = {k: v for k, v in device.items() if k != "attributes"}
    if attributes:
        out["attributes"] = attributes
    if update.network_data is not None:
        out["networkData"] = dict(update.network_data)
    return out


def _attributes(claim: Claim, attributes: Mapping[str, Any], given: PreparedDevice) -> JSON:
    merged = {**attributes, **given.metadata}
    try:
        wire = {name: attribute_json(value, name) for name, value in merged.items()}
    except TypeError as e:
        raise BadAnswerError(f"claim {claim.namespace}/{claim.name}: metadata of device {given.name}: {e}") from None
    if len(wire) > _MAX_ATTRIBUTES:
        raise BadAnswerError(_too_many(f"claim {claim.namespace}/{claim.name}", given.name, wire))
    added = {name: value for name, value in wire.items() if name in given.metadata}
    if faults := attribute_faults(added):
        raise BadAnswerError(f"claim {claim.namespace}/{claim.name}: metadata of device {given.name}: {faults}")
    return wire


def _too_many(claim: str, device: str, attributes: JSON) -> str:
    return f"{claim}: metadata of device {device}: {len(attributes)} attributes are more than {_MAX_ATTRIBUTES}"


def _id(driver: str, uid: str, request: str) -> str:
    return f"{driver}/metadata={uid}_{request}"


class MetadataFiles:
    """Writes and checks the metadata files of all claims of one driver. All methods block; the class keeps no state between calls.

    Args:
        folder: the plugin's folder, with the same path on the host.
        specs: the CDI folder.
    """

    def __init__(self, folder: Path, specs: ClaimSpecs) -> None:
        self.root = folder / FOLDER
        self.specs = specs
        self._prefix = f"{specs.driver}_metadata_"

    def put(self, record: Record) -> None:
        """Writes the files of a claim, if its record has metadata.

        Raises ``OSError``, or ``ValueError`` for a name that is not a valid file name.
        """
        if not record.doc.get("metadata"):
            return
        folder = self.path(record.uid)
        for request, (data, spec) in self._contents(record).items():
            (folder / request).mkdir(parents=True, exist_ok=True)
            self.specs.write_other(record.uid, self._spec(record.uid, request).name, spec)
            self._put_file(folder / request / _FILE, data)

    def _put_file(self, path: Path, data: bytes) -> None:
        """Writes a file. An existing file keeps its inode, because containers may have mounted it."""
        try:
            found = content_of(str(path))
        except (FileNotFoundError, ValueError):
            write_file(str(path), str(path.with_name(f".{_FILE}.{self.specs.token}")), data, 0o644)
            return
        if found != data:
            with naming(str(path)):
                rewrite(str(path), data)

    def are_intact(self, record: Record) -> bool:
        """Whether the files of a claim exist and match its record exactly."""
        if not record.doc.get("metadata"):
            return True
        folder = self.path(record.uid)
        try:
            return all(
                content_of(str(self._spec(record.uid, request))) == msgspec.json.encode(spec)
                and content_of(str(folder / request / _FILE)) == data
                for request, (data, spec) in self._contents(record).items()
            )
        except (OSError, ValueError):
            return False

    def remove(self, uid: str) -> None:
        """Removes the files of a claim, found by its UID alone. Missing files are ignored.

        Raises ``OSError``.
        """
        folder = self.path(uid)
        try:
            requests = os.listdir(folder)  # noqa: PTH208 - names
        except FileNotFoundError:  # the usual case for a driver without metadata
            return
        except OSError:
            requests = _names_in(folder)
        for request in requests:
            remove_file(str(self._spec(uid, request)))
            for name in _names_in(folder / request):
                remove_file(str(folder / request / name))
            _remove_folder(folder / request)
        _remove_folder(folder)

    def remove_orphans(self, uid: str) -> None:
        """Also removes CDI specs without a folder, which a power failure can leave. Raises ``OSError``."""
        self.remove(uid)
        for path in named(self.specs.root, f"{self._prefix}{name_of(uid)}_", _JSON):
            remove_file(str(path))

    def uids(self) -> list[str]:
        """Returns the UIDs of claims that have files. Raises ``OSError``."""
        found = {
            path.name[len(self._prefix) :].partition("_")[0] for path in named(self.specs.root, self._prefix, _JSON)
        }
        return sorted(filter(is_uid, found.union(_names_in(self.root))))

    def path(self, uid: str) -> Path:
        """The folder of a claim. Its modification time is the age of the claim's files."""
        return self.root / name_of(uid)

    def _spec(self, uid: str, request: str) -> Path:
        return self.specs.root / f"{self._prefix}{name_of(uid)}_{request}{_JSON}"

    def _contents(self, record: Record) -> dict[str, tuple[bytes, JSON]]:
        """Returns for each request the file's content and the spec that mounts it."""
        metadata = record.doc["metadata"]
        claim = ClaimRef(record.name, record.namespace, record.uid, metadata["podClaim"])
        files: dict[str, dict[str, Sequence[JSON]]] = {}
        for request, devices in metadata["requests"].items():  # alternatives of one request share its file
            files.setdefault(base_request(request), {})[request] = devices
        out = {}
        for base, requests in files.items():
            host = self.path(record.uid) / base / _FILE
            seen = in_container(record.name, claim.pod_claim, base, self.specs.driver)
            mount = {"hostPath": str(host), "containerPath": str(seen), "options": ["ro", "bind"]}
            name = f"{record.uid}_{base}"
            validate_device_name(name)
            spec: JSON = {"cdiVersion": "", "kind": f"{self.specs.driver}/metadata"}
            spec["devices"] = [{"name": name, "containerEdits": {"mounts": [mount]}}]
            spec["cdiVersion"] = version_to_declare(spec)
            out[base] = encode(claim, generation(record, base), requests), spec
        return out


def _names_in(folder: Path) -> list[str]:
    """Lists a folder; empty if it does not exist. Raises ``OSError``."""
    with ignoring_absence(str(folder)):
        return os.listdir(folder)  # noqa: PTH208 - names
    return []


def _remove_folder(path: Path) -> None:
    """Removes an empty folder, or a file with that name. Raises ``OSError``."""
    with ignoring_absence(str(path)):
        try:
            path.rmdir()
        except NotADirectoryError:
            path.unlink()
