"""Writes the rendered files: the folders that all drivers share, the folder of one driver, or the chart of one driver."""

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


def write_shared(source: ManifestSource, folder: Path, driver: type[Driver] | None = None) -> list[str]:
    """Writes the complete folders ``kustomize``, ``helm`` and ``monitoring`` below ``folder``.

    Returns and raises as :func:`write_driver`.

    Args:
        driver: with a driver, the chart's schema also checks the options that the driver defines. With None, the chart is for all drivers.
    """
    rendered = {
        KUSTOMIZE: kustomize.base_and_component_files(source),
        "helm": helm.chart_files(source, helm.shared_chart(__version__), driver),
        "monitoring": monitoring.monitoring_files(),
    }
    return _replace(folder, {f"{form}/{path}": text for form, files in rendered.items() for path, text in files})


def write_driver(source: ManifestSource, values: Values, folder: Path, base: str = "") -> list[str]:
    """Writes a driver's kustomization and DeviceClasses. Replaces all files that were rendered before.

    Returns the paths of the written files, relative to ``folder``.

    Args:
        base: the folder ``kustomize`` of :func:`write_shared`: a path relative to ``folder``, or a URL. If empty, the base and the
            components that the driver needs are written into the folder ``kustomize`` beside the kustomization.

    Raises:
        OSError: a file cannot be written.
        SettingsError: a file that would be replaced was not rendered by this package.
    """
    files = dict(driver_folder.driver_files(source, values, base or KUSTOMIZE))
    if not base:
        wanted = {"base", *(f"components/{name}" for name in driver_folder.component_names(source, values))}
        shared = kustomize.base_and_component_files(source)
        files |= {f"{KUSTOMIZE}/{path}": text for path, text in shared if path.rpartition("/")[0] in wanted}
    return _replace(folder, files)


def write_chart(source: ManifestSource, chart: helm.Chart, folder: Path, driver: type[Driver] | None) -> list[str]:
    """Writes the Helm chart of one driver below ``folder``. Returns and raises as :func:`write_driver`."""
    return _replace(folder, dict(helm.chart_files(source, chart, driver)))


def _replace(folder: Path, files: Mapping[str, str]) -> list[str]:
    """Writes ``files`` below ``folder``, and returns their names.

    Deletes all other rendered files in the top-level folders that ``files`` names. At the top, also deletes ``deviceclass.yaml`` and
    ``nodefeaturerule.yaml`` if ``files`` does not contain them.
    """
    tops = {name.partition("/")[0] for name in files} | {driver_folder.CLASSES, driver_folder.FEATURE_RULE}
    present = [path for top in sorted(tops) for path in _files_below(folder / top)]
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
    return list(files)


def _files_below(path: Path) -> Iterator[Path]:
    """Yields the files at or below ``path``. A link counts as a file, even if it points to a folder."""
    inner = path.rglob("*") if path.is_dir() and not path.is_symlink() else (path,)
    yield from (file for file in inner if file.is_symlink() or file.is_file())
