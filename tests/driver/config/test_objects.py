"""What a claim's parameters and its class's come to together is judged wherever both are at hand, and errors name the two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin import Config
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver.config.objects import ConfigReader, config_faults, faults_with_classes
from dra_kubeletplugin.resourceapi.conversion import convert

DRIVER = "acme.example.com"
JSON = dict[str, Any]


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
    """``requests``: the class of each by its name; of alternatives, with spaces between them."""
    asked: list[JSON] = []
    for name, classes in (requests or {"r": "acme"}).items():
        first, *others = classes.split()
        if others:
            several = [{"name": f"s{i}", "deviceClassName": c} for i, c in enumerate((first, *others))]
            asked.append({"name": name, "firstAvailable": several})
        else:
            asked.append({"name": name, "exactly": {"deviceClassName": first}})
    spec: JSON = {"devices": {"requests": asked, "config": [*entries]}}
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}, "spec": spec}


def told(obj: JSON, *classes: JSON) -> list[str]:
    return faults_with_classes(obj, {c["metadata"]["name"]: c for c in classes}, READERS)


@pytest.mark.parametrize("kind", ["ResourceClaim", "ResourceClaimTemplate"])
@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_a_check_of_the_two_together_names_which_of_them_gave_what(kind: str, version: str) -> None:
    gives = device_class(entry({"mode": "a", "speed": 1}))
    wants = claim(entry({"burst": True}), kind=kind)
    at = "spec.spec.devices" if kind == "ResourceClaimTemplate" else "spec.devices"
    assert told(convert(wants, version), convert(gives, version)) == [
        f"{at}.config[0].opaque: parameters: burst needs speed 2 or more "
        f"(mode, speed from DeviceClass acme config[0]; burst from {kind} c config[0])"
    ]
    assert told(wants, device_class(entry({"mode": "a", "speed": 2}))) == []


@pytest.mark.parametrize(
    ("of_class", "of_claim", "says"),
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
def test_what_is_missing_or_cannot_be_together_is_reported(
    of_class: list[JSON], of_claim: list[JSON], says: list[str]
) -> None:
    assert told(claim(*map(entry, of_claim)), device_class(*map(entry, of_class))) == says


def test_where_only_one_is_at_hand_nothing_is_reported_of_what_is_missing() -> None:
    half = entry({"burst": True})
    assert told(claim(half)) == []
    assert told(claim(half, r="other"), device_class(entry({"speed": 0}))) == []
    assert config_faults(claim(half), READERS) == config_faults(device_class(half), READERS) == []


def test_what_is_wrong_with_one_of_the_two_alone_is_reported_once() -> None:
    wrong = entry({"sped": 1})
    assert told(claim(wrong), device_class(entry({"mode": "a"}))) == []
    assert told(claim(entry({"burst": True})), device_class(wrong)) == []


def test_requests_are_judged_each_with_its_own_class_and_reported_once() -> None:
    slow, fast = device_class(entry({"mode": "a"})), device_class(entry({"mode": "a", "speed": 2}), name="fast")
    assert len(told(claim(entry({"burst": True}), a="acme", b="fast"), slow, fast)) == 1
    assert told(claim(entry({"burst": True}, "b"), a="acme", b="fast"), slow, fast) == []
    assert len(told(claim(entry({"burst": True}), a="acme", b="acme"), slow)) == 1
    assert len(told(claim(entry({"burst": True}, "a"), a="fast acme"), slow, fast)) == 1
    assert told(claim(entry({"burst": True}, "a/s0"), a="fast acme"), slow, fast) == []
    assert len(told(claim(entry({"burst": True}, "a/s1"), a="fast acme"), slow, fast)) == 1


def test_an_entry_for_all_requests_is_not_held_against_another_driver_s_class() -> None:
    acme, plain = device_class(entry({"mode": "a"})), device_class(entry({}, driver="plain.example.com"), name="plain")
    assert told(claim(entry({"speed": 3}), a="acme", b="plain"), acme, plain) == []


ODD = [None, 7, "x", [], [7], {}, {"requests": 7}, {"requests": [{}]}, {"name": 7, "firstAvailable": [7, {"name": []}]}]


@pytest.mark.parametrize("odd", ODD)
def test_malformed_shapes_are_left_to_the_server(odd: Any) -> None:
    for wrong in (
        {"kind": "ResourceClaim", "metadata": odd, "spec": odd},
        {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": odd}}},
        {
            "kind": "ResourceClaim",
            "spec": {"devices": {"requests": [odd], "config": [odd, {"requests": odd, **entry({})}]}},
        },
        {"kind": odd},
    ):
        assert told(wrong, device_class(entry({"mode": "a"}))) == []
        assert told(
            claim(entry({"burst": True})), {"kind": "DeviceClass", "metadata": {"name": "acme"}, "spec": odd}
        ) != [""]


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


@pytest.mark.parametrize("beside", [False, True])
def test_dra_validate_judges_a_claim_with_its_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], beside: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deploy").mkdir()
    (tmp_path / "driver.py").write_text(SOURCE)
    given = tmp_path / ("deploy/deviceclass.yaml" if beside else "class.yaml")
    given.write_text(yaml.safe_dump(device_class(entry({"speed": 1, "mode": "a"}))))
    (tmp_path / "claim.yaml").write_text(yaml.safe_dump(claim(entry({"burst": True}))))
    files = ["claim.yaml", *(["class.yaml"] if not beside else [])]
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
    given_to = ["-f", "pod.yaml", *(arg for file in files for arg in ("-f", file))]
    main(["simulate", *given_to, "--host", "host.yaml", "--driver", "driver.py"])
    assert (
        "note: ResourceClaim c: spec.devices.config[0].opaque: parameters: burst needs speed 2 or more (mode, speed from DeviceClass acme "
        "config[0]; burst from ResourceClaim c config[0]): a pod that uses it would be scheduled, but fail at prepare"
    ) in capsys.readouterr().out
    given.unlink()
    assert main(["validate", "claim.yaml", "--driver", "driver.py"]) == 0
