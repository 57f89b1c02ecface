"""Renders the folders that all drivers share and the folder of one driver; writes rendered files, or compares them with a folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from dra_kubeletplugin import __version__
from dra_kubeletplugin.driver import Driver
from dra_kubeletplugin.errors import SettingsError

from . import driver_folder, helm, kustomize, monitoring
from .source_reader import ManifestSource, is_rendered
from .values import Values

KUSTOMIZE = "kustomize"
"""The folder beside a driver's kustomization that contains the base and the components."""


def shared_files(source: ManifestSource, driver: type[Driver] | None = None) -> Mapping[str, str]:
    """Returns the contents of the folders ``kustomize``, ``helm`` and ``monitoring`` by path.

    Args:
        driver: with a driver, the chart's schema also checks the options that the driver defines. With None, the chart is for all drivers.
    """
    rendered = {
        KUSTOMIZE: kustomize.base_and_component_files(source),
        "helm": helm.chart_files(source, helm.shared_chart(__version__), driver),
        "monitoring": monitoring.monitoring_files(),
    }
    return {f"{form}/{path}": text for form, files in rendered.items() for path, text in files}


def driver_files(source: ManifestSource, values: Values, base: str = "") -> Mapping[str, str]:
    """Returns a driver's kustomization and DeviceClasses by path.

    Args:
        base: the folder ``kustomize`` of :func:`shared_files`: a path relative to the driver's folder, or a URL. If empty, the base and
            the components that the driver needs are in the folder ``kustomize`` beside the kustomization.
    """
    files = dict(driver_folder.driver_files(source, values, base or KUSTOMIZE))
    if not base:
        wanted = {"base", *(f"components/{name}" for name in driver_folder.component_names(source, values))}
        shared = kustomize.base_and_component_files(source)
        files |= {f"{KUSTOMIZE}/{path}": text for path, text in shared if path.rpartition("/")[0] in wanted}
    return files


def stale_files(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Returns the paths, relative to ``folder``, of the files that :func:`write_files` would change, create or delete."""
    different = {
        name for name, text in files.items() if not (path := folder / name).is_file() or path.read_text("utf-8") != text
    }
    return sorted(different | {str(path.relative_to(folder)) for path in _present(folder, files)} - files.keys())


def write_files(folder: Path, files: Mapping[str, str]) -> None:
    """Writes rendered files below ``folder``.

    Deletes all other rendered files in the top-level folders that ``files`` names. At the top, also deletes ``deviceclass.yaml`` and
    ``nodefeaturerule.yaml`` if ``files`` does not contain them.

    Raises:
        OSError: a file cannot be written.
        SettingsError: a file that would be replaced was not rendered by this package.
    """
    present = _present(folder, files)
    if foreign := [path for path in present if not is_rendered(path)]:
        raise SettingsError(
            *(
                f"{path} was not written by `dra deploy` and would be overwritten: move it to another place"
                for path in foreign
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".dra-unfinished-") as place:
        # All files are written before the first file is replaced. If the disk is full, no file has changed.
        for i, text in enumerate(files.values()):
            Path(place, str(i)).write_text(text, encoding="utf-8")
        for i, name in enumerate(files):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            Path(place, str(i)).replace(folder / name)
    for path in present:
        if str(path.relative_to(folder)) not in files:
            path.unlink(missing_ok=True)


def _present(folder: Path, files: Mapping[str, str]) -> list[Path]:
    """Returns the files of the folder that ``files`` replaces."""
    tops = {name.partition("/")[0] for name in files} | {driver_folder.CLASSES, driver_folder.FEATURE_RULE}
    return [path for top in sorted(tops) for path in _files_below(folder / top)]


def _files_below(path: Path) -> Iterator[Path]:
    """Yields the files at or below ``path``. A link counts as a file, even if it points to a folder."""
    inner = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    yield from (file for file in inner if file.is_symlink() or file.is_file())
