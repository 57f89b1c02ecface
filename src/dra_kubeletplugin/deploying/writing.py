"""Writes what is rendered: what all drivers share, and one driver's own folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from .. import documents
from .._version import __version__
from ..documents import Document
from . import driver, helm, judging, kustomize
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


def values_of(source: Source, paths: Sequence[Path], doubts: list[str] | None = None) -> Values:
    """The values of some files, later ones on top. What is likely meant otherwise is added to ``doubts``.

    Raises :class:`SourceError` with everything that is wrong, each with file and line.
    """
    found: list[Document] = []
    faults: list[str] = []
    for path in paths:
        said = documents.read(path, faults)
        for document in said:
            faults += [": ".join(fault) for fault in document.faults]
            if not isinstance(document.value, dict):
                faults.append(f"{document.place()}: no names with values")
        if len(said) > 1:
            faults.append(f"{said[1].place()}: a second document: all values stand in one")
        found += said
    if faults:
        raise SourceError(*faults)
    given: JSON = {}
    for document in found:
        given = merged(given, document.value)
    try:
        values = read(source, given)
    except SourceError as e:
        raise SourceError(*(_placed(text, found, paths) for text in e.faults)) from None
    if doubts is not None:
        doubts += [_placed(text, found, paths) for text in judging.doubts(given)]
    return values


def _placed(text: str, found: Sequence[Document], paths: Sequence[Path]) -> str:
    """A sentence with the place of what it is about: in the last file that says something of it."""
    path, _, _ = text.partition(": ")
    top = path.partition(".")[0]
    for document in reversed(found):
        if top in document.value:
            return f"{document.place(path)}: {text}"
    return f"{', '.join(map(str, paths))}: {text}"


def _needed(source: Source, values: Values) -> Iterator[tuple[str, str]]:
    wanted = {"base", *(f"components/{name}" for name in driver.components(source, values))}
    return ((path, text) for path, text in kustomize.files(source) if path.rpartition("/")[0] in wanted)


def _write(folder: Path, files: Iterable[tuple[str, str]]) -> None:
    for name, text in files:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
