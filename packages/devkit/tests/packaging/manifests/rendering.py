"""Renders the manifests of drivers in three ways: directly from the source, with kustomize, and with Helm."""

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

from dra_devkit.packaging.manifests import driver_folder, pod_fields
from dra_devkit.packaging.manifests.source_reader import load_source, parse_yaml
from dra_devkit.packaging.manifests.values import merged, with_defaults
from dra_kubeletplugin.base.json_types import JSON
from tests.helpers.shared_folders import shared_folder
from tests.tools.tree import ROOT

# PyYAML with libyaml is ten times as fast.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
SOURCE = load_source()
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
"""Values of a driver that uses all other defaults."""


def values_of(name: str) -> JSON:
    loaded: JSON = yaml.safe_load((ROOT / f"drivers/{name}/deploy/values.yaml").read_text())
    return loaded


ALL = tuple(f for f in SOURCE.features if f not in {"hostNetwork", "webhookCABundle"})
"""All features that can be combined. The two omitted features exclude some of the others."""
NEEDS = {
    "webhook": ("webhook", "certManager"),
    "certManager": ("webhook", "certManager"),
    "webhookCABundle": ("webhook", "webhookCABundle"),
}
"""Features that require other features."""
CA = (Path(__file__).parent / "ca.crt").read_bytes()
"""An arbitrary certificate. All workers use the same one, so that they share renderings."""


def with_features(*names: str, **more: Any) -> JSON:
    """Returns ``LEAST`` with exactly these features."""
    features = {f: f in names for f in SOURCE.features}
    needed = {"nodeLabel": "example.com/npu", "webhookCABundle": base64.b64encode(CA).decode()}
    return merged(LEAST, {"features": features, **needed, **more})


def plain(driver_values: JSON) -> list[JSON]:
    """Renders the source directly, with namespaced objects first. kustomize and Helm must produce the same objects."""
    values = with_defaults(SOURCE, driver_values)
    selected = [
        (pod, m)
        for pod, manifests in SOURCE.manifests.items()
        for m in manifests
        if not m.feature or m.feature in values.features
    ]
    out = [m.render(values.features, values.parameters) for _, m in selected]
    for (pod, _), rendered in zip(selected, out, strict=True):
        if rendered["kind"] in {"DaemonSet", "Deployment"}:
            rendered["spec"]["template"] = pod_fields.template_with(
                SOURCE, rendered["spec"]["template"], values.pods[pod]
            )
    name = values.parameters["name"]
    labels = {"app.kubernetes.io/name": name}
    of_options = {**labels, "app.kubernetes.io/component": "plugin"}
    head = {"name": f"{name}-options", "namespace": values.parameters["namespace"], "labels": of_options}
    out.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": head, "data": dict(values.options)})
    version = f"resource.k8s.io/{values.parameters['resourceAPI']}"
    for name, spec in values.classes.items():
        kept = {k: v for k, v in spec.items() if k != "extendedResourceName" or version.endswith("/v1")}
        meta = {"name": name, "labels": labels}
        out.append({"apiVersion": version, "kind": "DeviceClass", "metadata": meta, "spec": kept})
    return out


def kustomized(driver_values: JSON, folder: Path) -> list[JSON]:
    """Returns the objects that ``kubectl apply -k`` would apply."""
    folder.mkdir(parents=True, exist_ok=True)
    base = Path("/".join([".."] * (len(folder.resolve().parts) - 1))) / str(ROOT / "deploy/kustomize").lstrip("/")
    for path, text in driver_folder.driver_files(SOURCE, with_defaults(SOURCE, driver_values), str(base)):
        (folder / path).write_text(text)
    return built(folder)


def built(folder: Path) -> list[JSON]:
    return documents(_run("kubectl", "kustomize", str(folder)))


def helmed(driver_values: JSON, folder: Path, *files: Path) -> list[JSON]:
    """Returns the objects that ``helm install`` would create in the namespace of the values; later files override the values."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "values.yaml"
    path.write_text(yaml.safe_dump(driver_values))
    on_top = [part for file in files for part in ("-f", str(file))]
    return documents(
        _run("helm", "template", "release", str(CHART), "-n", driver_values["namespace"], "-f", str(path), *on_top)
    )


class Renderings:
    """Renders each set of values once in a run of pytest, for all workers."""

    def __init__(self, factory: pytest.TempPathFactory) -> None:
        self._factory = factory

    def kustomized(self, driver_values: JSON) -> list[JSON]:
        return self._render_once("kustomize", [driver_values], lambda folder: kustomized(driver_values, folder))

    def helmed(self, driver_values: JSON, *files: Path) -> list[JSON]:
        return self._render_once(
            "helm", [driver_values, *map(str, files)], lambda folder: helmed(driver_values, folder, *files)
        )

    def _render_once(self, form: str, key: object, render: Callable[[Path], list[JSON]]) -> list[JSON]:
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
    """Maps manifests by kind, namespace and name, without content hashes in names and without annotations that contain such hashes.

    kustomize puts the items that a patch adds first. The function sorts such lists, because their order has no meaning.
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
    """Returns the only manifest of the kind; ``name`` selects manifests whose names end with it."""
    (found,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"].endswith(name))
    return found


def container(workload: JSON) -> JSON:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


FIELDS: JSON = {
    "annotations": {"example.com/note": "a: b", "number": "1"},
    "labels": {"team": "devices"},
    "nodeSelector": {"example.com/npu": "true"},
    "tolerations": [{"key": "npu", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 3000000}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "no"]}]}]
            }
        }
    },
    "topologySpreadConstraints": [
        {
            "maxSkew": 1,
            "topologyKey": "zone",
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": {"a": "b"}},
        }
    ],
    "priorityClassName": "high",
    "imagePullSecrets": [{"name": "other"}],
    "volumes": [
        {"name": "firmware", "hostPath": {"path": "/lib/firmware", "type": "Directory"}},
        {"name": "secret", "secret": {"secretName": "s", "defaultMode": 256}},
    ],
    "imagePullPolicy": "Always",
    "resources": {"limits": {"memory": "512Mi"}, "requests": {"cpu": "100m", "memory": "512Mi"}},
    "env": [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "token"}}}],
    "volumeMounts": [
        {"name": "firmware", "mountPath": "/lib/firmware", "readOnly": True},
        {"name": "secret", "mountPath": "/s"},
    ],
}
"""A value for each field of pods."""
