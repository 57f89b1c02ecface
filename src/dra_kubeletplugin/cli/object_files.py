"""Reads the objects of ``-f FILE``: the objects of a cluster, or manifests that a user would apply to a cluster."""

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
    """Reads the objects. Warns about objects that the API server would reject, with the texts of ``dra validate``.

    These are only warnings, because an API server of another release or with other feature gates may accept the object.
    Raises :class:`ManifestError` for documents that are not objects.
    """
    found = objects(paths)
    # An API server has already validated objects with a UID.
    for text in _faults([m for m in found if not m.value["metadata"].get("uid")]):
        print(f"{Style.of(sys.stderr).yellow('warning')} {indented(text)}", file=sys.stderr)
    return [m.value for m in found]


def _faults(written: list[Manifest]) -> Iterator[str]:
    if not written:
        return
    from ..localcluster.apiserver import manifest_validation  # imported only for objects that a user wrote

    for manifest in written:
        faults, _ = manifest_validation.manifest_errors(manifest)
        yield from map(manifest.sentence, faults)
