"""``dra validate``: claims, templates, classes and pods in files, judged as an API server and the drivers would, with neither at hand;
and ``dra schema``: the JSON Schema of a driver's parameters."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import opaque
from ..driver import load_driver, make
from ..driver.config_schema import json_schema
from ..errors import SettingsError, printable
from ..local.apiserver import offline
from ..local.dev import manifests
from .style import Style

JSON = dict[str, Any]
_GROUP = "resource.k8s.io/"


def validate(args: argparse.Namespace) -> int:
    """0 where every object is right, 1 where one is not, 2 where a file cannot be read."""
    readers = [opaque.Reader.of(make(load_driver(d)), args.driver_name or "") for d in args.drivers]
    try:
        found = manifests.read([Path("/dev/stdin") if f == "-" else Path(f) for f in args.files], "", served=False)
    except manifests.ManifestError as e:
        raise SettingsError(*e.faults) from None
    if not found:
        raise SettingsError(f"no object in {', '.join(args.files)}")
    results = [_judged(m, readers) for m in found]
    twice = [key for key, n in Counter(_key(m.document) for m in found).items() if n > 1]
    for result, manifest in zip(results, found, strict=True):
        if _key(manifest.document) in twice:
            result["warnings"].append("this object stands here more than once: the last one wins")
    if args.output == "json":
        print(json.dumps({"objects": results}, indent=2))
    else:
        _print(results, Style.of(sys.stdout))
    return 1 if any(r["faults"] for r in results) else 0


def _judged(manifest: manifests.Manifest, readers: Sequence[opaque.Reader]) -> JSON:
    document = manifest.document
    faults: list[str] = []
    warnings: list[str] = []
    try:
        faults += offline.faults(document)
    except KeyError:
        warnings.append("not judged: this kind is not known here")
    if document["apiVersion"].startswith(_GROUP):
        faults += opaque.faults(document, readers)
        warnings += opaque.unjudged(document, readers)
    meta = document["metadata"]
    return {
        "place": manifest.place,
        "kind": document["kind"],
        "namespace": meta.get("namespace", ""),
        "name": meta.get("name") or meta["generateName"],
        "faults": [printable(f) for f in faults],
        "warnings": [printable(w) for w in warnings],
    }


def _key(document: JSON) -> tuple[str, ...]:
    meta = document["metadata"]
    own = meta.get("name") or str(id(document))  # of a generated name there may be many
    return document["apiVersion"], document["kind"], str(meta.get("namespace", "")), str(own)


def _print(results: Sequence[JSON], style: Style) -> None:
    for r in results:
        name = f"{r['kind']} {r['namespace'] + '/' if r['namespace'] else ''}{r['name']}"
        if not r["faults"] and not r["warnings"]:
            print(f"{style.green('ok')} {name} {style.dim('(' + r['place'] + ')')}")
        for fault in r["faults"]:
            print(f"{style.red('wrong')} {r['place']}: {name}: {fault}")
        for warning in r["warnings"]:
            print(f"{style.yellow('warning')} {r['place']}: {name}: {warning}")


def schema(args: argparse.Namespace) -> int:
    """Prints the schema of the driver's kind, or of the one that ``--kind`` names, older versions too."""
    kinds = _kinds(args.driver)
    chosen = [k for k in kinds if args.kind in (None, k.KIND, k.API_VERSION, f"{k.API_VERSION}/{k.KIND}", k.__name__)]
    if args.kind is None:
        chosen = chosen[:1]
    if not chosen:
        known = ", ".join(k.KIND or k.__name__ for k in kinds)
        raise SettingsError(f"--kind {args.kind}: none of {known}" if kinds else f"{args.driver} takes no parameters")
    print(json.dumps(json_schema(chosen[0]), indent=2))
    return 0


def _kinds(driver: str) -> list[Any]:
    from ..driver.parameters import versions

    return list(versions(make(load_driver(driver)).config_kinds()))
