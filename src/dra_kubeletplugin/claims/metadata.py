"""Device metadata files of prepared claims (KEP-5304): written with a claim's CDI spec, gone with it.

For each request there is ``<plugin folder>/dra-device-metadata/<namespace>_<claim>/<request>/metadata.json``, and a CDI spec
``<driver>_metadata_<claim uid>_<request>.json`` that mounts it read-only where programs look. A link ``.claims/<claim uid>`` to the
claim's folder is made before and removed after them, so that whoever finds it knows what is left to do, whatever died in between.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ..cdi import ClaimSpecs, validate_device_name, version_to_declare
from ..cdi.directory import content_of, write_file
from ..driver import Claim, PreparedDevice
from ..errors import BadAnswerError, MetadataError
from ..metadata.document import ClaimRef, decode, encode
from ..metadata.paths import base_request, in_container
from ..resources.types import attribute_json
from .record import Record

JSON = dict[str, Any]
FOLDER = "dra-device-metadata"
POD_CLAIM = "resource.kubernetes.io/pod-claim-name"
_CLAIMS, _FILE = ".claims", "metadata.json"
_MAX_ATTRIBUTES = 32


def describe(record: Record, claim: Claim, prepared: Sequence[PreparedDevice], specs: ClaimSpecs) -> None:
    """Puts what the files say into ``record``, and their CDI ids to the first device of each request.

    Raises :class:`BadAnswerError` for attributes that no file may have.
    """
    given = {(p.request, p.pool, p.name, p.share_id): p for p in prepared}
    requests: dict[str, list[JSON]] = {}
    seen: set[str] = set()
    entries = []
    for allocated, entry in zip(claim.devices, record.devices, strict=True):
        answered = given[allocated.request, allocated.pool, allocated.name, allocated.share_id]
        device: JSON = {"driver": specs.driver, "pool": allocated.pool, "name": allocated.name}
        if attributes := _attributes(claim, allocated.attributes, answered):
            device["attributes"] = attributes
        if answered.status and answered.status.network_data:
            device["networkData"] = answered.status.network_data.json()
        requests.setdefault(allocated.request, []).append(device)
        base = base_request(allocated.request)
        if base not in seen:
            seen.add(base)
            entry = {**entry, "cdi": [*(entry.get("cdi") or ()), _id(specs.driver, claim.uid, base)]}
        entries.append(entry)
    record.doc["devices"] = entries
    annotations = (claim.object.get("metadata") or {}).get("annotations") or {}
    pod_claim = str(annotations.get(POD_CLAIM) or "")
    record.doc["metadata"] = {"generation": 1, "podClaim": pod_claim, "requests": requests}


def _attributes(claim: Claim, attributes: Mapping[str, Any], answered: PreparedDevice) -> JSON:
    merged = {**attributes, **answered.metadata}
    try:
        wire = {name: attribute_json(value, name) for name, value in merged.items()}
    except TypeError as e:
        raise BadAnswerError(f"claim {claim.namespace}/{claim.name}: metadata of device {answered.name}: {e}") from None
    if len(wire) > _MAX_ATTRIBUTES:
        raise BadAnswerError(
            f"claim {claim.namespace}/{claim.name}: metadata of device {answered.name}: {len(wire)} attributes are more than "
            f"{_MAX_ATTRIBUTES}"
        )
    return wire


def _id(driver: str, uid: str, request: str) -> str:
    return f"{driver}/metadata={uid}_{request}"


class MetadataFiles:
    """The files of all claims of one driver. All methods block; none keeps state.

    Args:
        folder: of the plugin, where the host has it too.
        specs: the CDI folder.
    """

    def __init__(self, folder: Path, specs: ClaimSpecs) -> None:
        self.root = folder / FOLDER
        self.specs = specs
        self._prefix = f"{specs.driver}_metadata_"

    def put(self, record: Record) -> None:
        """Writes the files of a claim whose record has any. Raises ``OSError``, or ``ValueError`` for a name that no file can have."""
        if not record.doc.get("metadata"):
            return
        folder = self.root / f"{record.namespace}_{record.name}"
        (self.root / _CLAIMS).mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            (self.root / _CLAIMS / record.uid).symlink_to(f"../{folder.name}")
        for request, (data, spec) in self._contents(record).items():
            path = self._spec(record.uid, request)
            write_file(str(path), str(self.specs.temporary(record.uid)), msgspec.json.encode(spec), 0o644)
            (folder / request).mkdir(parents=True, exist_ok=True)
            hidden = folder / request / f".{_FILE}.{self.specs.token}"
            write_file(str(folder / request / _FILE), str(hidden), data, 0o644)

    def holds(self, record: Record) -> bool:
        """Whether the files of a claim are there and say exactly what its record does."""
        if not record.doc.get("metadata"):
            return True
        folder = self.root / f"{record.namespace}_{record.name}"
        try:
            return (self.root / _CLAIMS / record.uid).is_symlink() and all(
                content_of(str(self._spec(record.uid, request))) == msgspec.json.encode(spec)
                and content_of(str(folder / request / _FILE)) == data
                for request, (data, spec) in self._contents(record).items()
            )
        except (OSError, ValueError):
            return False

    def remove(self, uid: str) -> None:
        """Removes the files of a claim; none is no fault, and those of a later claim of the same name stay.

        Raises ``OSError``.
        """
        link = self.root / _CLAIMS / uid
        try:
            folder = self.root / _CLAIMS / link.readlink()
        except FileNotFoundError:
            return
        prefix = f"{self._prefix}{uid}_"
        for path in self.specs.root.glob(f"{prefix}*.json"):
            path.unlink(missing_ok=True)
        for request in _folders(folder):
            if _uid_of(request / _FILE) in {uid, ""}:
                for path in list(request.iterdir()):
                    path.unlink(missing_ok=True)
                with contextlib.suppress(OSError):
                    request.rmdir()
        with contextlib.suppress(OSError):  # of a later claim
            folder.rmdir()
        link.unlink(missing_ok=True)

    def uids(self) -> list[str]:
        """The claims that have files. Raises ``OSError``."""
        try:
            return sorted(p.name for p in (self.root / _CLAIMS).iterdir())
        except FileNotFoundError:
            return []

    def path(self, uid: str) -> Path:
        """What tells how old a claim's files are."""
        return self.root / _CLAIMS / uid

    def _spec(self, uid: str, request: str) -> Path:
        return self.specs.root / f"{self._prefix}{uid}_{request}.json"

    def _contents(self, record: Record) -> dict[str, tuple[bytes, JSON]]:
        """By request: the file, and the spec that mounts it."""
        told = record.doc["metadata"]
        pod_claim, requests = told["podClaim"], told["requests"]
        claim = ClaimRef(record.name, record.namespace, record.uid, pod_claim)
        out = {}
        for request, devices in requests.items():
            base = base_request(request)
            host = self.root / f"{record.namespace}_{record.name}" / base / _FILE
            seen = in_container(record.name, pod_claim, base, self.specs.driver)
            mount = {"hostPath": str(host), "containerPath": str(seen), "options": ["ro", "bind"]}
            name = f"{record.uid}_{base}"
            validate_device_name(name)
            spec: JSON = {"cdiVersion": "", "kind": f"{self.specs.driver}/metadata"}
            spec["devices"] = [{"name": name, "containerEdits": {"mounts": [mount]}}]
            spec["cdiVersion"] = version_to_declare(spec)
            out[base] = encode(claim, told["generation"], {request: devices}), spec
        return out


def _folders(top: Path) -> list[Path]:
    try:
        return [p for p in top.iterdir() if p.is_dir() and not p.is_symlink()]
    except FileNotFoundError:
        return []


def _uid_of(path: Path) -> str:
    """Whose file it is; empty where it is nobody's."""
    try:
        return decode(content_of(str(path)), path).claim.uid
    except (OSError, ValueError, MetadataError):
        return ""
