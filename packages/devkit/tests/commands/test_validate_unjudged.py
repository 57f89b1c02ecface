"""``dra validate`` calls an object valid, invalid or not validated, and names the release or gate with which it is valid."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_devkit.kubernetes_releases import RELEASES, Stage, gates, stage
from dra_devkit.localcluster.apiserver.kinds import KINDS
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from packages.devkit.tests.command_runner import Dra

SPEC = {
    "driver": "gpu.example.com",
    "nodeName": "node-1",
    "pool": {"name": "node-1", "generation": 1, "resourceSliceCount": 1},
}
CONFIG_MAP = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "valid"}}


def obj(kind: str, spec: JSON, api_version: str = "resource.k8s.io/v1") -> JSON:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": spec}


def slice_with(**device: Any) -> JSON:
    return obj("ResourceSlice", {**SPEC, "devices": [{"name": "d", **device}]})


def claim_with(**exactly: Any) -> JSON:
    return obj(
        "ResourceClaim", {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c", **exactly}}]}}
    )


DERIVED = {"name": "gpu.example.com/a", "expression": "device.driver"}


def claim_with_derived() -> JSON:
    claim = claim_with(derivedAttributes=[DERIVED])
    claim["spec"]["devices"]["constraints"] = [{"matchAttribute": DERIVED["name"]}]
    return claim


def selecting(expression: str) -> JSON:
    return claim_with(selectors=[{"cel": {"expression": expression}}])


def run(tmp_path: Path, dra: Dra, *objects: Any, options: tuple[str, ...] = ()) -> tuple[int, str]:
    (tmp_path / "x.yaml").write_text(yaml.safe_dump_all(objects))
    printed = dra("validate", *options, tmp_path / "x.yaml", code=None)
    return printed.code, printed.out


# --- kinds without rules, and documents that are no objects -------------------------------------------


@pytest.mark.parametrize("kind", [k for k in KINDS if k.refused and k.kind != "Workload"], ids=lambda k: k.key)
def test_a_kind_that_the_local_cluster_does_not_run_is_not_called_wrong(kind: Any, tmp_path: Path, dra: Dra) -> None:
    code, out = run(tmp_path, dra, obj(kind.kind, {}, kind.api_version(kind.versions[0])), CONFIG_MAP)
    assert code == 3
    assert "wrong" not in out and "local cluster" not in out
    assert out.count("not validated") == 1 and "ok ConfigMap valid" in out


def test_an_invalid_object_decides_beside_an_object_that_is_not_validated(tmp_path: Path, dra: Dra) -> None:
    code, out = run(tmp_path, dra, obj("Thing", {}, "example.com/v1"), {**CONFIG_MAP, "dta": {}})
    assert code == 1
    assert "not validated: example.com/v1 Thing is not known here" in out


NO_OBJECTS: dict[str, Any] = {
    "kind.yaml": {"kind": "Cluster", "apiVersion": "kind.x-k8s.io/v1alpha4", "nodes": [{"role": "control-plane"}]},
    "kubeadm.yaml": {"kind": "ClusterConfiguration", "apiVersion": "kubeadm.k8s.io/v1beta4"},
    "kubeconfig.yaml": {"kind": "Config", "apiVersion": "v1", "clusters": []},
    "kubelet.yaml": {"kind": "KubeletConfiguration", "apiVersion": "kubelet.config.k8s.io/v1beta1"},
    "kustomization.yaml": {"kind": "Kustomization", "apiVersion": "kustomize.config.k8s.io/v1beta1", "resources": []},
    "values.yaml": {"image": "x"},
    "Chart.yaml": {"apiVersion": "v2", "name": "chart", "version": "1.0.0"},
    "cdi.json": {"cdiVersion": "0.8.0", "kind": "example.com/gpu", "devices": []},
    "list.json": [1, 2],
    "text.json": "text",
    "compose.yml": {"services": {}},
}


@pytest.mark.parametrize("name", NO_OBJECTS)
def test_a_document_in_a_folder_that_is_no_object_is_named_and_does_not_fail_the_folder(
    name: str, tmp_path: Path, dra: Dra
) -> None:
    (tmp_path / name).write_text(json.dumps(NO_OBJECTS[name]))
    dra("validate", tmp_path, code=3)
    (tmp_path / "valid.yaml").write_text(json.dumps(CONFIG_MAP))
    out = dra("validate", tmp_path).out
    assert out.count("not validated") == 1 and name in out and "wrong" not in out
    assert main(["validate", str(tmp_path), str(tmp_path / name)]) in {1, 3}, "a file that the user names is validated"


@pytest.mark.parametrize(
    "document",
    [
        {"apiVersion": "v1", "kind": "Pod", "spec": {}},
        {"apiVersion": "v1", "kind": "Pd"},
        {"kind": "ResourceClaim", "metadata": {"name": "x"}},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metdata": {"name": "x"}},
        {"apiVersion": "v1", "kind": "List", "items": 3},
        {"apiVersion": "v1", "metadata": {"name": "x"}},
    ],
    ids=str,
)
def test_an_object_with_a_mistake_in_its_head_stays_wrong_in_a_folder(document: JSON, tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "x.json").write_text(json.dumps(document))
    assert "wrong" in dra("validate", tmp_path, code=1).out


# --- gates and releases -------------------------------------------------------------------------------

# Each case has the object, and the release and gates with which it is valid.
LISTS = slice_with(attributes={"gpu.example.com/roots": {"strings": ["a", "b"]}})
CASES: dict[str, tuple[JSON, str, tuple[str, ...]]] = {
    "list attribute": (LISTS, "1.36", ("DRAListTypeAttributes",)),
    "PodGroup of 1.36": (obj("PodGroup", {"schedulingPolicy": {"basic": {}}}, "scheduling.k8s.io/v1alpha2"), "1.36", ("GenericWorkload",)),
    "PodGroup of 1.37": (obj("PodGroup", {"schedulingPolicy": {"basic": {}}}, "scheduling.k8s.io/v1beta1"), "1.37", ("GenericWorkload",)),
    "claims of a PodGroup": (
        obj("PodGroup", {"schedulingPolicy": {"basic": {}}, "resourceClaims": [{"name": "c", "resourceClaimName": "c"}]}, "scheduling.k8s.io/v1alpha2"),
        "1.36", ("GenericWorkload", "DRAWorkloadResourceClaims"),
    ),
    "node resources": (
        slice_with(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "16"}}}), "1.37", ("DRANodeAllocatableResources",),
    ),
    "derived attribute": (
        claim_with_derived(), "1.37", ("DRADerivedAttributes",),
    ),
    "rule of 1.37": (
        obj("DeviceTaintRule", {"deviceSelector": {"driver": "a.example.com"}, "taint": {"key": "a.example.com/x", "effect": "NoSchedule"}}),
        "1.37", (),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_release_or_gate_that_makes_an_object_valid_is_named_and_the_options_accept_it(
    case: str, tmp_path: Path, dra: Dra
) -> None:
    document, release, needed = CASES[case]
    code, out = run(tmp_path, dra, document)
    assert code == 1
    assert f"it is valid in Kubernetes {release}" in out
    hint = out.partition("it is valid in")[2].splitlines()[0].partition(";")[0]
    assert tuple(g for g in gates() if g in hint) == needed
    assert ("off by default in" in hint) == bool(needed)
    switched = [f"{g}=true" for g in needed]
    for flag in ("--gates", "--feature-gates"):
        options = ("--kubernetes", release, *((flag, ",".join(switched)) if needed else ()))
        assert run(tmp_path, dra, document, options=options) == (
            0,
            f"ok {document['kind']} x ({tmp_path}/x.yaml:1)\n",
        )


POD_GROUP = {"schedulingPolicy": {"basic": {}}}
# Each case has the object, the release, and the text of the hint.
OTHER_VERSIONS = {
    "an alpha version in a later release": (
        obj("PodGroup", POD_GROUP, "scheduling.k8s.io/v1alpha2"), "1.37",
        "does not serve scheduling.k8s.io/v1alpha2 PodGroup: it is valid in Kubernetes 1.36 with the feature gate GenericWorkload, which is "
        "off by default in 1.36; in Kubernetes 1.37 use scheduling.k8s.io/v1beta1 with the feature gate GenericWorkload, which is off by "
        "default in 1.37",
    ),
    "a version that needs a gate": (
        obj("PodGroup", POD_GROUP, "scheduling.k8s.io/v1beta1"), "1.37",
        "does not serve scheduling.k8s.io/v1beta1 PodGroup by default: it is valid in Kubernetes 1.37 with the feature gate GenericWorkload,",
    ),
    "a version of no known release": (
        obj("PodGroup", POD_GROUP, "scheduling.k8s.io/v1alpha1"), "1.36",
        "does not serve scheduling.k8s.io/v1alpha1 PodGroup: in Kubernetes 1.36 use scheduling.k8s.io/v1alpha2 with the feature gate",
    ),
    "two gates": (
        CASES["claims of a PodGroup"][0], "1.36",
        "with the feature gates GenericWorkload and DRAWorkloadResourceClaims, which are off by default in 1.36\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", OTHER_VERSIONS)
def test_a_hint_names_the_version_that_the_release_serves(case: str, tmp_path: Path, dra: Dra) -> None:
    document, release, hint = OTHER_VERSIONS[case]
    code, out = run(tmp_path, dra, document, options=("--kubernetes", release))
    assert (code, hint in out) == (1, True), out


def test_a_version_of_an_older_release_is_not_called_wrong(tmp_path: Path, dra: Dra) -> None:
    code, out = run(tmp_path, dra, obj("Workload", {}, "scheduling.k8s.io/v1alpha1"))
    assert (code, "not validated" in out) == (3, True)
    code, out = run(tmp_path, dra, obj("Workload", {}, "scheduling.k8s.io/v1alpa1"))
    assert (code, "is not a version of Kubernetes" in out) == (1, True)


def test_each_field_of_another_release_gets_the_hint(tmp_path: Path, dra: Dra) -> None:
    document = claim_with_derived()
    second = copy.deepcopy(document["spec"]["devices"]["requests"][0]) | {"name": "s"}
    document["spec"]["devices"]["requests"].append(second)
    code, out = run(tmp_path, dra, document)
    assert (code, out.count("wrong")) == (1, 2)
    assert (
        out.count("Kubernetes 1.37 adds it: it is valid in Kubernetes 1.37 with the feature gate DRADerivedAttributes")
        == 2
    )
    mappings = slice_with(nodeAllocatableResourceMappings={"cpu": {"allocationMultiplier": "1"}})
    out = run(tmp_path, dra, mappings, options=("--kubernetes", "1.37"))[1]
    assert "unknown field in Kubernetes 1.37: only Kubernetes 1.36 has it" in out


def test_a_field_that_the_server_drops_is_a_warning_with_its_gate(tmp_path: Path, dra: Dra) -> None:
    document = slice_with(nodeAllocatableResources={"cpu": {"mapping": {"deviceMultiplier": "16"}}})
    code, out = run(tmp_path, dra, document, options=("--kubernetes", "1.37"))
    assert code == 0
    assert (
        "spec.devices[0].nodeAllocatableResources: Kubernetes 1.37 drops this field: it needs the feature gate" in out
    )
    assert "DRANodeAllocatableResources, which is off by default in 1.37" in out


def test_an_object_that_no_release_accepts_gets_no_hint(tmp_path: Path, dra: Dra) -> None:
    code, out = run(tmp_path, dra, claim_with(count=-1))
    assert (code, "it is valid in" in out) == (1, False)


@pytest.mark.parametrize("release", RELEASES)
def test_every_gate_of_a_release_can_be_switched_on_for_validation(release: str, tmp_path: Path, dra: Dra) -> None:
    on = ",".join(f"{g}=true" for g in gates() if stage(g, release) is not Stage.ABSENT)
    assert run(tmp_path, dra, CONFIG_MAP, options=("--kubernetes", release, "--gates", on))[0] == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--kubernetes", "1.20"), "Kubernetes '1.20' is not supported"),
        (("--gates", "DRAListTypeAttribute=true"), "did you mean DRAListTypeAttributes?"),
        (("--gates", "DRAAdminAccess=false"), "cannot be switched off"),
    ],
)
def test_a_wrong_release_or_gate_is_reported(options: tuple[str, ...], text: str, tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "x.json").write_text(json.dumps(CONFIG_MAP))
    assert text in dra("validate", *options, tmp_path / "x.json", code=2).err


# --- selectors with keys that cannot exist ------------------------------------------------------------

IMPOSSIBLE = {
    'device.attributes["nics.example.com/rdma"].bool == true': 'use device.attributes["nics.example.com"].rdma',
    '"nics.example.com/rdma" in device.attributes': 'use device.attributes["nics.example.com"].rdma',
    'device.capacity["gpu.example.com/memory"].value.isGreaterThan(quantity("1Gi"))': 'device.capacity["gpu.example.com"].memory',
    'device.attributes["a b"].x': "is not a domain",
    'has(device.attributes["gpu_example"].x)': "is not a domain",
    'device.attributes["gpu.example.com"]["my-model"] == "a"': "a name is a C identifier",
    f'device.attributes["gpu.example.com"].{"x" * 33} == "a"': "at most 32 characters",
    'device.attributes["gpu.example.com"].model.string == "a"': "has no field 'string'",
}
POSSIBLE = [
    'device.attributes["gpu.example.com"].model == "a"',
    'device.attributes["gpu.example.com"].version.isGreaterThan(semver("1.0.0"))',
    'device.capacity["gpu.example.com"].memory.compareTo(quantity("1Gi")) >= 0',
    '"model" in device.attributes["gpu.example.com"]',
    'device.attributes["resource.kubernetes.io"].pcieRoot == "pci0000:00"',
    'device.attributes["GPU.example.com"].?model.orValue("") == "a"',
    'cel.bind(a, device.attributes["gpu.example.com"], has(a.model))',
]


@pytest.mark.parametrize("expression", IMPOSSIBLE)
@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate", "DeviceClass"])
def test_a_key_that_no_device_can_have_is_questioned_in_every_kind(
    kind: str, expression: str, tmp_path: Path, dra: Dra
) -> None:
    claim = selecting(expression)
    selectors = [{"cel": {"expression": expression}}]
    documents = {
        "ResourceClaim": claim,
        "ResourceClaimTemplate": obj("ResourceClaimTemplate", {"spec": claim["spec"]}),
        "DeviceClass": obj("DeviceClass", {"selectors": selectors}),
    }
    code, out = run(tmp_path, dra, documents[kind])
    assert code == 0, "the API server accepts the object"
    assert out.startswith("warning") and IMPOSSIBLE[expression] in out


@pytest.mark.parametrize("expression", POSSIBLE)
def test_a_key_that_a_device_can_have_gets_no_warning(expression: str, tmp_path: Path, dra: Dra) -> None:
    code, out = run(tmp_path, dra, selecting(expression))
    assert (code, out) == (0, f"ok ResourceClaim x ({tmp_path}/x.yaml:1)\n")


def test_explain_questions_such_a_key_of_a_claim_and_of_a_class(tmp_path: Path, dra: Dra) -> None:
    key = 'device.attributes["gpu.example.com/model"].string == "a"'
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "m", "image": "x"}], "resourceClaims": [{"name": "c", "resourceClaimName": "x"}],
    }}  # fmt: skip
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "node-1"},
        "status": {"allocatable": {"pods": "9"}},
    }
    of_class = {**obj("DeviceClass", {"selectors": [{"cel": {"expression": key}}]}), "metadata": {"name": "c"}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump_all([node, slice_with(), of_class, selecting(key), pod]))
    notes = json.loads(dra("explain", "p", "-f", tmp_path / "x.yaml", "-o", "json", code=1).out)["notes"]
    wheres = [note.partition(":")[0] for note in notes]
    assert wheres == ["claim default/x, request r"] * 2 + ["class c"] * 2
    assert ["has no field 'string'" in note for note in notes] == [False, True] * 2
    assert all('device.attributes["gpu.example.com"].model' in note for note in notes)
