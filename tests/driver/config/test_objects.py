"""The merged parameters of a claim and its class are validated if both objects are known. Errors name both objects."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin import Config
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver.config.objects import ConfigReader, config_faults, faults_with_classes
from dra_kubeletplugin.resourceapi.conversion import convert

DRIVER = "acme.example.com"


class Sizes(Config):
    low: int = 0
    high: int = 10

    def check(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Acme(Config):
    KIND, API_VERSION, LAYERED = "Acme", "acme.example.com/v1", True
    mode: str
    burst: bool = False
    speed: int = 1
    sizes: Sizes = Sizes()

    def check(self) -> None:
        if self.burst and self.speed < 2:
            raise ValueError("burst needs speed 2 or more")


class Plain(Config):
    KIND = "Plain"
    API_VERSION = "plain.example.com/v1"
    mode: str = ""


READERS = [ConfigReader(DRIVER, [Acme]), ConfigReader("plain.example.com", [Plain])]


def entry(fields: JSON, *requests: str, driver: str = DRIVER) -> JSON:
    return {**({"requests": [*requests]} if requests else {}), "opaque": {"driver": driver, "parameters": fields}}


def device_class(*entries: JSON, name: str = "acme") -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": name},
        "spec": {"config": [*entries]},
    }


def claim(*entries: JSON, kind: str = "ResourceClaim", **requests: str) -> JSON:
    """Returns a claim. ``requests`` maps the name of a request to its class, or to several classes, separated by spaces, as alternatives."""
    request_list: list[JSON] = []
    for name, classes in (requests or {"r": "acme"}).items():
        first, *others = classes.split()
        if others:
            several = [{"name": f"s{i}", "deviceClassName": c} for i, c in enumerate((first, *others))]
            request_list.append({"name": name, "firstAvailable": several})
        else:
            request_list.append({"name": name, "exactly": {"deviceClassName": first}})
    spec: JSON = {"devices": {"requests": request_list, "config": [*entries]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}, "spec": spec}


def faults(obj: JSON, *classes: JSON) -> list[str]:
    return faults_with_classes(obj, {c["metadata"]["name"]: c for c in classes}, READERS)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_fault_of_merged_parameters_names_the_object_of_each_field(kind: str, version: str) -> None:
    of_class = device_class(entry({"mode": "a", "speed": 1}))
    of_claim = claim(entry({"burst": True}), kind=kind)
    at = "spec.spec.devices" if kind == "ResourceClaimTemplate" else "spec.devices"
    assert faults(convert(of_claim, version), convert(of_class, version)) == [
        f"{at}.config[0].opaque: parameters: burst needs speed 2 or more "
        f"(mode, speed from DeviceClass acme config[0]; burst from {kind} c config[0])"
    ]
    assert faults(of_claim, device_class(entry({"mode": "a", "speed": 2}))) == []


@pytest.mark.parametrize(
    ("of_class", "of_claim", "expected"),
    [
        ([{"speed": 3}], [{"burst": True}],
         ["spec.devices.config[0].opaque: parameters: missing required field 'mode' (not set by any of DeviceClass acme config[0], ResourceClaim c config[0])"]),
        ([], [{"burst": False}], ["spec.devices.config[0].opaque: ResourceClaim c config[0]: parameters: missing required field 'mode'"]),
        ([{"speed": 3}], [], ["spec.devices.requests[0]: DeviceClass acme config[0]: parameters: missing required field 'mode'"]),
        ([{"mode": "a", "sizes": {"low": 5}}], [{"sizes": {"high": 4}}],
         ["spec.devices.config[0].opaque: parameters.sizes: low is above high (low from DeviceClass acme config[0]; high from ResourceClaim c config[0])"]),
        ([{"mode": "a", "sizes": {"low": 5, "high": 4}}], [{"speed": 4}],
         ["spec.devices.config[0].opaque: parameters.sizes: low is above high (from DeviceClass acme config[0])"]),
        ([{"mode": "a", "speed": 1}, {"burst": True}], [{"mode": "b", "sizes": {"low": 11}}],
         ["spec.devices.config[0].opaque: parameters.sizes: low is above high (from ResourceClaim c config[0])"]),
        ([{"mode": "a"}], [{"mode": None}],
         ["spec.devices.config[0].opaque: parameters: missing required field 'mode' (not set by any of DeviceClass acme config[0], ResourceClaim c config[0])"]),
    ],
)  # fmt: skip
def test_missing_or_contradicting_fields_of_merged_parameters_are_reported(
    of_class: list[JSON], of_claim: list[JSON], expected: list[str]
) -> None:
    assert faults(claim(*map(entry, of_claim)), device_class(*map(entry, of_class))) == expected


def test_missing_fields_are_not_reported_if_only_one_object_is_known() -> None:
    incomplete = entry({"burst": True})
    assert faults(claim(incomplete)) == []
    assert faults(claim(incomplete, r="other"), device_class(entry({"speed": 0}))) == []
    assert config_faults(claim(incomplete), READERS) == config_faults(device_class(incomplete), READERS) == []


def test_a_fault_of_one_object_alone_is_not_reported_for_the_merged_parameters() -> None:
    wrong = entry({"sped": 1})
    assert faults(claim(wrong), device_class(entry({"mode": "a"}))) == []
    assert faults(claim(entry({"burst": True})), device_class(wrong)) == []


def test_each_request_is_validated_with_its_own_class_and_reported_once() -> None:
    slow, fast = device_class(entry({"mode": "a"})), device_class(entry({"mode": "a", "speed": 2}), name="fast")
    assert len(faults(claim(entry({"burst": True}), a="acme", b="fast"), slow, fast)) == 1
    assert faults(claim(entry({"burst": True}, "b"), a="acme", b="fast"), slow, fast) == []
    assert len(faults(claim(entry({"burst": True}), a="acme", b="acme"), slow)) == 1
    assert len(faults(claim(entry({"burst": True}, "a"), a="fast acme"), slow, fast)) == 1
    assert faults(claim(entry({"burst": True}, "a/s0"), a="fast acme"), slow, fast) == []
    assert len(faults(claim(entry({"burst": True}, "a/s1"), a="fast acme"), slow, fast)) == 1


def test_an_entry_for_all_requests_is_not_merged_with_another_driver_s_class() -> None:
    acme, plain = device_class(entry({"mode": "a"})), device_class(entry({}, driver="plain.example.com"), name="plain")
    assert faults(claim(entry({"speed": 3}), a="acme", b="plain"), acme, plain) == []


MALFORMED = [
    None,
    7,
    "x",
    [],
    [7],
    {},
    {"requests": 7},
    {"requests": [{}]},
    {"name": 7, "firstAvailable": [7, {"name": []}]},
]


@pytest.mark.parametrize("malformed", MALFORMED)
def test_malformed_objects_are_not_reported_because_the_server_rejects_them(malformed: Any) -> None:
    for wrong in (
        {"kind": "ResourceClaim", "metadata": malformed, "spec": malformed},
        {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": malformed}}},
        {
            "kind": "ResourceClaim",
            "spec": {"devices": {"requests": [malformed], "config": [malformed, {"requests": malformed, **entry({})}]}},
        },
        {"kind": malformed},
    ):
        assert faults(wrong, device_class(entry({"mode": "a"}))) == []
    unreadable_class = {"kind": "DeviceClass", "metadata": {"name": "acme"}, "spec": malformed}
    assert faults(claim(entry({"burst": True})), unreadable_class) == [
        "spec.devices.config[0].opaque: ResourceClaim c config[0]: parameters: missing required field 'mode'"
    ]


SOURCE = """
from dra_kubeletplugin import Config, Driver

