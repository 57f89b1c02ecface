"""Objects of ``-f FILE``: what is asked in place of a cluster, or would be applied to one."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..base.terminal import indented
from ..base.yaml.manifests import Manifest, objects
from .shell.style import Style

JSON = dict[str, Any]


def from_files(paths: Iterable[Path]) -> list[JSON]:
    """What a server would refuse is warned of in the words of ``dra validate``, and no more: another release, or one with other
    feature gates, may take it. Raises :class:`ManifestError` for what is no object."""
    found = objects(paths)
    for text in _doubts([m for m in found if not m.value["metadata"].get("uid")]):  # the others a server has judged
        print(f"{Style.of(sys.stderr).yellow('warning')} {indented(text)}", file=sys.stderr)
    return [m.value for m in found]


def _doubts(written: list[Manifest]) -> Iterator[str]:
    if not written:
        return
    from ..localcluster.apiserver import offline  # only for what somebody wrote

    for manifest in written:
        told, _ = offline.told(manifest)
        yield from map(manifest.sentence, told)
