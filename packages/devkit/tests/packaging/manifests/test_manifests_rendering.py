"""Tests that kustomize and Helm produce the same objects from one source, for all kinds of values."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from dra_devkit.packaging.manifests.source_reader import Distribution
from dra_devkit.packaging.manifests.values import merged
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    DRIVERS,
    FIELDS,
    LEAST,
    NEEDS,
    ROOT,
    SOURCE,
    Renderings,
    built,
    by_id,
    container,
    kustomized,
    one,
    plain,
    values_of,
    with_features,
)

FEATURES = tuple(SOURCE.features)
VALUES: dict[str, JSON] = {
    "nothing": with_features(),
    "odd-options": with_features(
        options={"A": "a=b, c", "B": "", "C": "1\n2", "D": "{{ x }} ${y} $(z)", "E": "it's: #1"}
    ),
    "everything": with_features(*ALL),
    "on-the-node's-network": with_features("probes", "hostNetwork", "controller"),
    "own-CA": with_features(*(f for f in ALL if f != "certManager"), "webhookCABundle"),
    **{f"only-{f}": with_features(*NEEDS.get(f, (f,))) for f in FEATURES},
    **{f"all-but-{f}": with_features(*(x for x in ALL if x != f)) for f in ("probes", "privileged", "controller")},
    "every-parameter": with_features(
        *ALL,
        driverFile="npu.plugin:Npu",
        kubeletRoot="/data/kubelet",
        cdiRoot="/data/cdi",
        logLevel="debug",
        httpPort=9100,
        controllerReplicas=3,
        webhookReplicas=4,
        webhookFailurePolicy="Fail",
        seLinuxType="npu_t",
        resourceAPI="v1beta1",
    ),
    "every-field-of-every-pod": with_features(
        *(f for f in ALL if f != "nodeLabel"),
        pods={
            "all": {
                **FIELDS,
                "imagePullSecrets": [{"name": "registry"}],
                "env": [{"name": "HTTPS_PROXY", "value": "http://p:3128"}],
            },
            "plugin": {"tolerations": [], "env": [{"name": "SIZE", "value": "1.5"}], "labels": {"on": "true"}},
            "controller": {
                "affinity": {},
                "priorityClassName": "",
                "nodeSelector": {"node-role.kubernetes.io/control-plane": ""},
            },
            "webhook": {"resources": None, "volumes": [], "volumeMounts": []},
        },
    ),
    "a-field-of-one-pod": with_features(
        "probes", "controller", pods={"controller": {"resources": {"limits": {"memory": "1Gi"}}}}
    ),
    "fields-instead-of-a-feature": with_features(
        pods={"plugin": {"affinity": FIELDS["affinity"]}, "webhook": {"env": []}}
    ),
    **{name: values_of(name) for name in DRIVERS},
}


@pytest.mark.cases(6)
@pytest.mark.kubectl
@pytest.mark.parametrize("name", VALUES)
def test_kustomize_renders_the_objects_of_the_source(name: str, renderings: Renderings) -> None:
    assert by_id(renderings.kustomized(VALUES[name])) == by_id(plain(VALUES[name]))


@pytest.mark.cases(6)
@pytest.mark.helm
@pytest.mark.parametrize("name", VALUES)
def test_helm_renders_the_objects_of_the_source(name: str, renderings: Renderings) -> None:
    expected = by_id(plain(merged(VALUES[name], {"features": {"namespace": False}})))
    assert by_id(renderings.helmed(VALUES[name])) == expected


@pytest.mark.cases(2)
@pytest.mark.helm
@pytest.mark.kubectl
@pytest.mark.parametrize("distribution", SOURCE.distributions.values(), ids=lambda d: d.name)
def test_a_distribution_is_the_same_in_both_forms(distribution: Distribution, renderings: Renderings) -> None:
    driver_values = merged(values_of("gpu_example"), {"features": {"namespace": False}})
    expected = by_id(plain(merged(driver_values, distribution.values)))
    on_top = ROOT / f"deploy/helm/distributions/{distribution.name}.yaml"
    assert by_id(renderings.helmed(driver_values, on_top)) == expected
    assert by_id(renderings.kustomized(merged(driver_values, distribution.values))) == expected


@pytest.mark.cases(2)
@pytest.mark.kubectl
@pytest.mark.parametrize("name", [d.name for d in SOURCE.distributions.values() if set(d.values) - {"features"}])
def test_the_component_of_a_distribution_must_be_listed_first(name: str, tmp_path: Path) -> None:
    values = SOURCE.distributions[name].values
    without = {k: v for k, v in values.items() if k != "features"}
    folder = tmp_path / "driver"
    expected = by_id(plain(merged(values_of("gpu_example"), without)))
    kustomized(values_of("gpu_example"), folder)
    file = folder / "kustomization.yaml"
    first = file.read_text().partition("components:\n")[2].partition("\n")[0]
    listed = first.rpartition("/")[0] + f"/{name}\n"
    file.write_text(file.read_text().replace("components:\n", f"components:\n{listed}"))
    assert by_id(built(folder)) == expected


def test_the_committed_files_are_up_to_date_with_the_source(tmp_path: Path) -> None:
    assert main(["deploy", "--shared-dir", str(tmp_path / "deploy")]) == 0
    for name in DRIVERS:
        values = f"drivers/{name}/deploy"
        assert (
            main(
                [
                    "deploy",
                    str(ROOT / values),
                    "-C",
                    str(tmp_path / values),
                    "--kustomize-base",
                    "../../../deploy/kustomize",
                ]
            )
            == 0
        )
    fresh = {p.relative_to(tmp_path): p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    committed = {
        p.relative_to(ROOT): p.read_text()
        for folder in ("deploy/kustomize", "deploy/helm", "deploy/monitoring")
        for p in (ROOT / folder).rglob("*")
        if p.is_file()
    }
    committed |= {p: (ROOT / p).read_text() for p in fresh if p.parts[0] == "drivers"}
    assert set(committed) == set(fresh), "run `make deploy`"
    for path, text in fresh.items():
        assert committed[path] == text, f"{path}: run `make deploy`"


def test_options_for_one_driver_are_refused_with_shared_dir(tmp_path: Path, dra: Dra) -> None:
    output = dra("deploy", "--shared-dir", tmp_path / "deploy", "-C", tmp_path, "--kustomize-base", "../x", code=2).err
    assert "--directory is for one driver's VALUES" in output
    assert "--kustomize-base is for one driver's VALUES" in output
    assert not list(tmp_path.iterdir())


@pytest.mark.kubectl
@pytest.mark.parametrize("name", DRIVERS)
def test_a_committed_overlay_renders_the_objects_of_its_values(name: str) -> None:
    assert by_id(built(ROOT / f"drivers/{name}/deploy")) == by_id(plain(values_of(name))), "run `make deploy`"


@pytest.mark.kubectl
def test_names_in_the_base_are_invalid_until_they_are_replaced() -> None:
    """The base contains capital letters in place of parameters, and the API server refuses such names."""
    names = {"NAME", "NAME-resourceslices", "NAME-resourceclaims"}
    assert {m["metadata"]["name"] for m in built(ROOT / "deploy/kustomize/base")} == names


@pytest.mark.kubectl
@pytest.mark.helm
def test_changed_options_change_the_pods(renderings: Renderings) -> None:
    changed = merged(LEAST, {"options": {"NPU_COUNT": "9"}})
    for render in (renderings.kustomized, renderings.helmed):
        before, after = (one(render(v), "DaemonSet")["spec"]["template"] for v in (LEAST, changed))
        assert before != after


def test_no_overlay_patches_by_position() -> None:
    """JSON patches use positions, which change. A second entry with the name of a variable makes an update fail."""
    for path in (ROOT / "deploy/kustomize").rglob("kustomization.yaml"):
        for change in yaml.safe_load(path.read_text()).get("patches", []):
            assert isinstance(yaml.safe_load(change["patch"]), dict), path
    for values in VALUES.values():
        for manifest in plain(values):
            if manifest["kind"] in {"DaemonSet", "Deployment"}:
                names = [e["name"] for e in container(manifest)["env"]]
                assert len(names) == len(set(names))
