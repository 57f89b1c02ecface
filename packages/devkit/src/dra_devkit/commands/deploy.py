"""``dra deploy``: renders a driver's manifests from its values."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from dra_kubeletplugin.base.text import counted, join_names
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.output import put
from dra_kubeletplugin.driver import Driver, declared, load_driver
from dra_kubeletplugin.errors import DriverError, SettingsError, describe, printable
from dra_kubeletplugin.resourceapi.version import is_semantic

from ..packaging.manifests.helm import Chart, chart_files
from ..packaging.manifests.option_validation import driver_beside
from ..packaging.manifests.source_reader import ManifestSource, load_source
from ..packaging.manifests.values import Values, read_values
from ..packaging.manifests.values_validation import framework_options
from ..packaging.manifests.writer import driver_files, shared_files, stale_files, write_files
from .output_models import Manifests
from .style import Style


def deploy(args: argparse.Namespace) -> int:
    """Runs the command. Raises :class:`SettingsError` for invalid values and for files that cannot be read or written."""
    if bool(args.values) == bool(args.shared_dir):
        raise SettingsError("give either VALUES (a driver's values.yaml) or --shared-dir FOLDER")
    if args.shared_dir:
        refuse(
            args,
            {
                "override_files": "-f",
                "directory": "--directory",
                "kustomize_base": "--kustomize-base",
                "chart": "--chart",
                "chart_version": "--chart-version",
            },
            "is for one driver's VALUES and cannot be combined with --shared-dir",
        )
    source, warnings = load_source(), list[str]()
    try:
        if args.shared_dir:
            driver, out = _load_driver(args.driver) if args.driver else None, Path(args.shared_dir)
            files = shared_files(source.with_defaults_of(driver), driver)
            command = f"helm install NAME {shlex.quote(str(out))}/helm/dra-driver --namespace NAMESPACE --create-namespace -f VALUES"
        else:
            out, files, command = _one_driver(args, source, warnings)
        stale = tuple(stale_files(out, files)) if args.check else ()
        if not args.check:
            write_files(out, files)
    except (OSError, UnicodeError) as e:
        raise SettingsError(f"the manifests cannot be rendered: {describe(e)}") from None
    for warning in warnings:
        print(f"{Style.of(sys.stderr).yellow('warning')} {printable(warning)}", file=sys.stderr)
    put(
        Manifests(out, tuple(files), stale, command, tuple(warnings)),
        args.output,
        _check_lines if args.check else _lines,
    )
    return Exit.NEGATIVE if stale else Exit.SUCCESS


def _one_driver(
    args: argparse.Namespace, source: ManifestSource, warnings: list[str]
) -> tuple[Path, Mapping[str, str], str]:
    """Returns the folder of one driver's kustomization or chart, the files in it, and the command that deploys the driver."""
    if args.chart:
        refuse(
            args,
            {"directory": "--directory", "kustomize_base": "--kustomize-base"},
            "is for the kustomization and cannot be combined with --chart",
        )
    first = Path(args.values)
    paths = [first / "values.yaml" if first.is_dir() else first, *map(Path, args.override_files)]
    out = Path(args.directory or paths[0].parent)
    if Path(args.kustomize_base).is_absolute():
        relative = os.path.relpath(args.kustomize_base, out)
        raise SettingsError(
            f"--kustomize-base {args.kustomize_base}: kustomize refuses absolute paths: use {relative}, which is relative to {out}"
        )
    driver = _driver(args.driver, paths[0], warnings)
    source = source.with_defaults_of(driver)
    values = read_values(source, paths, warnings, driver)
    if driver is None and (unchecked := sorted(values.options.keys() - framework_options())):
        warnings.append(
            f"options: {join_names(unchecked)} of the driver are not validated: add the driver with --driver"
        )
    if not args.chart:
        command = f"kubectl apply -k {shlex.quote(str(out))}"
        return out, driver_files(source, values, args.kustomize_base), command
    out = Path(args.chart)
    chart = _chart(values, paths[0], args.chart_version)
    place = shlex.quote(str(out / chart.name))
    command = f"helm install {chart.name} {place} --namespace {values.parameters['namespace']} --create-namespace"
    return out, dict(chart_files(source, chart, driver)), command


def _lines(found: Manifests) -> Iterator[str]:
    yield f"wrote {counted(len(found.files), 'file')} into {found.folder}: {_places(found.files)}"
    yield f"to deploy the driver, run: {found.command}"


def _check_lines(found: Manifests) -> Iterator[str]:
    for name in found.stale:
        yield f"stale {found.folder / name}"
    if found.stale:
        yield "the values changed after these files were rendered: run `make deploy`, or this command without --check"
    else:
        yield f"{found.folder} is up to date"


def _chart(values: Values, path: Path, version: str | None) -> Chart:
    """Returns the identity of the driver's chart. Raises :class:`SettingsError` if the version is missing or invalid."""
    name, driver_name = str(values.parameters["name"]), values.parameters["driverName"]
    version = version or _package_version(path)
    if not is_semantic(version):
        raise SettingsError(f"--chart-version {version!r} is not a version of SemVer 2, such as 1.2.0 or 1.2.0-rc.1")
    _, _, tag = str(values.parameters["image"]).partition("@")[0].rpartition("/")[2].partition(":")
    return Chart(name, version, tag or version, f"The DRA driver {driver_name}.", values)


def _package_version(path: Path) -> str:
    """Returns the version of the Python package that contains the values file."""
    if (folder := driver_beside(path)) and (project := folder / "pyproject.toml").is_file():
        found = tomllib.loads(project.read_text()).get("project", {}).get("version")
        if isinstance(found, str):
            return found
    raise SettingsError(f"{path} is in no package with a version: add --chart-version VERSION")


def _places(written: Sequence[str]) -> str:
    """Returns the names of the files, and the folders with the number of their files."""
    folders = Counter(f"{name.partition('/')[0]}/" if "/" in name else name for name in written)
    return ", ".join(f"{name} ({number})" if name.endswith("/") else name for name, number in folders.items())


def _driver(target: str | None, values: Path, warnings: list[str]) -> type[Driver] | None:
    """Returns the driver ``target``, or the driver of the package that contains the values; None if there is none.

    If the driver of the package cannot be loaded, adds the cause to ``warnings``.
    """
    if target:
        return _load_driver(target)
    if folder := driver_beside(values):
        try:
            return _load_driver(str(folder))
        except DriverError as e:
            warnings.append(f"the driver of this package cannot be loaded: {e.message}")
    return None


def _load_driver(target: str) -> type[Driver]:
    """Loads a driver and checks its options."""
    driver = load_driver(target)
    declared(driver)
    return driver
