"""CDI specs of the node, of all drivers: which cannot be read, and which names stand for two devices.

Source: the Container Device Interface specification, "Spec directories"; the Go library's cache, whose rules ``CdiCache`` has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ...cdi.cache import CdiCache
from .findings import Finding, denied, failure, ok, unknown, warning


def look(folders: Sequence[Path]) -> Iterator[Finding]:
    """``folders`` as the runtime reads them, lowest priority first."""
    there = [f for f in folders if f.is_dir()]
    if not there:
        yield unknown(
            "CDI",
            f"no folder {' or '.join(map(str, folders))}",
            "drivers make it at their start; on a node it must be the host's",
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
                "the runtime gives neither to a container: remove one of the two"
                if twice
                else "the runtime skips it: remove it, or restart its driver"
            )
            yield failure("CDI", f"{path}: {fault}", todo)
    for name, paths in sorted(_hidden(there, cache).items()):
        yield warning("CDI", f"{name} stands in {paths}: the last hides the others", "remove the one that is not meant")
    kinds: dict[str, int] = {}
    for name in cache.devices:
        kind = name.partition("=")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
    counted = ", ".join(f"{n} of {kind}" for kind, n in sorted(kinds.items())) or "no devices"
    yield ok("CDI", f"{', '.join(map(str, there))}: {counted}")


def _hidden(folders: Sequence[Path], cache: CdiCache) -> dict[str, str]:
    """Names in more than one folder, with their files."""
    found: dict[str, list[str]] = {}
    for folder in folders:
        for name, (path, _, _) in CdiCache([folder]).devices.items():
            found.setdefault(name, []).append(str(path))
    return {name: " and ".join(paths) for name, paths in found.items() if len(paths) > 1 and name in cache.devices}
