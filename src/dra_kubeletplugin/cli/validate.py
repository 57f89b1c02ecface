"""``dra validate``: claims, templates, classes and pods in files, judged as an API server and the drivers would, with neither at hand;
and ``dra schema``: the JSON Schema of a driver's parameters."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import documents, opaque
from ..cluster import naming
from ..documents import Document
from ..driver import Driver, Role, load_driver, make
from ..driver.config_schema import json_schema
from ..errors import SettingsError, near, printable
from ..host import Host
from ..local.apiserver import offline
from ..settings import load
from .described_cluster import class_files
from .exits import Exit
from .inspect import host_root, look, without_log
from .options import refuse
from .output import put, write
from .shapes import Remark, ValidatedObject, Validation
from .style import Style

JSON = dict[str, Any]
_GROUP = "resource.k8s.io/"


@dataclass
class Judged:
    """One object. ``faults`` and ``warnings`` are sentences, each after its place."""

    document: Document
    faults: list[tuple[str, str]] = field(default_factory=list)
    warnings: list[tuple[str, str]] = field(default_factory=list)

    @property
    def value(self) -> Any:
        return self.document.value

    @property
    def name(self) -> str:
        """Kind, namespace and name, as far as they are given."""
        if not isinstance(self.value, dict):
            return ""
        meta = self.value.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        name = str(meta.get("name") or meta.get("generateName") or "")
        whole = f"{meta['namespace']}/{name}" if meta.get("namespace") else name
        return printable(f"{self.value.get('kind', '')} {whole}".strip())

    def fault(self, text: str) -> None:
        self.faults.append((self.document.place(_path(text)), printable(text)))

    def warn(self, text: str) -> None:
        self.warnings.append((self.document.place(_path(text)), printable(text)))

    def shown(self) -> ValidatedObject:
        faults, warnings = (tuple(Remark(*r) for r in told) for told in (self.faults, self.warnings))
        return ValidatedObject(self.document.place(), self.name, faults, warnings)


def validate(args: argparse.Namespace) -> int:
    """0 where every object is right, 1 where one is not, 2 where a file cannot be read to its end."""
    if len(args.drivers) != 1:
        refuse(args, {"driver_name": "--driver-name"}, "names one driver: give --driver once")
    if not args.drivers:
        refuse(args, {"host": "--host"}, "is for the devices of a driver: give --driver too")
    drivers = [make(load_driver(d)) for d in args.drivers]
    readers = [opaque.Reader.of(d, args.driver_name or "") for d in drivers]
    unreadable: list[str] = []
    try:
        files = list(documents.files([Path(f) for f in args.files]))
    except FileNotFoundError as e:
        raise SettingsError(f"{e.filename}: {e.strerror}") from None
    found = [Judged(part) for file in files for d in documents.read(file, unreadable) for part in _apart(d)]
    if not found and not unreadable:
        raise SettingsError(f"no object in {', '.join(args.files)}")
    objects = [j.value for j in found if _is_object(j)]
    beside = list(_classes(args.drivers, files, unreadable))
    slices = [o for o in objects if o["kind"] == "ResourceSlice"]
    published = naming.Published([*slices, *_slices(drivers, readers, args.host)])
    for judged in found:
        _judge(judged, readers)
        if _is_object(judged):
            for path, doubt in naming.doubts(judged.value, objects, published, beside):
                judged.warn(f"{path}: {doubt}")
    _told_twice(found)
    answer = Validation(tuple(j.shown() for j in found), tuple(unreadable))
    put(answer, args.output, lambda: _lines(found, Style.of(sys.stdout)))
    for text in unreadable:
        print(f"{Style.of(sys.stderr).red('wrong')} {text}", file=sys.stderr)
    return Exit.WRONG if unreadable else Exit.FOUND if any(j.faults for j in found) else Exit.WELL


def _apart(document: Document) -> Iterator[Document]:
    """Items of a list, of which ``kubectl`` makes objects too."""
    value = document.value
    kind = value.get("kind") if isinstance(value, dict) else None
    if isinstance(kind, str) and kind.endswith("List") and isinstance(value.get("items"), list):
        for item in document.items("items"):
            yield from _apart(item)
    else:
        yield document


def _is_object(judged: Judged) -> bool:
    value = judged.value
    return isinstance(value, dict) and all(isinstance(value.get(k), str) for k in ("apiVersion", "kind"))


def _judge(judged: Judged, readers: Sequence[opaque.Reader]) -> None:
    judged.faults += judged.document.faults
    value = judged.value
    if not isinstance(value, dict):
        judged.fault(
            f"{'a list' if isinstance(value, list) else 'text'} in place of an object with apiVersion and kind"
        )
        return
    if str(value.get("apiVersion")).startswith("kustomize.config.k8s.io/"):
        judged.warn("not judged: it is kustomize's own: judge what `kubectl kustomize` makes of it")
        return
    if missing := list(_missing(value)):
        for text in missing:
            judged.fault(text)
        return
    try:
        for text in offline.faults(value):
            judged.fault(text)
    except offline.UnknownKind as e:
        if e.fault:
            judged.fault(e.fault)
        else:
            judged.warn(f"not judged: {value['apiVersion']} {value['kind']} is not known here")
    if value["apiVersion"].startswith(_GROUP):
        for text in opaque.faults(value, readers):
            judged.fault(text)
        for text in opaque.unjudged(value, readers):
            judged.warn(text)


def _missing(value: JSON) -> Iterator[str]:
    """What every object has and this one lacks, and what stands there instead."""
    for key in ("apiVersion", "kind"):
        if not isinstance(value.get(key), str):
            yield _lacks("", key, value)
    meta = value.get("metadata")
    if not isinstance(meta, dict):
        yield _lacks("", "metadata", value)
    elif not isinstance(meta.get("name") or meta.get("generateName"), str):
        yield _lacks("metadata", "name", meta)


def _lacks(path: str, key: str, value: JSON) -> str:
    where = f"{path}.{key}" if path else key
    if key in value:
        given = "nothing" if value[key] is None else printable(value[key])
        return f"{where}: {given} in place of {'an object' if key == 'metadata' else 'text'}"
    meant = [str(k) for k in value if near(str(k), [key])]
    return f"{path}.{meant[0]}: unknown field, did you mean {key!r}?".lstrip(".") if meant else f"{where}: missing"


def _path(text: str) -> str:
    """Where a sentence leads to, as far as it says so: its beginning, and the parameter that it names."""
    path, _, rest = text.partition(": ")
    if " " in path:
        return ""
    if rest.startswith("parameters") and " " not in (inner := rest.partition(": ")[0]):
        path += f".{inner}"
    named = re.search(r"unknown field '([^']+)'", rest)
    return f"{path}.{named[1]}" if named else path


def _told_twice(found: Sequence[Judged]) -> None:
    keys = {id(j): _key(j.value) for j in found if _is_object(j)}
    twice = {key for key, n in Counter(keys.values()).items() if n > 1}
    for judged in found:
        if keys.get(id(judged)) in twice:
            judged.warn("this object stands here more than once: the last one wins")


def _key(value: JSON) -> tuple[str, ...]:
    meta = value.get("metadata")
    meta = meta if isinstance(meta, dict) else {}
    own = meta.get("name") or id(value)  # of a generated name there may be many
    return value["apiVersion"], value["kind"], str(meta.get("namespace", "")), str(own)


def _classes(drivers: Sequence[str], files: Sequence[Path], unreadable: list[str]) -> Iterator[str]:
    """Names of the DeviceClasses that lie beside the drivers, in files that are not judged."""
    judged = {f.resolve() for f in files}
    for file in dict.fromkeys(f for d in drivers for f in class_files(d) if f.resolve() not in judged):
        for document in (part for d in documents.read(file, unreadable) for part in _apart(d)):
            meta = document.value.get("metadata") if isinstance(document.value, dict) else None
            if isinstance(meta, dict) and document.value.get("kind") == "DeviceClass":
                yield str(meta.get("name"))


def _slices(drivers: Sequence[Driver], readers: Sequence[opaque.Reader], host: str | None) -> Iterator[JSON]:
    """What the drivers would publish on a described host: their attributes, for selectors that name them."""
    if host is None:
        return
    settings = load({}, {})
    with host_root(host, settings.sysfs_root) as root, without_log("dra_kubeletplugin.inventory"):
        for driver, reader in zip(drivers, readers, strict=True):
            own = dataclasses.replace(settings, driver_name=reader.driver, node_name="node", sysfs_root=root)
            driver.attach(Host(root, own.dev_root, lists=own.list_attributes), own, Role.NODE)
            inventory = asyncio.run(look(driver, own))
            devices = [json.loads(parcel.encoded) for pool in inventory.contents() for parcel in pool.devices]
            yield {"spec": {"driver": reader.driver, "devices": devices}}


def _lines(found: Sequence[Judged], style: Style) -> Iterator[str]:
    for judged in found:
        if not judged.faults and not judged.warnings:
            yield f"{style.green('ok')} {judged.name} {style.dim('(' + judged.document.place() + ')')}"
        for colour, word, told in ((style.red, "wrong", judged.faults), (style.yellow, "warning", judged.warnings)):
            for place, text in told:
                yield f"{colour(word)} {place}: {judged.name + ': ' if judged.name else ''}{text}"


def schema(args: argparse.Namespace) -> int:
    """Prints the schema of the driver's kind, or of the one that ``--kind`` names, older versions too."""
    kinds = _kinds(args.driver)
    chosen = [k for k in kinds if args.kind in (None, k.KIND, k.API_VERSION, f"{k.API_VERSION}/{k.KIND}", k.__name__)]
    if args.kind is None:
        chosen = chosen[:1]
    if not chosen:
        known = [name for k in kinds for name in (k.API_VERSION, k.KIND or k.__name__) if name]
        listed = ", ".join(" ".join(filter(None, (k.API_VERSION, k.KIND or k.__name__))) for k in kinds)
        raise SettingsError(
            f"--kind {args.kind!r} is none of {listed}{near(args.kind, known)}"
            if kinds
            else f"{args.driver} takes no parameters"
        )
    write(json_schema(chosen[0]), args.output)
    return Exit.WELL


def _kinds(driver: str) -> list[Any]:
    from ..driver.parameters import versions

    return list(versions(make(load_driver(driver)).config_kinds()))
