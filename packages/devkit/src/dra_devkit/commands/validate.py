"""``dra validate``: validates claims, templates, classes and pods in files as an API server and the drivers do. Needs no cluster.

``dra schema``: prints the JSON Schema of a driver's parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base import text as wording
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.base.settings import Settings
from dra_kubeletplugin.base.terminal import indented
from dra_kubeletplugin.base.text import did_you_mean
from dra_kubeletplugin.cli.shell.exit_codes import Exit
from dra_kubeletplugin.cli.shell.options import refuse
from dra_kubeletplugin.cli.shell.output import put, write
from dra_kubeletplugin.driver import Driver, Role, load_driver, make
from dra_kubeletplugin.driver.attachment import attach, config_kinds
from dra_kubeletplugin.driver.config import objects as opaque
from dra_kubeletplugin.driver.config.kinds import versions
from dra_kubeletplugin.errors import SettingsError, printable
from dra_kubeletplugin.host import Host

from .. import near_names
from ..json_schema import json_schema
from ..kubernetes_releases import Features, parse_gates
from ..localcluster.apiserver import manifest_validation
from ..packaging.manifests.source_reader import is_rendered
from ..yaml import manifests, stream
from ..yaml.manifests import Manifest
from .described_cluster import class_files
from .inspect import host_root, look, without_log
from .output_models import Remark, ValidatedObject, Validation
from .style import Style

_GROUP = "resource.k8s.io/"


@dataclass
class CheckedObject:
    """One object of a file. ``faults`` and ``warnings`` are pairs of place and sentence.

    Attributes:
        is_validated: False for an object that was not validated, so that the result is not known.
        is_object: False for a document in a folder that is no object of the API.
    """

    manifest: Manifest
    is_validated: bool = True
    is_object: bool = True
    faults: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def value(self) -> Any:
        return self.manifest.value

    def fault(self, text: str) -> None:
        self.faults.append(self.manifest.located(text))

    def warn(self, text: str) -> None:
        self.warnings.append(self.manifest.located(text))

    def shown(self) -> ValidatedObject:
        faults, warnings = (tuple(Remark(*r) for r in located) for located in (self.faults, self.warnings))
        return ValidatedObject(self.manifest.document.place(), self.manifest.name, faults, warnings)


def validate(args: argparse.Namespace) -> int:
    """Validates files.

    Returns 0 if every object is valid, 1 if an object is invalid, 2 if a file cannot be read completely. Returns 3 if an object was
    not validated, or if there was no object.
    """
    if len(args.drivers) != 1:
        refuse(args, {"driver_name": "--driver-name"}, "is for one driver: use --driver once")
    if not args.drivers:
        refuse(args, {"host": "--host"}, "is for the devices of a driver: add --driver")
    features = Features.of(args.kubernetes, parse_gates(",".join(args.feature_gates)), implemented=False)
    drivers = [make(load_driver(d)) for d in args.drivers]
    readers = [opaque.ConfigReader.of(d, args.driver_name or "") for d in drivers]
    unreadable: list[str] = []
    files, given, empty = _files(args.files)
    try:
        found = [CheckedObject(m) for m in manifests.read(files, unreadable)]
    except FileNotFoundError as e:
        raise SettingsError(f"{e.filename}: {e.strerror}") from None
    if not (found or unreadable or empty):
        empty.append(f"no object in {', '.join(args.files)}")
    found, of_a_cluster = _split(given, found)
    objects = [j.value for j in of_a_cluster if not j.manifest.faults]
    driver_classes = {str(c["metadata"].get("name")): c for c in _classes(args.drivers, files, unreadable)}
    slices = [o for o in objects if o["kind"] == "ResourceSlice"]
    published = near_names.KnownNames([*slices, *_slices(drivers, readers, args.host)])
    for checked in of_a_cluster:
        _check(checked, readers, features)
    for checked in of_a_cluster:
        if not checked.manifest.faults:
            for path, warning in near_names.near_name_warnings(checked.value, objects, published, driver_classes):
                checked.warn(f"{path}: {warning}")
    _warn_duplicates(of_a_cluster)
    report = Validation(tuple(j.shown() for j in found), tuple(unreadable))
    put(report, args.output, lambda _: _lines(found, Style.of(sys.stdout)))
    for text in unreadable:
        print(f"{Style.of(sys.stderr).red('wrong')} {indented(text)}", file=sys.stderr)
    for text in empty:
        print(f"{Style.of(sys.stderr).yellow('warning')} {indented(text)}", file=sys.stderr)
    if unreadable:
        return Exit.USAGE
    if any(j.faults for j in found):
        return Exit.NEGATIVE
    is_known = not empty and any(j.is_object for j in found) and all(j.is_validated for j in found)
    return Exit.SUCCESS if is_known else Exit.UNKNOWN


def _files(given: Sequence[str]) -> tuple[list[Path], list[str], list[str]]:
    """Returns the files, the arguments that have files, and a sentence for each folder without files."""
    files: list[Path] = []
    having: list[str] = []
    empty: list[str] = []
    for argument in given:
        try:
            files += stream.files([Path(argument)])
            having.append(argument)
        except FileNotFoundError as e:
            empty.append(f"{e.filename}: {e.strerror}")
    return files, having, empty


def _split(given: Sequence[str], found: Sequence[CheckedObject]) -> tuple[list[CheckedObject], list[CheckedObject]]:
    """Returns the objects to report, and the objects to validate.

    A document in a folder may be no object, such as values of Helm: it gets a warning. A file that the user named is always validated.
    In a folder that `dra deploy` rendered, values.yaml and the kustomize files are left out: `dra deploy` validates them.
    """
    folders = [Path(f) for f in given if Path(f).is_dir()]
    in_folders = {str(file) for folder in folders for file in stream.files([folder])}.difference(given)
    kustomizations = {p.parent for folder in folders for p in folder.rglob("kustomization.y*ml")}
    rendered = {file for file in {f.manifest.document.file for f in found} & in_folders if is_rendered(Path(file))}
    values = {str(Path(file).parent / "values.yaml") for file in rendered} & in_folders
    shown: list[CheckedObject] = []
    objects: list[CheckedObject] = []
    parts: dict[Path, list[CheckedObject]] = {}
    for checked in found:
        file = checked.manifest.document.file
        around = [f for f in Path(file).parents if f in kustomizations] if file in in_folders else []
        if file in values or (file in rendered and (len(around) > 1 or checked.manifest.of_kustomize)):
            continue
        if len(around) > 1:
            parts.setdefault(around[-1], []).append(checked)
            continue
        shown.append(checked)
        if file in in_folders and manifest_validation.is_no_object(checked.manifest):
            checked.is_object = False
            checked.warn(f"not validated: {_why_no_object(checked.manifest)}")
        else:
            objects.append(checked)
    for folder, (first, *others) in parts.items():
        more = f" and {wording.counted(len(others), 'other')}" if others else ""
        first.warn(
            f"not validated: a kustomization changes this object{more}: validate the output of `kubectl kustomize {folder}`"
        )
        shown.append(first)
    return shown, objects


def _why_no_object(manifest: Manifest) -> str:
    if manifest.of_kustomize:
        return manifest.faults[0]
    if isinstance(manifest.value, dict) and not manifest.value.keys() & {"apiVersion", "kind"}:
        return "it has neither apiVersion nor kind, so it may be values of Helm"
    return f"it is no object of the Kubernetes API: {manifest.faults[0]}"


def _check(checked: CheckedObject, readers: Sequence[opaque.ConfigReader], features: Features) -> None:
    value = checked.value
    if checked.manifest.of_kustomize:
        checked.is_validated = False
        checked.warn(f"not validated: {checked.manifest.faults[0]}")
        return
    result = manifest_validation.validate_manifest(checked.manifest, features)
    checked.faults += result.errors
    checked.warnings += result.warnings
    if result.not_validated:
        checked.is_validated = False
        checked.warn(f"not validated: {result.not_validated}")
    if checked.manifest.faults:
        return
    if value["apiVersion"].startswith(_GROUP):
        for text in opaque.config_faults(value, readers):
            checked.fault(text)
        for text in _unread_entries(value, readers):
            checked.warn(text)


def _unread_entries(obj: JSON, readers: Sequence[opaque.ConfigReader]) -> list[str]:
    """Returns a sentence for every entry whose driver is not among ``readers``, so that its parameters were not checked."""
    names = [r.driver for r in readers]
    out = []
    for path, entry in opaque.opaque_entries(obj):
        name = entry.get("driver")
        if not isinstance(name, str) or name in names:
            continue
        if hint := did_you_mean(name, names, 0.8):
            out.append(f"{path}.driver: {printable(name)!r} is not one of {', '.join(names)}{hint}")
        else:
            out.append(f"{path}: parameters of {printable(name)!r} are not validated: add that driver with --driver")
    return out


def _warn_duplicates(found: Sequence[CheckedObject]) -> None:
    keys = {id(j): _key(j.value) for j in found if not j.manifest.faults}
    duplicates = {key for key, n in Counter(keys.values()).items() if n > 1}
    for checked in found:
        if keys.get(id(checked)) in duplicates:
            checked.warn("this object is defined more than once: the last definition wins")


def _key(value: JSON) -> tuple[str, ...]:
    meta = value.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    own = meta.get("name") or id(value)  # a generated name may be used several times
    return value["apiVersion"], value["kind"], str(meta.get("namespace", "")), str(own)


def _classes(drivers: Sequence[str], files: Sequence[Path], unreadable: list[str]) -> Iterator[JSON]:
    """Yields the DeviceClasses of the drivers, from files that are not among the validated ``files``."""
    checked = {f.resolve() for f in files}
    for file in dict.fromkeys(f for d in drivers for f in class_files(d) if f.resolve() not in checked):
        for manifest in manifests.read([file], unreadable):
            if not manifest.faults and manifest.value["kind"] == "DeviceClass":
                yield manifest.value


def _slices(drivers: Sequence[Driver], readers: Sequence[opaque.ConfigReader], host: str | None) -> Iterator[JSON]:
    """Yields the slices that the drivers would publish on a described host. Selectors are compared with their attributes."""
    if host is None:
        return
    settings = Settings.load({}, {})
    with host_root(host, settings.sysfs_root) as root, without_log("dra_kubeletplugin.devices.inventory"):
        for driver, reader in zip(drivers, readers, strict=True):
            own = dataclasses.replace(settings, driver_name=reader.driver, node_name="node", sysfs_root=root)
            attach(driver, Host.of(own), own, Role.NODE)
            inventory = asyncio.run(look(driver, own))
            devices = [json.loads(entry.encoded) for pool in inventory.contents() for entry in pool.devices]
            yield {"spec": {"driver": reader.driver, "devices": devices}}


def _lines(found: Sequence[CheckedObject], style: Style) -> Iterator[str]:
    for checked in found:
        if not checked.faults and not checked.warnings:
            place = style.dim(f"({checked.manifest.document.place()})")
            yield f"{style.green('ok')} {checked.manifest.name} {place}"
        for colour, word, located in (
            (style.red, "wrong", checked.faults),
            (style.yellow, "warning", checked.warnings),
        ):
            for text in map(checked.manifest.sentence, located):
                yield f"{colour(word)} {indented(text)}"


def schema(args: argparse.Namespace) -> int:
    """Prints the schema of all kinds of parameters in their newest versions, or of the kind or version that ``--kind`` selects."""
    newest = config_kinds(make(load_driver(args.driver)))
    kinds = list(versions(newest))
    named = [k for k in kinds if args.kind in (k.KIND, k.API_VERSION, f"{k.API_VERSION}/{k.KIND}", k.__name__)]
    # A name of a kind with several versions selects its newest version, which is the first in the list.
    chosen = list({k.KIND: k for k in reversed(named)}.values()) if args.kind is not None else newest
    if not chosen:
        known = [name for k in kinds for name in (k.API_VERSION, k.KIND or k.__name__) if name]
        listed = ", ".join(" ".join(filter(None, (k.API_VERSION, k.KIND or k.__name__))) for k in kinds)
        raise SettingsError(
            f"--kind {args.kind!r} is not one of {listed}{did_you_mean(args.kind, known)}"
            if kinds
            else f"{args.driver} takes no parameters"
        )
    write(json_schema(*chosen), args.output)
    return Exit.SUCCESS
