"""``dra deploy``: renders a driver's manifests from its values."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from dra_kubeletplugin.base.text import counted, join_names
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.driver import Driver, declared, load_driver
from dra_kubeletplugin.errors import DriverError, SettingsError, describe, printable

from ..packaging.manifests.helm import Chart
from ..packaging.manifests.option_validation import driver_beside
from ..packaging.manifests.source_reader import load_source
from ..packaging.manifests.values import Values, read_values
from ..packaging.manifests.values_validation import framework_options
from ..packaging.manifests.writer import write_chart, write_driver, write_shared
from .style import Style

_SEMVER = r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?"


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
    source = load_source()
    try:
        if args.shared_dir:
            driver, out = _load_driver(args.driver) if args.driver else None, Path(args.shared_dir)
            written = write_shared(source.with_defaults_of(driver), out, driver)
            command = f"helm install NAME {shlex.quote(str(out))}/helm/dra-driver --namespace NAMESPACE --create-namespace -f VALUES"
        else:
            if args.chart:
                refuse(
                    args,
                    {"directory": "--directory", "kustomize_base": "--kustomize-base"},
                    "is for the kustomization and cannot be combined with --chart",
                )
            first = Path(args.values)
            paths = [first / "values.yaml" if first.is_dir() else first, *map(Path, args.override_files)]
            out, warnings = Path(args.directory or paths[0].parent), list[str]()
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
            if args.chart:
                out = Path(args.chart)
                chart = _chart(values, paths[0], args.chart_version)
                written = write_chart(source, chart, out, driver)
                place = shlex.quote(str(out / chart.name))
                command = (
                    f"helm install {chart.name} {place} --namespace {values.parameters['namespace']} --create-namespace"
                )
            else:
                written = write_driver(source, values, out, args.kustomize_base)
                command = f"kubectl apply -k {shlex.quote(str(out))}"
            for warning in warnings:
                print(f"{Style.of(sys.stderr).yellow('warning')} {printable(warning)}", file=sys.stderr)
    except (OSError, UnicodeError) as e:
        raise SettingsError(f"the manifests cannot be rendered: {describe(e)}") from None
    print(printable(f"wrote {counted(len(written), 'file')} into {out}: {_places(written)}"))
    print(printable(f"to deploy the driver, run: {command}"))
    return Exit.SUCCESS


def _chart(values: Values, path: Path, version: str | None) -> Chart:
    """Returns the identity of the driver's chart. Raises :class:`SettingsError` if the version is missing or invalid."""
    name, driver_name = str(values.parameters["name"]), values.parameters["driverName"]
    version = version or _package_version(path)
    if not re.fullmatch(_SEMVER, version):
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
