"""Writes what is rendered: what all drivers share, and one driver's own folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml

from .._version import __version__
from . import driver, helm, kustomize
from .source import JSON, Source, SourceError
from .values import Values, merged, read

KUSTOMIZE = "kustomize"
"""Folder beside a driver's kustomization with the base and the components that it lists."""


def write_shared(source: Source, folder: Path) -> None:
    """``kustomize`` and ``helm``, whole, below ``folder``; what was in them before goes. Raises ``OSError``."""
    rendered = {KUSTOMIZE: kustomize.files(source), "helm": helm.files(source, __version__)}
    for form, files in rendered.items():
        shutil.rmtree(folder / form, ignore_errors=True)
        _write(folder / form, files)


def write_driver(source: Source, values: Values, folder: Path, base: str = "") -> None:
    """A driver's kustomization and DeviceClasses.

    Args:
        base: where a folder ``kustomize`` of :func:`write_shared` is, as seen from ``folder``: a path or a URL. When empty, what the
            driver needs of it is written beside.

    Raises ``OSError``.
    """
    if not base:
        shutil.rmtree(folder / KUSTOMIZE, ignore_errors=True)
        _write(folder / KUSTOMIZE, _needed(source, values))
    _write(folder, driver.files(source, values, base or KUSTOMIZE))


def values_of(source: Source, paths: Sequence[Path]) -> Values:
    """The values of some files, later ones on top.

    Raises :class:`SourceError` with everything that is wrong, ``OSError`` and ``yaml.YAMLError``.
    """
    given: JSON = {}
    for path in paths:
        said = yaml.safe_load(path.read_text()) or {}
        if not isinstance(said, dict):
            raise SourceError(f"{path} is no map of values")
        given = merged(given, said)
    try:
        return read(source, given)
    except SourceError as e:
        raise SourceError(f"{', '.join(map(str, paths))}: {e}") from None


def _needed(source: Source, values: Values) -> Iterator[tuple[str, str]]:
    wanted = {"base", *(f"components/{name}" for name in driver.components(source, values))}
    return ((path, text) for path, text in kustomize.files(source) if path.rpartition("/")[0] in wanted)


def _write(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