class AcmeConfig(Config):
    KIND, API_VERSION, LAYERED = "Acme", "acme.example.com/v1", True
    mode: str
    burst: bool = False
    speed: int = 1

    def check(self):
        if self.burst and self.speed < 2:
            raise ValueError("burst needs speed 2 or more")

class Acme(Driver):
    name = "acme.example.com"
    config = AcmeConfig

    def devices(self):
        return []

    def prepare(self, claim):
        return []
"""


@pytest.mark.parametrize("in_deploy_folder", [False, True])
def test_dra_validate_merges_a_claim_with_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], in_deploy_folder: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").mkdir()
    (tmp_path / "driver.py").write_text(SOURCE)
    class_file = tmp_path / ("deploy/deviceclass.yaml" if in_deploy_folder else "class.yaml")
    class_file.write_text(yaml.safe_dump(device_class(entry({"speed": 1, "mode": "a"}))))
    (tmp_path / "claim.yaml").write_text(yaml.safe_dump(claim(entry({"burst": True}))))
    files = ["claim.yaml", *(["class.yaml"] if not in_deploy_folder else [])]
    assert main(["validate", *files, "--driver", "driver.py", "-o", "json"]) == 1
    found = {o["object"]: o for o in json.loads(capsys.readouterr().out)["objects"]}
    assert [f["message"] for f in found["ResourceClaim c"]["faults"]] == [
        "spec.devices.config[0].opaque: parameters: burst needs speed 2 or more "
        "(mode, speed from DeviceClass acme config[0]; burst from ResourceClaim c config[0])"
    ]
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        },
    }
    (tmp_path / "pod.yaml").write_text(yaml.safe_dump(pod))
    (tmp_path / "host.yaml").write_text("functions: []\n")
    arguments = ["-f", "pod.yaml", *(arg for file in files for arg in ("-f", file))]
    main(["simulate", *arguments, "--host", "host.yaml", "--driver", "driver.py"])
    assert (
        "note: ResourceClaim c: spec.devices.config[0].opaque: parameters: burst needs speed 2 or more (mode, speed from DeviceClass acme "
        "config[0]; burst from ResourceClaim c config[0]): a pod that uses it would be scheduled, but fail at prepare"
    ) in capsys.readouterr().out
    class_file.unlink()
    assert main(["validate", "claim.yaml", "--driver", "driver.py"]) == 0
