"""CDI: the specs that container runtimes read."""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dra_devkit.cdi.cache import CdiInjectError
from dra_devkit.cdi.spec_validation import minimum_version, spec_faults
from dra_kubeletplugin.cdi.spec import VERSIONS, version_key

from ..catalogue import CheckNotApplicable, expect, may, must, should
from ..harness import Harness

_SPEC = "CDI specification 1.1.0"
_CYCLES = 20
_CYCLES_TIME = 120.0  # seconds after which a slow driver gets no more cycles
_NEWER_CONTENT = {
    "0.4.0": "a mount with a type",
    "0.5.0": "a device name that begins with a digit, or a device node with a hostPath",
    "0.6.0": "annotations, or a dot in the class",
    "0.7.0": "intelRdt, or additionalGids",
    "1.1.0": "netDevices, or schemata of intelRdt",
}


async def cdi_ids(h: Harness) -> list[str]:
    """Prepares a claim and returns its CDI ids. Raises :class:`CheckSkipped` if it has none."""
    found = (await h.prepared(await h.claim())).cdi_ids
    if not found:
        raise CheckNotApplicable("the driver returns no CDI device ids")
    return found


def all_edits(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield spec.get("containerEdits") or {}
    yield from (d.get("containerEdits") or {} for d in spec.get("devices") or [])


@must(
    "CDI-001",
    "returns only CDI ids that resolve in the CDI folders",
    consequence="the container does not start: unresolvable CDI devices",
    source=f"{_SPEC}; containerd and CRI-O: CDI device injection",
)
async def resolvable(h: Harness) -> None:
    """Prepares a claim and looks for its CDI ids in CDI_ROOT and in /etc/cdi."""
    ids = await cdi_ids(h)
    missing = h.cdi.unresolvable(ids)
    expect(not missing, "each CDI id resolves", missing)


@must(
    "CDI-002",
    "writes specs that are valid for the cdiVersion that they declare",
    consequence="the runtime ignores the file, and no container with the device starts",
    source=f"{_SPEC}: validation and minimum versions",
)
async def valid_specs(h: Harness) -> None:
    """Prepares a claim and validates each spec in CDI_ROOT."""
    await cdi_ids(h)
    errors = h.cdi.load_errors()
    newer = [f" (version {v}: {text})" for v, text in _NEWER_CONTENT.items() if f"at least v{v}" in errors]
    expect(not errors, "specs that a runtime can load", errors + "".join(newer))
    for path, spec in h.cdi.specs().items():
        fault = spec_faults(spec)
        expect(not fault, f"{path.name} is a valid spec", fault)
        declared = str(spec.get("cdiVersion", "")).removeprefix("v")
        least = minimum_version(spec)
        new_enough = declared in VERSIONS and version_key(declared) >= version_key(least)
        expect(new_enough, f"{path.name} declares at least version {least}", declared)


@must(
    "CDI-003",
    "never shows a partial spec",
    consequence="a runtime that reads the folder meanwhile fails to start other containers with CDI devices",
    source="CDI: runtimes watch the folders; a spec is written under another name and renamed",
    limit=300,
)
async def whole_files(h: Harness) -> None:
    """Prepares and unprepares up to 20 claims, and reads the files in CDI_ROOT all the time."""
    with h.cdi.watch_for_partial_files() as partial:
        await h.cycles(_CYCLES, _CYCLES_TIME)
    expect(not partial, "each file is complete from its first moment", "; ".join(dict.fromkeys(partial)))


@should(
    "CDI-004",
    "does not use a CDI id of one claim for another claim with other content",
    consequence="a runtime that caches specs injects the edits of an earlier claim",
    source="Kubernetes: kubeletplugin, CDI device ids are unique for each claim",
)
async def unique_ids(h: Harness) -> None:
    """Prepares and unprepares a claim, prepares another claim of the same device, and compares ids and edits."""
    first = await h.claim()
    ids = (await h.prepared(first)).cdi_ids
    content = {name: h.cdi.edits_of([name]) for name in ids}
    await h.unprepared(first)
    again = h.put_claim(first["spec"], first["status"])
    h.release(first)
    reused = [name for name in (await h.prepared(again)).cdi_ids if name in content]
    changed = [name for name in reused if h.cdi.edits_of([name]) != content[name]]
    expect(not changed, "a new id for other content", f"{', '.join(changed)} has other content for another claim")


@should(
    "CDI-005",
    "names host paths that exist, in files that every runtime may read",
    consequence="the container does not start, or a runtime that runs as another user ignores the file",
    source="CDI: mounts and hooks refer to paths of the host; files have mode 0644",
)
async def host_paths(h: Harness) -> None:
    """Prepares a claim. Looks for the host paths of mounts and hooks, and reads the modes of the specs."""
    await cdi_ids(h)
    for path, spec in h.cdi.specs().items():
        mode = stat.S_IMODE(path.stat().st_mode)
        expect(mode & 0o444 == 0o444, f"{path.name} is readable for all users", f"mode {mode:04o}")
        for edits in all_edits(spec):
            named = [m["hostPath"] for m in edits.get("mounts") or () if m.get("type", "bind") in {"", "bind", "none"}]
            named += [hook["path"] for hook in edits.get("hooks") or ()]
            missing = [p for p in named if not h.path_of(p).exists()]
            expect(not missing, f"{path.name} names existing paths of the host", ", ".join(missing))


@must(
    "CDI-006",
    "changes only its own files",
    consequence="devices of other drivers disappear from the node",
    source="CDI: the folders are shared by all vendors",
)
async def other_files(h: Harness) -> None:
    """Writes a spec and a state file of another driver. Prepares and unprepares a claim, and starts the driver again."""
    devices = [{"name": "one", "containerEdits": {"env": ["OTHER=1"]}}]
    spec = {"cdiVersion": "0.5.0", "kind": "other.example.com/device", "devices": devices}
    foreign = {
        h.cdi.path / "other.example.com-device.json": json.dumps(spec),
        h.plugins / "other.example.com" / "state.json": '{"other": true}',
    }
    for path, text in foreign.items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    try:
        claim = await h.prepared_claim()
        await h.unprepared(claim)
        await h.stop()
        await h.start(h.driver.uid)
        for path, text in foreign.items():
            kept = path.is_file() and path.read_text() == text
            expect(kept, f"{path.name} of another driver is unchanged", "it was changed or deleted")
    finally:
        for path in foreign:
            path.unlink(missing_ok=True)
        shutil.rmtree(h.plugins / "other.example.com", ignore_errors=True)


@may(
    "CDI-007",
    "names device nodes with type, major and minor, or nodes that exist on the host",
    consequence="the container does not start: failed to stat CDI host device",
    source=f"{_SPEC}: device nodes",
)
async def device_nodes(h: Harness) -> None:
    """Prepares a claim and adds its device nodes to an OCI spec, as a runtime does."""
    ids = await cdi_ids(h)
    nodes = [n for spec in h.cdi.specs().values() for edits in all_edits(spec) for n in edits.get("deviceNodes") or ()]
    if not nodes:
        raise CheckNotApplicable("the specs have no device nodes")
    try:
        h.cdi.cache().inject(None, ids, h.host.dev if h.host else Path("/dev"))
    except CdiInjectError as e:
        expect(False, "each device node can be injected", e)
