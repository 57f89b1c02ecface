"""CDI spec files with values that YAML and Go read in their own ways."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.cdi.cache import CdiCache
from dra_devkit.cdi.reader import read_spec
from dra_devkit.cdi.spec_validation import minimum_version
from dra_kubeletplugin.base.json_types import JSON


def spec(**fields: Any) -> JSON:
    device = {"name": "d0", "containerEdits": {"env": ["A=1"]}}
    return {"cdiVersion": "1.0.0", "kind": "vendor.com/gpu", "devices": [device], **fields}


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("uid:a.b", "uid:a.b"),
        ("0:1.5", "0:1.5"),
        ("1.10", "1.1"),
        ("1.0", "1"),
        (".5", "0.5"),
        ("0.00001", "1e-05"),
        ("123456.5", "123456.5"),
        ("1234567.5", "1.2345675e+06"),
        ("1000000", "1000000"),
        ("0x10", "16"),
        ("yes", "true"),
        ("2024-01-01", "2024-01-01"),
    ],
)
def test_an_unquoted_name_in_yaml_becomes_the_text_that_go_makes_of_it(written: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / "v.yaml"
    file.write_text(
        f"cdiVersion: 1.0.0\nkind: vendor.com/gpu\ndevices:\n- name: {written}\n  containerEdits:\n    env: [A=1]\n"
    )
    assert read_spec(file)["devices"][0]["name"] == name


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"cdiVersion": None}, 'invalid version ""'),
        ({"kind": None}, "invalid vendor. empty name"),
        ({"devices": None}, "invalid spec, no devices"),
        ({"containerEdits": None, "annotations": None}, ""),
        (
            {"devices": [{"name": None, "containerEdits": {"env": ["A=1"]}}]},
            'failed add device "": invalid (empty) device name',
        ),
        (
            {"devices": [{"name": "d0", "containerEdits": None}]},
            'failed add device "d0": invalid device, empty device edits',
        ),
        ({"containerEdits": {"env": [None]}}, 'invalid container edits: invalid environment variable ""'),
        ({"containerEdits": {"mounts": [{"hostPath": None}]}}, "invalid mount, empty host path"),
        ({"containerEdits": {"deviceNodes": [{"path": None, "type": None}]}}, "invalid (empty) device path"),
        ({"containerEdits": {"hooks": [{"hookName": None}]}}, 'invalid hook name ""'),
        ({"containerEdits": {"intelRdt": None, "additionalGids": None}}, ""),
    ],
)
def test_a_field_without_a_value_is_absent(fields: JSON, fault: str, tmp_path: Path) -> None:
    """One such file must not hide the devices of the other files."""
    (tmp_path / "a.json").write_text(json.dumps(spec(**fields)))
    (tmp_path / "b.json").write_text(json.dumps(spec(kind="other.com/gpu")))
    cache = CdiCache([tmp_path])
    expected = {str(tmp_path / "a.json"): [f"failed to load CDI Spec invalid CDI Spec: {fault}"]} if fault else {}
    assert cache.errors == expected
    assert cache.listed == ["other.com/gpu=d0", *([] if fault else ["vendor.com/gpu=d0"])]


@pytest.mark.parametrize(
    ("kind", "version"), [("vendor/gpu.x", "0.6.0"), ("/gpu.x", "0.3.0"), ("vendor", "0.3.0"), ("ven.dor/gpu", "0.3.0")]
)
def test_a_class_with_a_dot_needs_a_newer_version_only_beside_a_vendor(kind: str, version: str) -> None:
    assert minimum_version(spec(kind=kind)) == version
