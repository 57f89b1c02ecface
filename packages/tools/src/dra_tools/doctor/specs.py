"""Checks the CDI specs of all drivers on the node: files that runtimes reject, ignore or wait for, and device names that occur twice.
Source: the Container Device Interface specification, "Spec directories", and pkg/cdi/spec-dirs.go of its Go library, which runtimes use:
it reads links, and it reads a FIFO until a writer closes it. ``CdiCache`` follows the rules of the library's cache.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from dra_devkit.cdi.cache import SUFFIXES, CdiCache
from dra_kubeletplugin.base.files import MAX_FILE
from dra_kubeletplugin.base.text import join_names
from dra_kubeletplugin.cdi.spec import NEWEST, dropped_fields

from .findings import Finding, denied, failure, ok, unknown, warning


def look(folders: Sequence[Path]) -> Iterator[Finding]:
    """Checks the specs. ``folders``: the directories that the runtime reads, lowest priority first."""
    there = [f for f in folders if f.is_dir()]
    if not there:
        yield unknown(
            "CDI",
            f"no folder {' or '.join(map(str, folders))}",
            "drivers create it when they start; in a pod, mount the host's folder",
        )
        return
    try:
        cache = CdiCache(there)
        ignored = {folder: list(_ignored(folder)) for folder in there}
    except OSError as e:
        yield denied("CDI", e)
        return
    for path, faults in sorted(cache.errors.items()):
        yield from _unusable(Path(path), faults, path in cache.conflicting)
    for folder, names in ignored.items():
        if names:
            text = f"runtimes ignore {join_names(names)} in {folder}: they read only files whose names end with {' or '.join(SUFFIXES)}"
            yield warning("CDI", text, "rename a file that is a spec, and remove other files and folders")
    for file, spec in sorted({path: spec for path, spec, _ in cache.devices.values()}.items()):
        dropped = [name for _, name, _ in dropped_fields(spec)]
        if dropped:
            text = f"{file} has {join_names(dict.fromkeys(dropped))}, which CDI {NEWEST} dropped: a runtime with CDI {NEWEST} rejects it"
            yield warning("CDI", text, "update its driver: enableMonitoring replaces both fields")
    for name, paths in sorted(_hidden(there, cache).items()):
        yield warning(
            "CDI", f"{name} is in {paths}: the last file hides the others", "remove the file that is not intended"
        )
    kinds = Counter(name.partition("=")[0] for name in cache.devices)
    counted = ", ".join(f"{n} of {kind}" for kind, n in sorted(kinds.items())) or "no devices"
    yield ok("CDI", f"{', '.join(map(str, there))}: {counted}")


def _unusable(path: Path, faults: Sequence[str], conflicting: bool) -> Iterator[Finding]:
    """Yields the findings for a file that runtimes cannot use, or that was not read here."""
    try:
        mode, size = path.stat().st_mode, path.stat().st_size
    except OSError:  # a link to no file: runtimes ignore it
        mode = size = 0
    if stat.S_ISFIFO(mode):
        text = f"{path} is a FIFO: runtimes wait until a process writes to it, so no container with a CDI device starts"
        yield failure("CDI", text, f"rm {path}, then restart the container runtime")
    elif stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        yield failure(
            "CDI", f"{path} is a device node, which runtimes read as a file: this may take long", f"rm {path}"
        )
    elif mode and not os.access(path, os.R_OK):
        yield denied("CDI", PermissionError(13, "Permission denied", str(path)))
    elif stat.S_ISREG(mode) and size > MAX_FILE:
        yield unknown(
            "CDI",
            f"{path} is too large and was not read here: runtimes read it as a whole",
            "check which driver writes it",
        )
    else:
        todo = (
            "the runtime uses neither of the two files: remove one"
            if conflicting
            else "the runtime ignores this file: remove it, or restart its driver"
        )
        for fault in faults:
            yield failure("CDI", f"{path}: {fault}", todo)


def _ignored(folder: Path) -> Iterator[str]:
    """Yields the names in a folder that runtimes ignore. Hidden names are temporary files and notes of drivers."""
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if not path.name.startswith(".") and (is_folder or not path.name.endswith(SUFFIXES)):
            yield f"{path.name}/" if is_folder else path.name


def _hidden(folders: Sequence[Path], cache: CdiCache) -> dict[str, str]:
    """Returns names that are in more than one directory, with their files."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for name, (path, _, _) in CdiCache([folder]).devices.items():
            found.setdefault(name, []).append(str(path))
    return {name: " and ".join(paths) for name, paths in found.items() if len(paths) > 1 and name in cache.devices}
