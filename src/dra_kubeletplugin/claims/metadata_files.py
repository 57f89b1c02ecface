"""Writes the device metadata files of prepared claims (KEP-5304): one file for each request, mounted by the claim's own CDI spec.

The file is ``<plugin folder>/dra-device-metadata/<claim uid>_<request>.json``. A CDI device ``<claim uid>_<request>`` of the claim's
spec mounts it read-only at the standard path. The kubelet gets this CDI device's id with the first device of the request. The file is
written before the spec and removed after the spec, so no container mounts a missing or half-written file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ..base.files import UnsuitableFileError, named
from ..base.json_types import JSON
from ..base.rewrite import rewrite
from ..cdi.directory import content_of, is_uid, name_of, naming_path_in_errors, remove_file, write_new
from ..driver import AllocatedDevice, Claim, MetadataUpdate, PreparedDevice
from ..driver.claim import annotations_of
from ..driver.metadata_update import attribute_faults
from ..errors import BadAnswerError, ClaimError, DriverError, MetadataUpdateError, printable
from ..metadata.document import ClaimRef, encode
from ..metadata.paths import base_request, in_container
from ..resourceapi.types import attribute_json
from ..resourceapi.validation.names import label
from .record import Record

FOLDER = "dra-device-metadata"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_JSON = ".json"
_MAX_ATTRIBUTES = 32


def _pod_claim(claim: Claim) -> str:
    """Returns the claim's name in its pod spec, for a claim created from a template; otherwise empty.

    Users may write any text into the annotation. The claim controller writes a DNS label, so another text is ignored.
    """
    name = str(annotations_of(claim).get(POD_CLAIM) or "")
    return "" if label(name) else name


def updated(record: Record, update: MetadataUpdate) -> JSON:
    """Returns the metadata of ``record`` after an update of one device, with the next generation for the file of its request.

    Returns the same object if the update changes nothing.

    Raises :class:`MetadataUpdateError` for a claim without metadata. Raises :class:`DriverError` for an unknown request or device, or
    too many attributes.
    """
    metadata = record.metadata
    if not metadata:
        raise MetadataUpdateError(
            f"claim {record.shown} has no device metadata: it was prepared by a version of the driver that wrote none"
        )
    request, index = _find_device(record, metadata["requests"], update)
    devices = list(metadata["requests"][request])
    devices[index] = _updated_device(record, devices[index], update)
    if devices[index] == metadata["requests"][request][index]:
        return metadata
    base = base_request(request)
    updates = metadata.get("updates") or {}
    return {
        **metadata,
        "requests": {**metadata["requests"], request: devices},
        "updates": {**updates, base: updates.get(base, 0) + 1},
    }


def generation(record: Record, request: str) -> int:
    """Returns the generation of a request's file.

    Each file has its own generation, so an update of one request's file does not change the generation of another request's file.
    """
    metadata = record.metadata or {}
    found: int = metadata["generation"] + (metadata.get("updates") or {}).get(base_request(request), 0)
    return found


def _find_device(record: Record, requests: Mapping[str, Sequence[JSON]], update: MetadataUpdate) -> tuple[str, int]:
    """Returns the request and the index of the device that an update is for."""
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
        hint = (
            f"device {update.device!r} matches none or several of them" if update.device else "choose one with device="
        )
        raise DriverError(f"request {update.request} of claim {record.shown} has devices {names}: {hint}")
    return matches[0][0], matches[0][1]


def _updated_device(record: Record, device: JSON, update: MetadataUpdate) -> JSON:
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


def _attributes(claim: Claim, attributes: Mapping[str, Any], prepared_device: PreparedDevice) -> JSON:
    merged = {**attributes, **prepared_device.metadata}
    try:
        wire = {name: attribute_json(value, name) for name, value in merged.items()}
    except (TypeError, ValueError) as e:
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: metadata of device {prepared_device.name}: {e}"
        ) from None
    if len(wire) > _MAX_ATTRIBUTES:
        raise BadAnswerError(_too_many(f"claim {claim.namespace}/{claim.name}", prepared_device.name, wire))
    added = {name: value for name, value in wire.items() if name in prepared_device.metadata}
    if faults := attribute_faults(added):
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: metadata of device {prepared_device.name}: {faults}"
        )
    return wire


def _too_many(claim: str, device: str, attributes: JSON) -> str:
    return f"{claim}: metadata of device {device}: {len(attributes)} attributes are more than {_MAX_ATTRIBUTES}"


class MetadataFiles:
    """Writes and checks the metadata files of all claims of one driver. All methods block; the class keeps no state between calls.

    Args:
        folder: the plugin's folder, with the same path on the host.
        driver: the driver's name.
    """

    def __init__(self, folder: Path, driver: str) -> None:
        self.root = folder / FOLDER
        self._driver = driver
        # A str, because building path objects would take longer than the system calls of a prepare.
        self._prefix = f"{self.root}/"

    def describe(
        self, record: Record, claim: Claim, prepared: Sequence[tuple[AllocatedDevice, PreparedDevice]]
    ) -> dict[str, JSON]:
        """Adds the metadata of all devices to ``record``.

        Args:
            record: the claim's record.
            claim: the claim that is being prepared.
            prepared: each allocated device with its prepared device.

        Returns, for each request, the container edits that mount its file.

        Raises :class:`BadAnswerError` for attributes that are not allowed in the file, and :class:`ClaimError` for names that are not
        allowed in its path.
        """
        pod_claim = _pod_claim(claim)
        requests: dict[str, list[JSON]] = {}
        mounts: dict[str, JSON] = {}
        for allocated, prepared_device in prepared:
            device: JSON = {"driver": self._driver, "pool": allocated.pool, "name": allocated.name}
            if attributes := _attributes(claim, allocated.attributes, prepared_device):
                device["attributes"] = attributes
            if prepared_device.status and prepared_device.status.network_data:
                device["networkData"] = prepared_device.status.network_data.json()
            requests.setdefault(allocated.request, []).append(device)
            base = base_request(allocated.request)
            if base not in mounts:
                try:
                    path = in_container(claim.name, pod_claim, base, self._driver)
                except ValueError as e:
                    shown = f"claim {claim.namespace}/{claim.name} cannot have device metadata"
                    raise ClaimError(f"{shown}: {printable(e)}") from None
                mount = {"hostPath": self._path(claim.uid, base), "containerPath": str(path), "options": ["ro", "bind"]}
                mounts[base] = {"mounts": [mount]}
        record.metadata = {"generation": 1, "podClaim": pod_claim, "requests": requests}
        return mounts

    def put(self, record: Record) -> None:
        """Writes the files of a claim, if its record has metadata.

        An existing file keeps its inode, because containers may have mounted it. Raises ``OSError``.
        """
        for request, data in self._contents(record).items():
            path = self._path(record.uid, request)
            try:
                self._put_new(path, data)
            except FileExistsError:
                self._replace(path, data)

    def _put_new(self, path: str, data: bytes) -> None:
        try:
            write_new(path, data, 0o644)
        except FileNotFoundError:
            self.root.mkdir(exist_ok=True)
            write_new(path, data, 0o644)

    @staticmethod
    def _replace(path: str, data: bytes) -> None:
        try:
            found = content_of(path)
        except UnsuitableFileError:  # the framework did not write it, so no container has mounted it
            remove_file(path)
            write_new(path, data, 0o644)
            return
        if found != data:
            with naming_path_in_errors(path):
                rewrite(path, data)

    def are_intact(self, record: Record) -> bool:
        """Whether the files of a claim exist and match its record exactly. Raises nothing."""
        try:
            return all(content_of(self._path(record.uid, r)) == data for r, data in self._contents(record).items())
        except (OSError, ValueError):
            return False

    def remove(self, record: Record) -> None:
        """Removes the files of a claim. Missing files are ignored.

        The record contains the requests, so the folder need not be listed. Raises ``OSError``.
        """
        metadata = record.metadata
        if record.complete and not metadata:
            return
        requests = {base_request(d.get("request") or "") for d in record.devices}
        requests.update(map(base_request, metadata["requests"] if metadata else ()))
        if "" in requests:  # a recovered record: its requests are not known
            self.remove_all(record.uid)
            return
        for request in requests:
            if not label(request):  # no file is written for a request with an invalid name
                remove_file(self._path(record.uid, request))

    def remove_all(self, uid: str) -> None:
        """Removes all files of a claim without a record: their names begin with its UID. Raises ``OSError``."""
        for path in named(self.root, f"{name_of(uid)}_", _JSON):
            remove_file(str(path))

    def files(self) -> dict[str, list[Path]]:
        """Returns the files of all claims by claim UID. Raises ``OSError``."""
        found: dict[str, list[Path]] = {}
        for path in named(self.root, "", _JSON):
            uid = path.name.partition("_")[0]
            if is_uid(uid):
                found.setdefault(uid, []).append(path)
        return found

    def _path(self, uid: str, request: str) -> str:
        return f"{self._prefix}{name_of(uid)}_{request}{_JSON}"

    @staticmethod
    def _contents(record: Record) -> dict[str, bytes]:
        """Returns the content of each request's file."""
        metadata = record.metadata
        if not metadata:
            return {}
        claim = ClaimRef(record.name, record.namespace, record.uid, metadata["podClaim"])
        files: dict[str, dict[str, Sequence[JSON]]] = {}
        for request, devices in metadata["requests"].items():  # alternatives of one request share its file
            files.setdefault(base_request(request), {})[request] = devices
        return {base: encode(claim, generation(record, base), requests) for base, requests in files.items()}
