"""Checks each rendered manifest against the types of each supported release, from Kubernetes 1.32 to 1.37."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.packaging.manifests.values import merged
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    DRIVERS,
    SOURCE,
    container,
    one,
    plain,
    values_of,
    with_features,
)

TYPES = json.loads((Path(__file__).parent / "release_fields.json").read_text())
"""Types of the official clients, whose models come from each release's OpenAPI: see tests/tools/release_fields.py."""
RELEASES = range(32, 38)
PLAIN = {"str": str, "int": int, "bool": bool, "object": object}


def faults(value: Any, kind: str, release: int, where: str) -> Iterator[str]:
    """Returns the fields that the release would reject under strict validation."""
    if match := re.fullmatch(r"list\[(.*)\]", kind):
        for i, item in enumerate(value):
            yield from faults(item, match[1], release, f"{where}[{i}]")
    elif match := re.fullmatch(r"dict[\[(](.*), (.*)[\])]", kind):
        for key, item in value.items():
            yield from faults(item, match[2], release, f"{where}[{key}]")
    elif kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            yield f"{where}: {value!r} is no {kind}"
    else:
        fields = {name: f for name, f in TYPES[kind].items() if f[1] <= release <= f[2]}
        for name, inner in value.items():
            if name not in fields:
                yield f"{where}.{name}: no field of 1.{release}"
            elif isinstance(inner, str) and fields[name][0] == "IntOrString":
                continue
            else:
                yield from faults(inner, fields[name][0], release, f"{where}.{name}")


def of_release(driver_values: JSON, release: int) -> JSON:
    found = SOURCE.distributions.get(f"kubernetes-1.{release}")
    return merged(driver_values, found.values) if found else driver_values


def model(manifest: JSON) -> str:
    version = manifest["apiVersion"].rpartition("/")[2]
    return f"{version[0].upper()}{version[1:]}{manifest['kind']}"


EVERYTHING = with_features(*ALL)
ON_NODE = with_features("probes", "hostNetwork")
FORMS: dict[str, JSON] = {
    "everything": EVERYTHING,
    "on-the-node's-network": ON_NODE,
    **{name: values_of(name) for name in DRIVERS},
    "a-CA-of-ones-own": with_features("webhook", "webhookCABundle"),
    **{d.name: merged(EVERYTHING, d.values) for d in SOURCE.distributions.values() if "resourceAPI" not in d.values},
}


@pytest.mark.cases(20)
@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("form", FORMS)
def test_a_release_has_every_field_of_its_manifests(form: str, release: int) -> None:
    for manifest in plain(of_release(FORMS[form], release)):
        kind = model(manifest)
        if manifest["apiVersion"] == "cert-manager.io/v1":
            continue  # not a type of Kubernetes itself
        assert kind in TYPES, kind
        (first, last) = TYPES[kind]["kind"][1:]
        assert first <= release <= last, f"{manifest['apiVersion']} {manifest['kind']} is not served by 1.{release}"
        assert list(faults(manifest, kind, release, manifest["kind"])) == []


def test_the_check_finds_fields_that_a_release_does_not_have() -> None:
    gpu = one(plain(merged(values_of("gpu_example"), {"resourceAPI": "v1"})), "DeviceClass")
    assert list(faults(gpu, "V1DeviceClass", 34, "c")) == []
    assert list(faults(gpu, "V1beta2DeviceClass", 33, "c")) == ["c.spec.extendedResourceName: no field of 1.33"]
    daemonset = one(plain(EVERYTHING), "DaemonSet", "npu")
    daemonset["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "8080"
    (fault,) = faults(daemonset, "V1DaemonSet", 36, "d")
    assert fault == "d.spec.template.spec.containers[0].ports[0].containerPort: '8080' is no int"


def test_a_release_without_seamless_updates_gets_one_instance_at_a_time() -> None:
    """Before 1.33, a second instance of a driver replaces the first at the kubelet, and its end deletes the driver's slices."""
    daemonset = one(plain(of_release(values_of("pci"), 32)), "DaemonSet")
    assert "updateStrategy" not in daemonset["spec"]  # The default is maxSurge 0 and maxUnavailable 1.
    assert "POD_UID" not in {e["name"] for e in container(daemonset)["env"]}


def test_rules_for_later_releases_grant_nothing_on_earlier_releases() -> None:
    """Rules for the subresource and verbs of 1.36 are separate, so they match no request on older servers."""
    for manifest in plain(EVERYTHING):
        for rule in manifest.get("rules", []):
            if "resourceclaims/driver" in rule["resources"]:
                assert rule["resources"] == ["resourceclaims/driver"]
                assert all(re.match("(associated|arbitrary)-node:", verb) for verb in rule["verbs"])
                assert rule["resourceNames"] == ["npu.example.com"]
