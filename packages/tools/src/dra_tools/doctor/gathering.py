"""Packs findings, objects, logs, CDI specs and records into one file without secrets, for readers without access to the cluster."""

from __future__ import annotations

import io
import json
import os
import platform
import re
import tarfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dra_devkit.cdi.reader import SpecFileError, parse
from dra_kubeletplugin.base.files import read_file
from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.claims.record import Record
from dra_kubeletplugin.claims.store.files import read_rows
from dra_kubeletplugin.errors import ApiError, DraError, describe
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.decoding import as_json
from dra_kubeletplugin.kube.paging import read_all
from dra_kubeletplugin.kube.resource import CLAIMS, CLASSES, EVENTS, NODES, PODS, SLICES, TEMPLATES
from dra_kubeletplugin.resourceapi.conversion import GROUP

from .examination import Examination
from .findings import Finding
from .redaction import redact_object, redact_text

_LOG_LINES = "5000"
_LOG_BYTES = str(4 << 20)
# These characters are replaced in names within the archive, because a name becomes a path when the archive is unpacked.
_UNSAFE = re.compile(r"[^\w.@:+/-]|\.\.+(?=/|$)|^/")


class Archive:
    """A tar.gz that only its owner can read. If an item cannot be read, a file ``NAME.error`` in the archive has the reason."""

    def __init__(self, path: Path) -> None:
        self._raw = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._tar = tarfile.open(fileobj=self._raw, mode="w:gz")  # noqa: SIM115 close() closes it
        self._folder = path.name.removesuffix(".tar.gz")

    def add(self, name: str, content: str | bytes) -> None:
        data = content.encode(errors="replace") if isinstance(content, str) else content
        info = tarfile.TarInfo(f"{self._folder}/{_UNSAFE.sub('_', name)}")
        info.size, info.mtime, info.mode = len(data), int(time.time()), 0o600
        self._tar.addfile(info, io.BytesIO(data))

    def add_json(self, name: str, content: object) -> None:
        self.add(name, json.dumps(redact_object(content), indent=1, default=str))

    def close(self) -> None:
        self._tar.close()
        self._raw.close()


async def gather(
    what: Examination, findings: Sequence[Finding], archive: Archive, progress: Callable[[str], None]
) -> None:
    """Writes all parts into ``archive``. Calls ``progress`` with the name of each part before it is gathered."""
    progress("findings")
    archive.add_json("findings.json", [asdict(f) for f in findings])
    archive.add_json(
        "about.json",
        {
            "version": version("dra-kubeletplugin"),
            "python": platform.python_version(),
            "system": platform.platform(),
            "time": time.time(),
        },
    )
    if what.host:
        progress("CDI specs and records")
        _host(what, archive)
    if isinstance(what.api, str):
        archive.add("cluster.error", redact_text(what.api))
        return
    async with KubeClient(what.api, what.timeout) as client:
        for resource in (SLICES, CLAIMS, TEMPLATES, CLASSES, NODES, EVENTS):
            progress(resource.plural)
            await _listed(archive, resource, client)
        await _drivers(client, what.node, archive, progress)


async def _listed(archive: Archive, resource: Resource, client: KubeClient) -> None:
    name = resource.plural
    try:
        served = await client.dra(name) if resource.group == GROUP else resource
        archive.add_json(f"cluster/{name}.json", await read_all(client, served, as_json))
    except ApiError as e:
        archive.add(f"cluster/{name}.error", redact_text(e.message))


async def _drivers(client: KubeClient, node: str, archive: Archive, progress: Callable[[str], None]) -> None:
    """Adds the pods that use claims, waiting pods too, and the drivers' pods with their logs."""
    try:
        pods = await read_all(client, PODS, as_json)
    except ApiError as e:
        archive.add("cluster/pods.error", redact_text(e.message))
        return
    if node:  # waiting pods too, which have no node
        pods = [p for p in pods if ((p.get("spec") or {}).get("nodeName") or node) == node]
    archive.add_json(
        "cluster/pods.json", [p for p in pods if (p.get("spec") or {}).get("resourceClaims") or is_driver(p)]
    )
    for pod in pods:
        if not is_driver(pod):
            continue
        meta = pod["metadata"]
        async for name, content in _logs(client, pod):
            progress(f"log of {meta['namespace']}/{meta['name']}")
            # A folder for each part of the name: one joined name could be longer than the 255 bytes of a file name.
            archive.add(f"logs/{meta['namespace']}/{meta['name']}/{name}", content)


def is_driver(pod: ReadOnlyJSON) -> bool:
    """Returns whether a pod is a driver of any vendor: such a pod mounts the folder for registration with the kubelet."""
    volumes = (pod.get("spec") or {}).get("volumes") or []
    paths = [str((v.get("hostPath") or {}).get("path", "")).rstrip("/") for v in volumes]
    return any(p.endswith("/plugins_registry") for p in paths)


async def _logs(client: KubeClient, pod: ReadOnlyJSON) -> AsyncIterator[tuple[str, str]]:
    path = PODS.path(pod["metadata"]["namespace"], pod["metadata"]["name"], "log")
    restarted = {s["name"] for s in (pod.get("status") or {}).get("containerStatuses") or () if s.get("restartCount")}
    for container in [c["name"] for c in pod["spec"]["containers"]]:
        for previous in (False, True) if container in restarted else (False,):
            query = {
                "container": container,
                "tailLines": _LOG_LINES,
                "limitBytes": _LOG_BYTES,
                "previous": "true" if previous else "",
            }
            name = f"{container}{'_previous' if previous else ''}"
            try:
                response = await client.raw("GET", path, query=query)
                yield f"{name}.log", redact_text(response.body.decode(errors="replace"))
            except ApiError as e:
                yield f"{name}.error", redact_text(e.message)


def _host(what: Examination, archive: Archive) -> None:
    for folder in (what.host_root / "etc/cdi", what.cdi_root):
        for path in sorted(folder.glob("*.json")) + sorted(folder.glob("*.yaml")) if folder.is_dir() else []:
            name = f"cdi/{str(path).lstrip('/').replace('/', '_')}"
            try:
                archive.add(name, _spec(read_file(path, links=False).decode(errors="replace")))
            except (OSError, ValueError) as e:
                archive.add(f"{name}.error", describe(e))
    for path in sorted((what.kubelet_root / "plugins").glob("*/claims")):
        name = path.parent.name
        try:
            rows = read_rows(path)
        except DraError as e:
            archive.add(f"records/{name}.error", redact_text(e.message))
            continue
        archive.add_json(f"records/{name}.json", [record_json(r) for r in rows])


def _spec(raw: str) -> str:
    try:
        return json.dumps(redact_object(parse(raw)), indent=1, default=str)
    except (SpecFileError, RecursionError):
        return redact_text(raw)


def record_json(row: Any) -> ReadOnlyJSON:
    """Returns the record without the driver's own data, which may contain secrets."""
    if not isinstance(row, Record):
        return {"uid": row.uid, "unreadable": row.reason}
    devices = [{k: v for k, v in d.items() if k != "data"} for d in row.devices]
    plain = ("uid", "namespace", "name", "state", "error", "created", "updated")
    return {name: getattr(row, name) for name in plain} | {
        "devices": devices,
        "steps": [s.get("step") for s in row.undo],
        "shared": [{k: v for k, v in s.items() if k != "data"} for s in row.shared],
    }
