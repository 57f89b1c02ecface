"""Reads the objects of ``-f FILE``: the objects of a cluster, or manifests that a user would apply to a cluster."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from dra_devkit.commands.style import Style
from dra_devkit.kubernetes_releases import Features
from dra_devkit.yaml.manifests import Manifest, ManifestError, documents
from dra_devkit.yaml.stream import name_of
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.terminal import indented


def from_files(paths: Sequence[Path], release: str = "", *, new: bool = False) -> list[JSON]:
    """Reads and validates objects: :func:`read_files`, then :func:`validated`."""
    return validated(read_files(paths), release, new=new)


def read_files(paths: Sequence[Path]) -> list[Manifest]:
    """Reads the objects. A document in a folder that is no object of the API, such as values of Helm, gets a warning.

    Raises:
        ManifestError: another document is no object.
    """
    given = {name_of(path) for path in paths}
    found, faults = [], []
    for manifest in documents(paths):
        if not manifest.faults:
            found.append(manifest)
        elif manifest.document.file not in given and _is_no_object(manifest):
            _warn(
                manifest.sentence(
                    manifest.located(f"not evaluated: it is no object of the Kubernetes API: {manifest.faults[0]}")
                )
            )
        else:
            faults += [manifest.sentence(manifest.located(text)) for text in manifest.faults]
    if faults:
        raise ManifestError(*faults)
    return found


def validated(found: Sequence[Manifest], release: str = "", *, new: bool = False) -> list[JSON]:
    """Returns the objects. Warns about objects that the API server would reject, with the texts of ``dra validate``.

    An API server of another release or with other feature gates may accept such an object.

    Args:
        release: the release of the API server, such as ``1.37``; by default that of ``dra validate``.
        new: whether the objects are to be created, so that an object that no release accepts is an error.

    Raises:
        ManifestError: a new object is invalid in each release.
        SettingsError: the release is not known.
    """
    features = Features.of(release)
    # An API server has already validated objects with a UID, if they are not new.
    warnings, errors = _faults([m for m in found if new or not m.value["metadata"].get("uid")], features)
    if new and errors:
        raise ManifestError(*errors)
    for text in (*errors, *warnings):
        _warn(text)
    return [m.value for m in found]


def _warn(text: str) -> None:
    print(f"{Style.of(sys.stderr).yellow('warning')} {indented(text)}", file=sys.stderr)


def _faults(written: list[Manifest], features: Features) -> tuple[list[str], list[str]]:
    """Returns warnings, and errors of objects that no release accepts."""
    warnings: list[str] = []
    errors: list[str] = []
    if not written:
        return warnings, errors
    from dra_devkit.localcluster.apiserver import manifest_validation  # imported only for objects that a user wrote

    for manifest in written:
        result = manifest_validation.validate_manifest(manifest, features)
        (warnings if result.valid_in else errors).extend(map(manifest.sentence, result.errors))
        warnings += map(manifest.sentence, result.warnings)
    return warnings, errors


def _is_no_object(manifest: Manifest) -> bool:
    from dra_devkit.localcluster.apiserver import (
        manifest_validation,  # imported only for a document that is no valid object
    )

    return manifest_validation.is_no_object(manifest)
