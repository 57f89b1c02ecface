"""Manifests of drivers, rendered three ways: plainly from the source, by kustomize, and by Helm."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin.packaging.manifests import driver_folder, pod_fields
from dra_kubeletplugin.packaging.manifests.source_reader import load, parse_yaml
from dra_kubeletplugin.packaging.manifests.values import merged, read
from tests.helpers.shared_folders import shared_folder

JSON = dict[str, Any]
ROOT = Path(__file__).parents[3]
# libyaml, where PyYAML has it, is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
SOURCE = load()
CHART = ROOT / "deploy/helm/dra-driver"
DRIVERS = sorted(p.parents[1].name for p in ROOT.glob("drivers/*/deploy/values.yaml"))
LEAST: JSON = {
    "name": "npu",
    "namespace": "npu-system",
    "driverName": "npu.example.com",
    "image": "registry.example.com:5000/npu@sha256:0123",
    "options": {"NPU_MODE": "true", "NPU_COUNT": "8"},
    "deviceClasses": {
        "npu.example.com": {"selectors": [{"cel": {"expression": 'device.driver == "npu.example.com"'}}]}
    },
}
"""Values of a driver that leaves everything else as it is."""


def values_of(name: str) -> JSON:
    loaded: JSON = yaml.safe_load((ROOT / f"drivers/{name}/deploy/values.yaml").read_text())
    return loaded


ALL = tuple(f for f in SOURCE.features if f not in {"hostNetwork", "webhookCABundle"})
"""As many features as go together; the two left out have others in the place of some."""
NEEDS = {
    "webhook": ("webhook", "certManager"),
    "certManager": ("webhook", "certManager"),
    "webhookCABundle": ("webhook", "webhookCABundle"),
}
"""Features that are not for themselves."""
CA = (Path(__file__).parent / "ca.crt").read_bytes()
"""Any certificate. It is the same for all workers, so that they share renderings."""


def with_features(*names: str, **more: Any) -> JSON:
    """``LEAST`` with these features and no others."""
    features = {f: f in names for f in SOURCE.features}
    needed = {"nodeLabel": "example.com/npu", "webhookCABundle": base64.b64encode(CA).decode()}
    return merged(LEAST, {"features": features, **needed, **more})


def plain(given: JSON) -> list[JSON]:
    """The source with text in place of parameters: what both forms must come to. Namespaced objects first."""
    values = read(SOURCE, given)
    wanted = [
        (pod, m)
        for pod, manifests in SOURCE.manifests.items()
        for m in manifests
        if not m.feature or m.feature in values.features
    ]
    out = [m.render(values.features, values.parameters) for _, m in wanted]
    for (pod, _), made in zip(wanted, out, strict=True):
        if made["kind"] in {"DaemonSet", "Deployment"}:
            made["spec"]["template"] = pod_fields.template_with(SOURCE, made["spec"]["template"], values.pods[pod])
    name = values.parameters["name"]
    labels = {"app.kubernetes.io/name": name}
    head = {"name": f"{name}-options", "namespace": values.parameters["namespace"], "labels": labels}
    out.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": dict(values.options)})
    version = f"resource.k8s.io/{values.parameters['resourceAPI']}"
    for name, spec in values.classes.items():
        kept = {k: v for k, v in spec.items() if k != "extendedResourceName" or version.endswith("/v1")}
        out.append({"apiVersion": version, "kind": "DeviceClass", "metadata": {"name": name}, "spec": kept})
    return out


def kustomized(given: JSON, folder: Path) -> list[JSON]:
    """As ``kubectl apply -k`` would apply it."""
    folder.mkdir(parents=True, exist_ok=True)
    base = Path("/".join([".."] * (len(folder.resolve().parts) - 1))) / str(ROOT / "deploy/kustomize").lstrip("/")
    for path, text in driver_folder.files(SOURCE, read(SOURCE, given), str(base)):
        (folder / path).write_text(text)
    return built(folder)


def built(folder: Path) -> list[JSON]:
    return documents(_run("kubectl", "kustomize", str(folder)))


def helmed(given: JSON, folder: Path, *files: Path) -> list[JSON]:
    """As ``helm install`` would, into the namespace of the values, with further files of values on top."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(given))
    on_top = [part for file in files for part in ("-f", str(file))]
    return documents(
        _run("helm", "template", "release", str(CHART), "-n", given["namespace"], "-f", str(path), *on_top)
    )


class Renderings:
    """Renders each set of values once in a run of pytest, for all workers."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory

    def kustomized(self, given: JSON) -> list[JSON]:
        return self._once("kustomize", [given], lambda folder: kustomized(given, folder))

    def helmed(self, given: JSON, *files: Path) -> list[JSON]:
        return self._once("helm", [given, *map(str, files)], lambda folder: helmed(given, folder, *files))

    def _once(self, form: str, key: object, render: Callable[[Path], list[JSON]]) -> list[JSON]:
        name = f"{form}-{hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]}"
        file = "rendered.json"
        folder = shared_folder(
            self._factory, name, lambda folder: (folder / file).write_text(json.dumps(render(folder / "in")))
        )
        found: list[JSON] = json.loads((folder / file).read_text())
        return found


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def documents(text: str) -> list[JSON]:
    return [d for d in yaml.load_all(text, Loader=_LOADER) if d]


def by_id(manifests: list[JSON]) -> dict[tuple[str, str, str], JSON]:
    """By kind, namespace and name; a name with a hash of its content without it, and what only tells of that not at all.

    Items that a patch adds stand first, and none refers to another: their order is made one.
    """
    found = {}
    for manifest in manifests:
        options = _options_name(manifests)
        clean = parse_yaml(
            yaml.dump(manifest, Dumper=_DUMPER).replace(options, options.partition("-options")[0] + "-options")
        )
        if clean["kind"] in {"DaemonSet", "Deployment"}:
            template = clean["spec"]["template"]
            notes = template["metadata"].pop("annotations", {})
            if notes := {name: text for name, text in notes.items() if name != "checksum/options"}:
                template["metadata"]["annotations"] = notes
            for items in (
                template["spec"]["volumes"],
                *(c[k] for c in template["spec"]["containers"] for k in ("env", "volumeMounts")),
            ):
                items.sort(key=lambda item: item["name"] + item.get("mountPath", ""))
        if clean["kind"] == "ConfigMap":
            clean.setdefault("data", {})
        meta = clean["metadata"]
        key = (clean["kind"], meta.get("namespace", ""), meta["name"])
        assert key not in found, key
        found[key] = clean
    return found


def _options_name(manifests: list[JSON]) -> str:
    (name,) = (m["metadata"]["name"] for m in manifests if m["kind"] == "ConfigMap")
    return str(name)


def one(manifests: list[JSON], kind: str, name: str = "") -> JSON:
    """The only one of the kind; with ``name``, of those whose names end so."""
    (found,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name))
    return found


def container(workload: JSON) -> JSON:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)
