"""Writes the package of a new driver from templates."""

from __future__ import annotations

import os
import string
import tempfile
from collections.abc import Iterator, Mapping, Set
from importlib import resources
from pathlib import Path, PurePosixPath

from dra_kubeletplugin.errors import SettingsError, describe

from ..manifests.source_reader import load_source
from ..manifests.values import read_values
from ..manifests.writer import driver_files, write_files
from .names import Names

_COMMON = {
    "pyproject.toml": "pyproject.toml",
    "Makefile": "Makefile",
    "Dockerfile": "Dockerfile",
    "dockerignore": ".dockerignore",
    "gitignore": ".gitignore",
    "sbom.sh": "image/sbom.sh",
    "ci.yaml": ".github/workflows/ci.yaml",
    "e2e.yaml": ".github/workflows/e2e.yaml",
    "kind.yaml": ".github/kind.yaml",
    "e2e.toml": "e2e.toml",
    "conformance.toml": "conformance.toml",
    "release.yaml": ".github/workflows/release.yaml",
    "README.md": "README.md",
    "init.py": "src/%%{module}/__init__.py",
    "py.typed": "src/%%{module}/py.typed",
    "pod.yaml": "examples/pod.yaml",
    "values.yaml": "deploy/values.yaml",
}
_OF_KIND = {
    "driver.py": "src/%%{module}/driver.py",
    "sdk.py": "src/%%{module}/sdk.py",
    "host.yaml": "hosts/two-cards.yaml",
    "test_driver.py": "tests/test_%%{module}.py",
    "valid.yaml": "tests/parameters/valid.yaml",
    "invalid.yaml": "tests/parameters/invalid.yaml",
}
_OF_FEATURE = {"partitions": {"half.yaml": "examples/half.yaml"}}


class _Template(string.Template):
    """A template with the delimiter ``%%`` instead of ``$``, because make, the shell and GitHub use ``$``."""

    delimiter = "%%"


def write_package(names: Names, directory: Path) -> Path:
    """Writes the package into ``directory``, and returns the folder of the package.

    Writes into a temporary folder and renames it, so that a partial package never has the final name. Creates ``directory`` if necessary.

    Raises :class:`SettingsError` if the package's folder exists or cannot be written. No partial package remains.
    """
    folder = directory / names.name
    exists = SettingsError(f"{folder} exists already and is not overwritten: use another NAME or --directory")
    if os.path.lexists(folder):
        raise exists
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=directory, prefix=".dra-unfinished-") as place:
            unfinished = Path(place, names.name)
            _write(names, unfinished)
            unfinished.rename(folder)
    except OSError as e:
        if os.path.lexists(folder):  # another process created it after the first check
            raise exists from None
        raise SettingsError(f"{folder} cannot be written: {e.strerror or describe(e)}") from None
    return folder


def _write(names: Names, folder: Path) -> None:
    for path, text in package_files(names):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    source = load_source()
    write_files(folder / "deploy", driver_files(source, read_values(source, [folder / "deploy/values.yaml"])))


def package_files(names: Names) -> Iterator[tuple[PurePosixPath, str]]:
    """Yields each file's path in the package and its content."""
    yield from common_files(names)
    yield from _filled(names.kind, _OF_KIND, names)
    for feature, targets in _OF_FEATURE.items():
        if feature in names.features:
            yield from _filled(feature, targets, names)


def common_files(names: Names) -> Iterator[tuple[PurePosixPath, str]]:
    """Yields the files that all kinds of drivers have."""
    return _filled("common", _COMMON, names)


def _filled(folder: str, targets: Mapping[str, str], names: Names) -> Iterator[tuple[PurePosixPath, str]]:
    words = names.words()
    for template in resources.files(__package__).joinpath("templates", folder).iterdir():
        target = targets[template.name.removesuffix(".tmpl")]
        yield (
            PurePosixPath(_Template(target).substitute(words)),
            _Template(_selected(template.read_text(encoding="utf-8"), names.sections)).substitute(words),
        )


def _selected(text: str, sections: Set[str]) -> str:
    """Returns the template without its markers, and without the sections whose condition is false.

    Markers are lines: ``%%if NAME``, ``%%if not NAME`` or ``%%if NAME or NAME``, then optionally ``%%else``, then ``%%end``. Sections nest.
    """
    lines: list[str] = []
    shown: list[bool] = []
    for line in text.splitlines(keepends=True):
        marker, _, condition = line.strip().partition(" ")
        if marker == "%%if":
            wanted = condition.removeprefix("not ").split(" or ")
            shown.append(sections.isdisjoint(wanted) == condition.startswith("not "))
        elif marker == "%%else":
            shown[-1] = not shown[-1]
        elif marker == "%%end":
            shown.pop()
        elif all(shown):
            lines.append(line)
    return "".join(lines)
