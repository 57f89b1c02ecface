"""Writes the device metadata files of prepared claims (KEP-5304): one file for each request, mounted by the claim's own CDI spec.

The file is ``<plugin folder>/dra-device-metadata/<claim uid>_<request>.json``. A CDI device ``<claim uid>_<request>`` of the claim's
spec mounts it read-only at the standard path. The kubelet gets this CDI device's id with the first device of the request. The file is
written before the spec and removed after the spec, so no container mounts a missing or half-written file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..base.files import read_file
from ..base.json_types import JSON
from ..base.rewrite import rewrite
from ..cdi.directory import is_uid, name_of, naming_path_in_errors, remove_file, write_new
from ..driver import AllocatedDevice, Claim, PreparedDevice
from ..driver.claim import annotations_of
from ..driver.metadata_update import attribute_faults
from ..errors import BadAnswerError, ClaimError, printable
from ..metadata.document import ClaimRef, encode
from ..metadata.paths import base_request, in_container
from ..resourceapi.types import attribute_json
from ..resourceapi.validation.names import label
from .record import Record

_FOLDER = "dra-device-metadata"
_POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
MAX_ATTRIBUTES = 32


def generation(record: Record, request: str) -> int:
    """Returns the generation of a request's file.

    Each file has its own generation, so an update of one request's file does not change the generation of another request's file.
    """
    metadata = record.metadata or {}
    found: int = metadata["generation"] + (metadata.get("updates") or {}).get(base_request(request), 0)
    return found


class MetadataFiles:
    """Writes and checks the metadata files of all claims of one driver. All methods block; the class keeps no state between calls.

    Args:
        folder: the plugin's folder, with the same path on the host.
        driver: the driver's name.
        is_used: whether the driver has metadata files now. Otherwise only claims that an earlier version prepared have some.
    """

    def __init__(self, folder: Path, driver: str, *, is_used: bool = True) -> None:
        self.root = folder / _FOLDER
        self._driver = driver
        self._is_used = is_used
        # A str, because building path objects would take longer than the system calls of a prepare.
        self._prefix = f"{self.root}/"

    def describe(
        self, record: Record, claim: Claim, prepared: Sequence[tuple[AllocatedDevice, PreparedDevice]]
    ) -> dict[str, JSON]:
        """Adds the metadata of all devices to ``record``. Returns, for each request, the container edits that mount its file.

        Raises :class:`BadAnswerError` for attributes that are not allowed in the file, and :class:`ClaimError` for names that are not
        allowed in its path.
        """
        pod_claim = str(annotations_of(claim).get(_POD_CLAIM) or "")  # only a claim created from a template has it
        if label(pod_claim):
            pod_claim = ""  # a user wrote it: the claim controller writes a DNS label
        requests: dict[str, list[JSON]] = {}
        mounts: dict[str, JSON] = {}
        for allocated, prepared_device in prepared:
            device: JSON = {"driver": self._driver, "pool": allocated.pool, "name": allocated.name}
            if attributes := _attributes(claim, allocated, prepared_device):
                device["attributes"] = attributes
            if prepared_device.status and prepared_device.status.network_data:
                device["networkData"] = prepared_device.status.network_data.json()
            requests.setdefault(allocated.request, []).append(device)
            base = base_request(allocated.request)
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
        for path, data in self._contents(record).items():
            self.root.mkdir(exist_ok=True)
            try:
                write_new(path, data, 0o644)
            except FileExistsError:
                if read_file(path, links=False) != data:
                    with naming_path_in_errors(path):
                        rewrite(path, data)

    def are_intact(self, record: Record) -> bool:
        """Whether the files of a claim exist and match its record exactly. Raises nothing."""
        try:
            return all(read_file(path, links=False) == data for path, data in self._contents(record).items())
        except OSError:
            return False

    def remove(self, record: Record) -> None:
        """Removes the files of the requests in a record; the record may be older than the files. Raises ``OSError``."""
        if record.metadata or self._is_used:
            for base in {base_request(d.get("request", "")) for d in record.devices}:
                if not label(base):  # a request with an invalid name has no file
                    remove_file(self._path(record.uid, base))

    def remove_all(self, uid: str) -> None:
        """Removes all files of a claim: their names begin with its UID. Raises ``OSError``."""
        for name in self._names():
            if name.startswith(f"{name_of(uid)}_"):
                remove_file(f"{self._prefix}{name}")

    def uids(self) -> set[str]:
        """Returns the UIDs of the claims that have files. Raises ``OSError``."""
        return {uid for name in self._names() if is_uid(uid := name.partition("_")[0])}

    def _names(self) -> list[str]:
        try:
            return os.listdir(self.root)  # noqa: PTH208 - names
        except FileNotFoundError:
            return []

    def _path(self, uid: str, request: str) -> str:
        return f"{self._prefix}{name_of(uid)}_{request}.json"

    def _contents(self, record: Record) -> dict[str, bytes]:
        """Returns the content of each file, by its path."""
        metadata = record.metadata
        if not metadata:
            return {}
        claim = ClaimRef(record.name, record.namespace, record.uid, metadata["podClaim"])
        files: dict[str, dict[str, Sequence[JSON]]] = {}
        for request, devices in metadata["requests"].items():  # alternatives of one request share its file
            files.setdefault(base_request(request), {})[request] = devices
        return {
            self._path(record.uid, base): encode(claim, generation(record, base), requests)
            for base, requests in files.items()
        }


def _attributes(claim: Claim, allocated: AllocatedDevice, prepared_device: PreparedDevice) -> JSON:
    """Returns the attributes in a device's file. Raises :class:`BadAnswerError` if the file cannot have those that the driver added."""
    shown = f"claim {claim.namespace}/{claim.name}: metadata of device {prepared_device.name}"
    try:
        wire = {n: attribute_json(v, n) for n, v in {**allocated.attributes, **prepared_device.metadata}.items()}
    except (TypeError, ValueError) as e:
        raise BadAnswerError(f"{shown}: {e}") from None
    if len(wire) > MAX_ATTRIBUTES:
        raise BadAnswerError(f"{shown}: {len(wire)} attributes are more than {MAX_ATTRIBUTES}")
    if faults := attribute_faults({name: wire[name] for name in prepared_device.metadata}):
        raise BadAnswerError(f"{shown}: {faults}")
    return wire
