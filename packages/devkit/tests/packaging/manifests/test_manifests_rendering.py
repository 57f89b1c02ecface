"""Tests that kustomize and Helm produce the same objects from one source, for all kinds of values."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dra_devkit.packaging.manifests import source_reader
from dra_devkit.packaging.manifests.patches import merge_patch
from dra_devkit.packaging.manifests.replacements import places
from dra_devkit.packaging.manifests.source_reader import Distribution
from dra_devkit.packaging.manifests.values import merged
from dra_devkit.packaging.manifests.values_validation import value_errors
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    CHART,
    DRIVERS,
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


# --- mistakes of authors ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"driverName": None}, "driverName: a value is required"),
        ({"driverName": "NPU"}, "driverName: 'NPU' does not match"),
        ({"driverName": "npu..example.com"}, "driverName: 'npu..example.com' does not match"),
        ({"driverName": "a." * 32 + "a"}, "a' has more than 63 characters"),
        ({"features": {"nodeLabel": True}, "nodeLabel": "a/b/c"}, "nodeLabel: 'a/b/c' does not match"),
        ({"features": {"nodeLabel": True}, "nodeLabel": "-x"}, "nodeLabel: '-x' does not match"),
        ({"options": {"A": "\x7f"}}, "options.A: '\ufffd' has a character that is not allowed in YAML"),
        ({"kubeletroot": "/x"}, "values.yaml:8: kubeletroot: no such value, did you mean 'kubeletRoot'?"),
        ({"features": {"probe": True}}, "values.yaml:8: features.probe: no such feature, did you mean 'probes'?"),
        ({"features": {"probes": "yes"}}, "features.probes: 'yes' is neither true nor false"),
        ({"features": {"nodeLabel": True}}, "nodeLabel: a value is required"),
        ({"features": []}, "features: a list, not a mapping of names to values"),
        ({"options": ""}, "options: '', not a mapping of names to values"),
        ({"pods": {"plugin": False}}, "pods.plugin: not a mapping of fields to values"),
        ({"features": {"hostNetwork": True}}, "would serve probes on one port"),
        (
            {"features": {"webhook": True}},
            "the API server does not trust the webhook's certificate: switch certManager on",
        ),
        ({"features": {"certManager": True}}, "certManager needs the feature webhook: switch webhook on"),
        ({"features": {"webhook": True, "webhookCABundle": True}}, "webhookCABundle: "),
        ({"options": {"COUNT": 8}}, 'options.COUNT: 8 is not text: write it in quotes, "8"'),
        ({"options": {"NODE_NAME": "n"}}, "options.NODE_NAME: the manifests set this variable"),
        ({"options": {"A-B": "n"}}, "options.A-B: not a valid name of an environment variable"),
        ({"options": {"A": "'quoted'"}}, "begins or ends with a quote, which kustomize removes"),
        ({"options": ["A"]}, "options: a list, not a mapping of names to values"),
        ({"features": ["probes"]}, "features: a list, not a mapping of names to values"),
        (
            {"options": {"SHUTDOWN_GRACE_PERIOD": "5x"}},
            "options.SHUTDOWN_GRACE_PERIOD: '5x' is not a duration; write it like 500ms, 45s",
        ),
        (
            {"options": {"API_TIMEOUT": "1ms"}},
            "options.API_TIMEOUT: 0.001s must be at least 0.1s and at most 30 days",
        ),
        ({"options": {"LEASE_DURATION": "soon"}}, "options.LEASE_DURATION: 'soon' is not a duration"),
        ({"options": {"ON": True}}, 'options.ON: true is not text: write it in quotes, "true"'),
        ({"deviceClasses": {"a": None}}, "values.yaml:2: deviceClasses.a: nothing is not a spec of a DeviceClass"),
        (
            {"deviceClasses": {"a": {"selector": []}}},
            "deviceClasses.a.selector: unknown field, did you mean 'selectors'?",
        ),
        ({"deviceClasses": {"A": {}}}, 'deviceClasses.A: Invalid value: "A": a lowercase RFC 1123 subdomain'),
        (
            {"deviceClasses": {"a.b": {"selectors": [{"cel": {"expression": "device.drivr == 'x'"}}]}}},
            "values.yaml:5: deviceClasses.a.b.selectors[0].cel.expression: Invalid value: \"device.drivr == 'x'\": compilation failed",
        ),
        ({"deviceClasses": {"a": {"selectors": [{"cel": {"expression": "1"}}]}}}, "must evaluate to bool"),
        ({"logLevel": "inof"}, "logLevel: 'inof' is not one of debug, info, warning, error, did you mean 'info'?"),
        ({"webhookFailurePolicy": "ignore"}, "'ignore' is not one of Ignore, Fail, did you mean 'Ignore'?"),
        (
            {"webhookCABundle": "abcd"},
            "webhookCABundle: not a certificate: give PEM in base64, the output of `base64 -w0 ca.crt`",
        ),
        ({"httpPort": "8080"}, "httpPort: '8080' is not a number from 1 to 65535: write it without quotes"),
        ({"httpPort": 70000}, "httpPort: 70000 is not a number from 1 to 65535"),
        *(
            ({"namespace": text}, f"namespace: '{text}' would be read as another type")
            for text in ("123", "0x1f", "1e3", "null", "on")
        ),
        ({"name": "true"}, "name: 'true' would be read as another type"),
        ({"logLevel": 5}, "logLevel: 5 is not text"),
        ({"kubeletRoot": "/var/lib/kubelet/"}, "kubeletRoot: '/var/lib/kubelet/' does not match"),
        ({"pods": ["plugin"]}, "pods: a list, not a mapping of names to values"),
        ({"pods": {"node": {}}}, "pods.node: no such pod; there are all, plugin, supervisor, controller, webhook"),
        ({"pods": {"pluginn": {}}}, "pods.pluginn: no such pod, did you mean 'plugin'?"),
        ({"pods": {"plugin": "x"}}, "pods.plugin: not a mapping of fields to values"),
        (
            {"pods": {"plugin": {"toleration": []}}},
            "pods.plugin.toleration: no such field, did you mean 'tolerations'?",
        ),
        ({"pods": {"plugin": {"x": 1}}}, "pods.plugin.x: no such field; there are annotations, labels, nodeSelector,"),
        (
            {"pods": {"plugin": {"resources": {"limit": {}}}}},
            "pods.plugin.resources.limit: unknown field, did you mean 'limits'?",
        ),
        (
            {"pods": {"all": {"resources": {"limits": {"memory": "64Mib"}}}}},
            "pods.all.resources.limits.memory: '64Mib' is not a quantity",
        ),
        (
            {"pods": {"webhook": {"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}}},
            'pods.webhook.resources.requests: Invalid value: "2": must be less than or equal to cpu limit of 1',
        ),
        (
            {"pods": {"controller": {"nodeSelector": {"a": True}}}},
            "pods.controller.nodeSelector.a: true in place of text",
        ),
        ({"pods": {"plugin": {"tolerations": {"a": 1}}}}, "pods.plugin.tolerations: "),
        ({"pods": {"plugin": {"tolerations": ""}}}, "pods.plugin.tolerations: "),
        ({"pods": {"plugin": {"tolerations": [{"operator": "Exist"}]}}}, "did you mean 'Exists'?"),
        ({"pods": {"plugin": {"labels": {"a b": ""}}}}, 'pods.plugin.labels: Invalid value: "a b"'),
        ({"pods": {"plugin": {"labels": {"app.kubernetes.io/name": "x"}}}}, "this label selects the driver's pods"),
        (
            {"pods": {"all": {"env": [{"name": "X"}, {"name": "NODE_NAME", "value": "x"}]}}},
            "pods.all.env[1].name: NODE_NAME is set by the manifests",
        ),
        ({"pods": {"plugin": {"env": [{"name": "X", "value": 1}]}}}, "pods.plugin.env[0].value: 1 in place of text"),
        ({"pods": {"plugin": {"volumes": [{"name": "tmp"}]}}}, 'pods.plugin.volumes[0].name: Duplicate value: "tmp"'),
        (
            {"pods": {"plugin": {"volumeMounts": [{"name": "fw", "mountPath": "/fw"}]}}},
            'pods.plugin.volumeMounts[0].name: Not found: "fw"',
        ),
        ({"pods": {"plugin": {"imagePullPolicy": "always"}}}, "did you mean 'Always'?"),
        (
            {"features": {"nodeLabel": True}, "nodeLabel": "a", "pods": {"all": {"affinity": {}}}},
            "pods.all.affinity: this affinity would replace the affinity of the feature nodeLabel",
        ),
    ],
)
def test_wrong_values_are_reported_and_no_file_is_written(
    changes: JSON, expected: str, tmp_path: Path, dra: Dra
) -> None:
    text = yaml.safe_dump({k: v for k, v in (LEAST | changes).items() if v is not None})
    (tmp_path / "values.yaml").write_text(text.replace(" 1e3", " '1e3'"))  # Kubernetes reads a number, PyYAML a text
    output = dra("deploy", tmp_path, "--kustomize-base", "../x", code=2).err
    assert expected in output
    assert not (tmp_path / "kustomization.yaml").exists()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("name: [", "values.yaml:2:1: not valid YAML: "),
        ("name: a\n\tnamespace: b\n", "values.yaml:2:1: not valid YAML: a tab: YAML is indented with spaces"),
        ("name: a\nname: b\n", "values.yaml:2: the key 'name' was already used in line 1"),
        ("- name\n", "values.yaml:1: not a mapping of names to values"),
        ("name: a\n---\nname: b\n", "values.yaml:3: a second document: put everything into one document"),
        ("", "values.yaml: name: a value is required"),
    ],
)
def test_an_unreadable_file_of_values_is_reported_with_its_line(
    text: str, expected: str, tmp_path: Path, dra: Dra
) -> None:
    (tmp_path / "values.yaml").write_text(text)
    assert expected in dra("deploy", tmp_path, code=2).err


def test_a_wrong_value_is_reported_with_the_file_that_sets_it_last(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST | {"httpPort": 1}))
    (tmp_path / "more.yaml").write_text("# of the cluster\nhttpPort: 0\n")
    assert (
        f"{tmp_path}/more.yaml:2: httpPort: 0 is not a number"
        in dra("deploy", tmp_path, "-f", tmp_path / "more.yaml", code=2).err
    )


def test_a_misspelled_option_of_the_framework_causes_a_warning_and_is_passed_on(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "values.yaml").write_text(
        yaml.safe_dump(LEAST | {"options": {"SHUTDOWN_GRACE_PERIO": "5s", "NPU_MODE": "x"}})
    )
    output = dra("deploy", tmp_path).err
    assert (
        "options.SHUTDOWN_GRACE_PERIO: not an option of the framework, did you mean 'SHUTDOWN_GRACE_PERIOD'?" in output
    )
    assert (
        "options: NPU_MODE, SHUTDOWN_GRACE_PERIO of the driver are not validated: add the driver with --driver"
        in output
    )
    assert "SHUTDOWN_GRACE_PERIO=5s" in (tmp_path / "kustomization.yaml").read_text()


NPU = """
from dataclasses import dataclass
from typing import Literal

