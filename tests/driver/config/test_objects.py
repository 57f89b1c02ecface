"""The parameters in claims, templates and classes are validated before anything is allocated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from dra_kubeletplugin import Config
from dra_kubeletplugin.base.json_types import JSON
from dra_kubeletplugin.cli import main
from dra_kubeletplugin.driver.config.objects import ConfigReader, config_faults
from dra_kubeletplugin.resourceapi.conversion import convert

DRIVER = "acme.example.com"


class Acme(Config):
    KIND, API_VERSION = "Acme", "acme.example.com/v1"
    mode: str
    speed: int = 1


READERS = [ConfigReader(DRIVER, [Acme])]


def entry(fields: Any, driver: str = DRIVER) -> JSON:
    return {"opaque": {"driver": driver, "parameters": fields}}


def device_class(*entries: JSON) -> JSON:
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": "acme"},
        "spec": {"config": [*entries]},
    }


def claim(*entries: JSON, kind: str = "ResourceClaim") -> JSON:
    spec: JSON = {
        "devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "acme"}}], "config": [*entries]}
    }
    if kind == "ResourceClaimTemplate":
        spec = {"spec": spec}
    return {"apiVersion": "resource.k8s.io/v1", "kind": kind, "metadata": {"name": "c"}, "spec": spec}


@pytest.mark.parametrize("version", ["v1", "v1beta2", "v1beta1"])
def test_each_entry_of_a_claim_a_template_and_a_class_is_validated_with_its_path(version: str) -> None:
    entries = [entry({"mode": "a"}), entry({"speed": "x"})]
    for obj, at in (
        (claim(*entries), "spec.devices"),
        (claim(*entries, kind="ResourceClaimTemplate"), "spec.spec.devices"),
        (device_class(*entries), "spec"),
    ):
        where = f"{at}.config[1].opaque: parameters"
        assert config_faults(convert(obj, version), READERS) == [
            f"{where}.speed: Expected `int`, got `str`",
            f"{where}: missing required field 'mode'",
        ]


def test_entries_of_other_drivers_are_not_validated() -> None:
    others = claim(entry({"x": 1}, "other.example.com"), entry({"x": 1}, "acme.example.con"))
    assert config_faults(others, READERS) == []


@pytest.mark.parametrize("malformed", [None, 7, "x", [], [7], {}, {"config": 7}, {"config": [{"opaque": 7}]}])
def test_malformed_objects_are_not_reported_because_the_server_rejects_them(malformed: Any) -> None:
    for wrong in (
        {"kind": "ResourceClaim", "metadata": malformed, "spec": malformed},
        {"kind": "ResourceClaimTemplate", "spec": {"spec": {"devices": malformed}}},
        {"kind": "ResourceClaim", "spec": {"devices": {"config": [malformed, {"opaque": malformed}]}}},
        {"kind": malformed},
    ):
        assert config_faults(wrong, READERS) == []


SOURCE = """
from dra_kubeletplugin import Config, Driver

class AcmeConfig(Config):
    KIND, API_VERSION = "Acme", "acme.example.com/v1"
    mode: str

class Acme(Driver):
    name = "acme.example.com"
    config = AcmeConfig

    def devices(self):
        return []

    def prepare(self, claim):
        return []
"""


def test_dra_simulate_notes_parameters_that_prepare_would_refuse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {
            "containers": [{"name": "c", "image": "i"}],
            "resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
        },
    }
    (tmp_path / "driver.py").write_text(SOURCE)
    (tmp_path / "objects.yaml").write_text(yaml.safe_dump_all([pod, claim(entry({})), device_class()]))
    (tmp_path / "host.yaml").write_text("functions: []\n")
    main(["simulate", "-f", "objects.yaml", "--host", "host.yaml", "--driver", "driver.py"])
    assert (
        "note: ResourceClaim c: spec.devices.config[0].opaque: parameters: missing required field 'mode': "
        "a pod that uses it would be scheduled, but fail at prepare"
    ) in capsys.readouterr().out
