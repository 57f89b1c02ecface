"""Tests that wrong values are reported with their place, by ``dra deploy`` and by Helm."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dra_devkit.packaging.manifests.values_validation import value_errors
from dra_kubeletplugin.base.json_types import JSON
from packages.devkit.tests.command_runner import Dra
from packages.devkit.tests.packaging.manifests.rendering import (
    ALL,
    CHART,
    FIELDS,
    LEAST,
    ROOT,
    SOURCE,
    with_features,
)


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
        ({"options": {"NODE_NAME": "n"}}, "options.NODE_NAME: the manifests set this variable: see the values name,"),
        (
            {"options": {"LOG_LEVEL": "debug"}},
            "options.LOG_LEVEL: the manifests set this variable: set the value logLevel",
        ),
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