from dra_kubeletplugin import Driver


@dataclass(frozen=True)
class NpuOptions:
    npu_mode: Literal["fast", "safe"] = "fast"
    npu_count: int = 1

    def __post_init__(self):
        if self.npu_count > 8:
            raise ValueError(f"npu_count is {self.npu_count}: give 8 at most")


class Npu(Driver):
    name = "npu.example.com"
    options = NpuOptions()
"""


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"NPU_MODE": "fsat"}, "values.yaml:6: options.NPU_MODE: 'fsat' is not one of fast, safe, did you mean 'fast'?"),
        ({"NPU_MOD": "fast"}, "values.yaml:6: options.NPU_MOD: not an option of Npu or of the framework, did you mean 'NPU_MODE'?"),
        ({"SHUTDOWN_GRACE_PERIO": "5s"}, "options.SHUTDOWN_GRACE_PERIO: not an option of Npu or of the framework, did you mean 'SHUTDOWN_GRACE_PERIOD'?"),
        ({"HTTPS_PROXY": "x"}, "options.HTTPS_PROXY: not an option of Npu or of the framework: set variables for other programs in pods.all.env"),
        ({"NPU_COUNT": "9"}, "values.yaml:5: options: the options of Npu: npu_count is 9: give 8 at most"),
        ({"NPU_COUNT": 3}, 'options.NPU_COUNT: 3 is not text: write it in quotes, "3"'),
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["npu/driver.py", "npu/src/npu/driver.py", "other.py"])
def test_the_driver_validates_its_own_options(
    tmp_path: Path, place: str, options: dict[str, object], expected: str, dra: Dra
) -> None:
    driver, values = tmp_path / place, tmp_path / "npu/deploy/values.yaml"
    for path in (driver, values):
        path.parent.mkdir(parents=True, exist_ok=True)
    driver.write_text(NPU)
    arguments = ["--driver", str(driver)] if place == "other.py" else []
    values.write_text(yaml.safe_dump(LEAST | {"options": options}, sort_keys=False))
    assert expected in dra("deploy", values, *arguments, code=2).err
    values.write_text(
        yaml.safe_dump(LEAST | {"options": {"NPU_MODE": "safe", "NPU_COUNT": "", "SHUTDOWN_GRACE_PERIOD": "5s"}})
    )
    assert dra("deploy", values, *arguments).err == ""
    assert "NPU_MODE=safe" in (values.parent / "kustomization.yaml").read_text()


def test_options_of_a_driver_that_cannot_be_imported_are_passed_on_with_a_warning(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "driver.py").write_text("import vendor_library\n")
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST | {"options": {"NPU_MODE": "x"}}))
    output = dra("deploy", tmp_path).err
    assert "the driver of this package cannot be loaded: importing" in output
    assert "No module named 'vendor_library'" in output
    assert "options: NPU_MODE of the driver are not validated" in output
    assert "NPU_MODE=x" in (tmp_path / "kustomization.yaml").read_text()


def test_fields_of_a_pod_that_is_not_deployed_cause_a_warning(tmp_path: Path, dra: Dra) -> None:
    pods = {"controller": {"priorityClassName": "high"}, "webhook": {}, "plugin": {"priorityClassName": "high"}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST | {"pods": pods}))
    output = dra("deploy", tmp_path).err
    assert "pods.controller: features.controller is off, so there is no such pod" in output
    assert "pods.webhook" not in output and "pods.plugin" not in output


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_typo_in_a_field_of_a_pod_is_reported_with_the_intended_field(data: st.DataObject) -> None:
    word, pod = (
        data.draw(st.sampled_from([*FIELDS])),
        data.draw(st.sampled_from(["all", "plugin", "controller", "webhook"])),
    )
    at, letter = data.draw(st.integers(0, len(word) - 1)), data.draw(st.sampled_from("aeixz"))
    typo = data.draw(st.sampled_from([word[:at] + word[at + 1 :], word[:at] + letter + word[at:]]))
    assume(typo not in FIELDS)
    (message,) = value_errors(SOURCE, LEAST | {"pods": {pod: {typo: FIELDS[word]}}})
    assert str(message) == f"pods.{pod}.{typo}: no such field, did you mean '{word}'?"


def test_a_device_class_with_a_misspelled_driver_name_causes_a_warning(tmp_path: Path, dra: Dra) -> None:
    classes = {"npu": {"selectors": [{"cel": {"expression": 'device.driver == "npu.exmple.com"'}}]}}
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST | {"deviceClasses": classes}))
    printed = dra("deploy", tmp_path)
    expected = "deviceClasses.npu.selectors[0].cel.expression: 'npu.exmple.com' is not driverName, did you mean 'npu.example.com'?"
    assert expected in printed.err


def test_an_absolute_kustomize_base_is_refused_with_the_relative_path(tmp_path: Path, dra: Dra) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(LEAST))
    assert (
        f"use shared/kustomize, which is relative to {tmp_path}"
        in dra("deploy", tmp_path, "--kustomize-base", tmp_path / "shared/kustomize", code=2).err
    )


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_a_typo_in_a_value_or_feature_is_reported_with_the_intended_name(data: st.DataObject) -> None:
    word = data.draw(st.sampled_from([*SOURCE.parameters, *SOURCE.features]))
    at, letter = data.draw(st.integers(0, len(word) - 1)), data.draw(st.sampled_from("aeixz"))
    typo = data.draw(
        st.sampled_from(
            [word[:at] + word[at + 1 :], word[:at] + letter + word[at + 1 :], word[:at] + letter + word[at:]]
        )
    )
    known = (
        SOURCE.features
        if word in SOURCE.features
        else {**SOURCE.parameters, "features": 1, "options": 1, "deviceClasses": 1, "pods": 1}
    )
    assume(typo not in known)
    driver_values = with_features(*ALL)
    if word in SOURCE.features:
        driver_values["features"][typo] = True
    else:
        driver_values[typo] = driver_values.pop(word, "x")
    messages = [str(e) for e in value_errors(SOURCE, driver_values) if f"{typo}: no such" in str(e)]
    assert len(messages) == 1 and f"did you mean '{word}'?" in messages[0], messages


@pytest.mark.cases(8)
@pytest.mark.helm
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logLevel": "inof"}, "'debug', 'info', 'warning', 'error'"),
        ({"httpPort": "8080"}, "/httpPort': got string, want integer"),
        ({"deviceClasses": {"a": {"selector": []}}}, "additional properties 'selector' not allowed"),
        ({"deviceClasses": {"a": {"selectors": [{"cel": {"expression": 1}}]}}}, "want null or string"),
        ({"driverName": ""}, "driverName: Name of the driver"),
        ({"driverName": "NPU"}, "match pattern"),
        ({"driverName": "a." * 32 + "a"}, "maxLength"),
        ({"features": {"probe": True}}, "probe"),
        ({"features": None}, "missing property 'features'"),
        ({"features": {"probes": None}}, "missing property 'probes'"),
        ({"features": {"nodeLabel": True}}, "nodeLabel: With the feature nodeLabel"),
        ({"features": {"hostNetwork": True}}, "would serve probes on one port"),
        (
            {"features": {"webhook": True}},
            "the API server does not trust the webhook's certificate: switch certManager on",
        ),
        ({"features": {"certManager": True}}, "certManager needs the feature webhook: switch webhook on"),
        ({"features": {"webhook": True, "webhookCABundle": True}}, "webhookCABundle: "),
        ({"options": {"COUNT": 8}}, "string"),
        ({"options": {"NODE_NAME": "n"}}, "NODE_NAME"),
        ({"pods": {"node": {}}}, "additional properties 'node' not allowed"),
        ({"pods": {"plugin": {"toleration": []}}}, "additional properties 'toleration' not allowed"),
        ({"pods": {"plugin": {"resources": {"limit": {}}}}}, "additional properties 'limit' not allowed"),
        ({"pods": {"plugin": {"nodeSelector": {"a": True}}}}, "want null or string"),
        ({"pods": {"all": {"labels": {"app.kubernetes.io/name": "x"}}}}, "app.kubernetes.io/name"),
        ({"pods": {"all": {"env": [{"name": "X"}, {"name": "NODE_NAME", "value": "x"}]}}}, "/pods/all/env/1/name"),
        (
            {"features": {"nodeLabel": True}, "nodeLabel": "a", "pods": {"all": {"affinity": {}}}},
            "of the feature nodeLabel",
        ),
    ],
)
def test_helm_refuses_wrong_values(changes: JSON, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(LEAST | changes))
    done = subprocess.run(
        ["helm", "template", "x", str(CHART), "-f", str(path)], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode != 0
    assert expected in done.stderr


@pytest.mark.helm
def test_the_chart_passes_helm_lint() -> None:
    values = ROOT / "drivers/pci/deploy/values.yaml"
    done = subprocess.run(
        ["helm", "lint", "--strict", str(CHART), "-f", str(values)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- rendering ----------------------------------------------------------------------------------------


TEMPLATES = """{{- include "x" . }}
{{- define "dra.plugin" }}
kind: DaemonSet
spec:
  {{- if .Values.features.probes }}
  port: {{ .Values.httpPort }}
  {{- else }}
  port: none
  {{- end }}
{{- end }}
---
kind: Role
name: {{ include "dra.name" . }}-{{ .Values.logLevel }}
namespace: {{ .Release.Namespace | quote }}
{{- if .Values.features.events }}
---
{{- include "dra.workload" (list . "plugin") }}
{{- end }}
"""


def test_the_source_reader_renders_a_template_like_helm() -> None:
    role, workload = source_reader.parse_manifests(TEMPLATES)
    assert (role.feature, role.features, workload.feature, workload.features) == ("", set(), "events", {"probes"})
    values = {"name": "n", "namespace": "1", "httpPort": 8080, "logLevel": "info"}
    assert role.render(set(), values) == {"kind": "Role", "name": "n-info", "namespace": "1"}
    assert workload.render(set(), values) == {"kind": "DaemonSet", "spec": {"port": "none"}}
    assert workload.render({"probes"}, values) == {"kind": "DaemonSet", "spec": {"port": 8080}}


def test_a_condition_that_kustomize_cannot_express_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"source_reader\.py cannot read '\{\{- if eq \.Values\.logLevel \"info\" \}\}'"
    ):
        list(source_reader.parse_manifests('---\n{{- if eq .Values.logLevel "info" }}\na: 1\n{{- end }}\n'))


def test_templates_use_only_declared_features_and_parameters() -> None:
    values = dict.fromkeys(SOURCE.parameters, "1")
    for manifest in SOURCE.all:
        assert {manifest.feature, *manifest.features} <= {"", *SOURCE.features}
        for on in ({*SOURCE.features}, set[str]()):
            assert manifest.render(on, values)["kind"] == manifest.kind


def test_a_parameter_that_kustomize_cannot_replace_is_refused() -> None:
    with pytest.raises(ValueError, match=r"spec\.x: none of the characters"):
        list(places({"spec": {"x": "a${name}b"}}))


def test_a_patch_of_a_list_without_names_is_refused() -> None:
    with pytest.raises(ValueError, match="items have no names"):
        merge_patch({"rules": [1]}, {"rules": [2]})


def test_a_patch_adds_changes_and_removes_by_name() -> None:
    before = {"a": 1, "b": 2, "env": [{"name": "X", "value": "1"}, {"name": "Y"}]}
    after = {"a": 3, "env": [{"name": "X", "value": "2"}, {"name": "Z"}]}
    assert merge_patch(before, after) == {
        "a": 3,
        "b": None,
        "env": [{"name": "Y", "$patch": "delete"}, {"name": "X", "value": "2"}, {"name": "Z"}],
    }
