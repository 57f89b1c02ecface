"""Checks the CDI specs of all drivers on the node: unreadable files, and device names that occur twice.
Source: the Container Device Interface specification, "Spec directories"; ``CdiCache`` follows the rules of the Go
library's cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...cdi.cache import CdiCache
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
    except OSError as e:
        yield denied("CDI", e)
        return
    for path, faults in sorted(cache.errors.items()):
        for fault in faults:
            twice = fault.startswith("conflicting")
            todo = (
                "the runtime uses neither of the two files: remove one"
                if twice
                else "the runtime ignores this file: remove it, or restart its driver"
            )
            yield failure("CDI", f"{path}: {fault}", todo)
    for name, paths in sorted(_hidden(there, cache).items()):
        yield warning(
            "CDI", f"{name} is in {paths}: the last file hides the others", "remove the file that is not intended"
        )
    kinds: dict[str, int] = {}
    for name in cache.devices:
        kind = name.partition("=")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = ", ".join(f"{n} of {kind}" for kind, n in sorted(kinds.items())) or "no devices"
    yield ok("CDI", f"{', '.join(map(str, there))}: {counted}")


def _hidden(folders: Sequence[Path], cache: CdiCache) -> dict[str, str]:
    """Returns names that are in more than one directory, with their files."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for name, (path, _, _) in CdiCache([folder]).devices.items():
            found.setdefault(name, []).append(str(path))
    return {name: " and ".join(paths) for name, paths in found.items() if len(paths) > 1 and name in cache.devices}
