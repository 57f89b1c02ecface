"""Objects of ``-f FILE``: what is asked in place of a cluster, or would be applied to one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import ManifestError
from ..manifests import Manifest, objects
from .style import Style

JSON = dict[str, Any]


def asked(paths: Iterable[Path]) -> list[JSON]:
    """What is asked in place of a cluster. What a server would refuse is warned of in the words of ``dra validate``, and no more, as
    it may be there all the same. Raises :class:`ManifestError` for what is no object."""
    found = objects(paths)
    for text in _doubts(found):
        print(f"{Style.of(sys.stderr).yellow('warning')} {text}", file=sys.stderr)
    return [m.value for m in found]


def to_apply(paths: Iterable[Path]) -> list[JSON]:
    """What would be applied to a cluster. Raises :class:`ManifestError`, in the words of ``dra validate``, for what a server would
    refuse."""
    found = objects(paths)
    if faults := list(_doubts(found)):
        raise ManifestError(*faults)
    return [m.value for m in found]


def _doubts(found: Iterable[Manifest]) -> Iterator[str]:
    written = [
        m for m in found if not m.value["metadata"].get("uid")
    ]  # the others a server has judged, perhaps a newer one
    if not written:
        return
    from ..local.apiserver import offline  # only for what somebody wrote

    for manifest in written:
        try:
            told = offline.told(manifest)
        except offline.UnknownKind as e:
            told = [*manifest.document.faults, *([manifest.told(e.fault)] if e.fault else ())]
        yield from map(manifest.sentence, told)
