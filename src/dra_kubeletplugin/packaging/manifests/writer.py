"""Writes the rendered files: the folders that all drivers share, and the folder of one driver."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from ... import __version__
from ...base.yaml import documents
from ...base.yaml.documents import YamlDocument
from ...driver import Driver
from . import driver as own_folder
from . import helm, kustomize, monitoring, values_validation
from .atomic_dir import temporary_folder
from .source import JSON, MADE, Source, SourceError
from .values import Values, merged, read

KUSTOMIZE = "kustomize"
"""The folder beside a driver's kustomization that contains the base and the components."""
_HEAD = 1000  # bytes at the start of a file that are searched for the mark


def write_shared(source: Source, folder: Path, driver: type[Driver] | None = None) -> None:
    """Writes the complete folders ``kustomize``, ``helm`` and ``monitoring`` below ``folder``.

    Raises as :func:`write_driver`.

    Args:
        driver: the chart's schema also checks the options that this driver defines. None makes a chart for all drivers.
    """
    rendered = {
        KUSTOMIZE: kustomize.files(source),
        "helm": helm.files(source, __version__, driver),
        "monitoring": monitoring.files(),
    }
    _replace(folder, [(f"{form}/{path}", text) for form, files in rendered.items() for path, text in files])


def write_driver(source: Source, values: Values, folder: Path, base: str = "") -> None:
    """Writes a driver's kustomization and DeviceClasses.

    Replaces all previously rendered files, or none.

    Args:
        base: the folder ``kustomize`` of :func:`write_shared`: a path relative to ``folder``, or a URL. If empty, the parts that
            the driver needs are written into a folder beside its kustomization.

    Raises ``OSError``, and :class:`SourceError` if a file with one of these names was not rendered by this package.
    """
    shared = [] if base else [(f"{KUSTOMIZE}/{path}", text) for path, text in _needed(source, values)]
    _replace(folder, [*shared, *own_folder.files(source, values, base or KUSTOMIZE)], (own_folder.CLASSES,))


def values_of(
    source: Source, paths: Sequence[Path], warnings: list[str] | None = None, driver: type[Driver] | None = None
) -> Values:
    """Reads the values from files; later files override earlier ones.

    Args:
        warnings: a list to which warnings about likely mistakes are appended.
        driver: the driver, if known, whose defined options are then checked too.

    Raises :class:`SourceError` with every error, each with file and line.
    """
    found: list[YamlDocument] = []
    faults: list[str] = []
    for path in paths:
        in_file = documents.read(path, faults)
        for document in in_file:
            faults += [": ".join(fault) for fault in document.faults]
            if not isinstance(document.value, dict):
                faults.append(f"{document.place()}: not a mapping of names to values")
        if len(in_file) > 1:
            faults.append(f"{in_file[1].place()}: a second document: put all values into one document")
        found += in_file
    if faults:
        raise SourceError(*faults)
    raw: JSON = {}
    for document in found:
        raw = merged(raw, document.value)
    try:
        values = read(source, raw, driver)
    except SourceError as e:
        raise SourceError(*(_with_place(text, found, paths) for text in e.faults)) from None
    if warnings is not None:
        warnings += [_with_place(text, found, paths) for text in values_validation.warnings(raw)]
    return values


def _with_place(text: str, found: Sequence[YamlDocument], paths: Sequence[Path]) -> str:
    """Prepends the place of the value with which the sentence begins, in the last file that sets the value."""
    path, _, _ = text.partition(": ")
    top = path.partition(".")[0]
    for document in reversed(found):
        if top in document.value:
            return f"{document.place(path)}: {text}"
    return f"{', '.join(map(str, paths))}: {text}"


def _needed(source: Source, values: Values) -> Iterator[tuple[str, str]]:
    wanted = {"base", *(f"components/{name}" for name in own_folder.components(source, values))}
    return ((path, text) for path, text in kustomize.files(source) if path.rpartition("/")[0] in wanted)


def _replace(folder: Path, files: Iterable[tuple[str, str]], obsolete: Iterable[str] = ()) -> None:
    """Writes ``files``, and deletes files in ``obsolete`` that are not in ``files``.

    Top-level folders of ``files`` are replaced completely.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with temporary_folder(folder) as place:
        new, old = place / "new", place / "old"
        for name, text in files:
            path = new / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        old.mkdir()
        names = {path.name for path in new.iterdir()}
        if others := [path for name in sorted(names) for path in _foreign_files(folder / name)]:
            raise SourceError(
                *(
                    f"{path} was not written by `dra deploy` and would be overwritten: move it to another place"
                    for path in others
                )
            )
        with contextlib.ExitStack() as undo:
            for name in sorted(names):
                _exchange(new / name, folder / name, old / name, undo)
            undo.pop_all()
        for name in set(obsolete) - names:
            if (folder / name).is_file() and not list(_foreign_files(folder / name)):
                (folder / name).unlink()


def _foreign_files(path: Path) -> Iterator[Path]:
    """Yields the files at or below ``path`` that have no mark of rendered files. A link always counts as a file of the user."""
    inner = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    for file in inner:
        if file.is_symlink() or (file.is_file() and MADE not in file.read_bytes()[:_HEAD].decode(errors="replace")):
            yield file


def _exchange(new: Path, place: Path, old: Path, undo: contextlib.ExitStack) -> None:
    """Moves ``new`` to ``place``, and the previous content of ``place`` to ``old``.

    If ``place`` is a file, the file exists at every moment.
    """
    if place.is_dir():
        place.rename(old)
    elif place.exists():
        shutil.copy2(place, old)
    if old.exists():
        undo.callback(old.replace, place)
    new.replace(place)
    undo.callback(shutil.rmtree if place.is_dir() else os.unlink, place)
