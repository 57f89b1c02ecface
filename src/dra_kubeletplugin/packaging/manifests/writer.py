"""Writes what is rendered: what all drivers share, and one driver's own folder."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ... import __version__
from ...base.yaml import documents
from ...base.yaml.documents import Document
from ...driver import Driver
from . import driver as own_folder
from . import helm, kustomize, monitoring, values_validation
from .atomic_dir import aside
from .source import JSON, MADE, Source, SourceError
from .values import Values, merged, read

KUSTOMIZE = "kustomize"
"""Folder beside a driver's kustomization with the base and the components that it lists."""
_HEAD = 1000  # bytes of a file, in which its mark stands


def write_shared(source: Source, folder: Path, driver: type[Driver] | None = None) -> None:
    """``kustomize``, ``helm`` and ``monitoring``, whole, below ``folder``. Raises as :func:`write_driver`.

    The chart judges options of the ``driver``'s own where one is given; without it, it is for every driver.
    """
    rendered = {
        KUSTOMIZE: kustomize.files(source),
        "helm": helm.files(source, __version__, driver),
        "monitoring": monitoring.files(),
    }
    _replace(folder, [(f"{form}/{path}", text) for form, files in rendered.items() for path, text in files])


def write_driver(source: Source, values: Values, folder: Path, base: str = "") -> None:
    """A driver's kustomization and DeviceClasses.

    Args:
        base: where a folder ``kustomize`` of :func:`write_shared` is, as seen from ``folder``: a path or a URL. When empty, what the
            driver needs of it is written beside.

    What was rendered before is replaced, all of it or nothing. Raises ``OSError``, and :class:`SourceError` where something else
    stands there.
    """
    shared = [] if base else [(f"{KUSTOMIZE}/{path}", text) for path, text in _needed(source, values)]
    _replace(folder, [*shared, *own_folder.files(source, values, base or KUSTOMIZE)], (own_folder.CLASSES,))


def values_of(
    source: Source, paths: Sequence[Path], doubts: list[str] | None = None, driver: type[Driver] | None = None
) -> Values:
    """The values of some files, later ones on top, of a ``driver`` where it is known. What is likely meant otherwise is added to
    ``doubts``.

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
        values = read(source, given, driver)
    except SourceError as e:
        raise SourceError(*(_placed(text, found, paths) for text in e.faults)) from None
    if doubts is not None:
        doubts += [_placed(text, found, paths) for text in values_validation.doubts(given)]
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
    wanted = {"base", *(f"components/{name}" for name in own_folder.components(source, values))}
    return ((path, text) for path, text in kustomize.files(source) if path.rpartition("/")[0] in wanted)


def _replace(folder: Path, files: Iterable[tuple[str, str]], gone: Iterable[str] = ()) -> None:
    """Writes ``files``, and takes away those of ``gone`` that are none of them. Their own folders are replaced as a whole."""
    folder.mkdir(parents=True, exist_ok=True)
    with aside(folder) as place:
        fresh, old = place / "new", place / "old"
        for name, text in files:
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        old.mkdir()
        names = {path.name for path in fresh.iterdir()}
        if others := [path for name in sorted(names) for path in _not_ours(folder / name)]:
            raise SourceError(
                *(f"{path} was not made by `dra deploy`, and would be lost: move it away" for path in others)
            )
        with contextlib.ExitStack() as undo:
            for name in sorted(names):
                _exchange(fresh / name, folder / name, old / name, undo)
            undo.pop_all()
        for name in set(gone) - names:
            if (folder / name).is_file() and not list(_not_ours(folder / name)):
                (folder / name).unlink()


def _not_ours(path: Path) -> Iterator[Path]:
    """Files at or below ``path`` without our mark; a link is somebody's own."""
    inner = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    for file in inner:
        if file.is_symlink() or (file.is_file() and MADE not in file.read_bytes()[:_HEAD].decode(errors="replace")):
            yield file


def _exchange(fresh: Path, place: Path, old: Path, undo: contextlib.ExitStack) -> None:
    """``fresh`` in the ``place`` of what is ``old`` then. A file is there at any moment."""
    if place.is_dir():
        place.rename(old)
    elif place.exists():
        shutil.copy2(place, old)
    if old.exists():
        undo.callback(old.replace, place)
    fresh.replace(place)
    undo.callback(shutil.rmtree if place.is_dir() else os.unlink, place)
