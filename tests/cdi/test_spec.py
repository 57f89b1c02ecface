"""Each rule of a CDI spec: the rejected values with the Go library's message, and similar values that are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dra_devkit.cdi.spec_validation import minimum_version, spec_faults
from dra_kubeletplugin.cdi import ClaimSpecs, ContainerEdits, NetDevice
from dra_kubeletplugin.cdi.spec import (
    LAST_WITH,
    SINCE,
    VERSIONS,
    version_to_declare,
)
from dra_kubeletplugin.errors import InvalidSpecError

NEWEST = "1.1.0"
ENV = {"env": ["A=1"]}


def spec(edits: Any = None, **more: Any) -> dict[str, Any]:
    return {
        "cdiVersion": NEWEST,
        "kind": "v.com/class",
        "devices": [{"name": "d", "containerEdits": edits or ENV}],
    } | more


def device(name: str = "d", edits: Any = None, **more: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits or ENV} | more


# --- versions of fields -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("expected", "fields"),
    [
        ("0.3.0", {}),
        ("0.3.0", {"annotations": {}}),
        ("0.3.0", {"devices": None, "containerEdits": None}),
        ("0.3.0", {"devices": [device("")]}),
        ("0.3.0", {"devices": [device(annotations={})]}),
        ("0.3.0", {"kind": "v.com/class-a"}),
        ("0.4.0", {"containerEdits": {"mounts": [{"hostPath": "/a"}, {"type": "bind"}]}}),
        ("0.3.0", {"containerEdits": {"mounts": [{"hostPath": "/a", "type": ""}]}}),
        ("0.5.0", {"containerEdits": {"deviceNodes": [{"path": "/a"}, {"path": "/a", "hostPath": "/b"}]}}),
        ("0.3.0", {"containerEdits": {"deviceNodes": [{"path": "/a", "hostPath": ""}]}}),
        ("0.5.0", {"devices": [device("a"), device("1a")]}),
        ("0.3.0", {"devices": [device("a1")]}),
        ("0.6.0", {"kind": "v.com/class.a"}),
        ("0.6.0", {"annotations": {"a": "b"}}),
        ("0.6.0", {"devices": [device(), device("e", annotations={"a": "b"})]}),
        ("0.7.0", {"containerEdits": {"intelRdt": {}}}),
        ("0.7.0", {"containerEdits": {"intelRdt": {"closID": "a", "enableCMT": True}}}),
        ("1.1.0", {"containerEdits": {"intelRdt": {"schemata": ["a"]}}}),
        ("1.1.0", {"containerEdits": {"intelRdt": {"enableMonitoring": True}}}),
        ("1.1.0", {"containerEdits": {"intelRdt": {"enableMonitoring": False, "schemata": []}}}),
        ("0.7.0", {"containerEdits": {"additionalGids": [1]}}),
        ("0.3.0", {"containerEdits": {"additionalGids": [], "netDevices": []}}),
        ("1.1.0", {"containerEdits": {"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}}),
        ("1.1.0", {"devices": [device(edits={"netDevices": [{"hostInterfaceName": "a", "name": "b"}]}), device("1")]}),
        ("0.7.0", {"devices": [device(edits={"additionalGids": [1]})], "containerEdits": {"mounts": [{"type": "x"}]}}),
    ],
)
def test_the_minimum_version_is_the_version_of_the_newest_field(expected: str, fields: dict[str, Any]) -> None:
    assert minimum_version(spec() | fields) == expected


@pytest.mark.parametrize("prefix", ["", "v"])
def test_a_spec_may_declare_the_minimum_version_but_no_lower_version(prefix: str) -> None:
    fields = {"containerEdits": {"additionalGids": [1]}}
    assert spec_faults(spec(cdiVersion=f"{prefix}0.7.0", **fields)) == ""
    assert spec_faults(spec(cdiVersion=f"{prefix}0.6.0", **fields)) == "the spec version must be at least v0.7.0"
    assert spec_faults(spec(cdiVersion=f"{prefix}1.0.0", **fields)) == ""


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_versions_before_0_3_0_are_too_old_for_every_spec(version: str) -> None:
    assert spec_faults(spec(cdiVersion=version)) == "the spec version must be at least v0.3.0"


# --- whole specs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, ""),
        ({"cdiVersion": "1.2.0"}, 'invalid version "1.2.0"'),
        ({"devices": []}, "invalid spec, no devices"),
        ({"devices": None}, "invalid spec, no devices"),
        ({"devices": [device(), device("e")]}, ""),
        ({"devices": [device(), device("e"), device()]}, 'invalid spec, multiple device "d"'),
        ({"devices": [{"name": "d"}]}, 'failed add device "d": invalid device, empty device edits'),
        ({"devices": [{"name": "d", "containerEdits": {"env": [], "mounts": None}}]}, 'failed add device "d": invalid device, empty device edits'),
        ({"devices": [{"name": "d", "containerEdits": {"env": [], "additionalGids": [0]}}]}, ""),
        ({"devices": [{"name": "d", "containerEdits": {"intelRdt": {}}}]}, ""),
        ({"devices": [device(edits={"env": ["A"]})]}, 'failed add device "d": invalid device "d": invalid container edits: invalid environment variable "A"'),
        ({"containerEdits": {"env": ["A"]}}, 'invalid container edits: invalid environment variable "A"'),
        ({"containerEdits": None}, ""),
    ],
)  # fmt: skip
def test_a_spec_with_these_fields_is_valid_or_has_the_fault(fields: dict[str, Any], message: str) -> None:
    assert spec_faults(spec() | fields) == message


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("a/b", ""),
        ("Z9/z0", ""),
        ("a_.-9/b_.-Z", ""),
        ("", "invalid vendor. empty name"),
        ("ab", "invalid vendor. empty name"),
        ("/b", "invalid vendor. empty name"),
        ("a/", "invalid vendor. empty name"),
        ("1a/b", 'invalid vendor. "1a", should start with letter'),
        ("äa/b", 'invalid vendor. "äa", should start with letter'),
        ("a/_b", 'invalid class. "_b", should start with letter'),
        ("a!b/b", "invalid vendor. invalid character '!' in name \"a!b\""),
        ("aöb/b", "invalid vendor. invalid character 'ö' in name \"aöb\""),
        ("a/b:c", "invalid class. invalid character ':' in name \"b:c\""),
        ("a/bc:d", "invalid class. invalid character ':' in name \"bc:d\""),
        ("a/b!", 'invalid class. "b!", should end with a letter or digit'),
        ("aä/b", 'invalid vendor. "aä", should end with a letter or digit'),
        ("a-/b", 'invalid vendor. "a-", should end with a letter or digit'),
        ("ab./b", 'invalid vendor. "ab.", should end with a letter or digit'),
    ],
)
def test_a_kind_is_valid_or_has_the_fault(kind: str, message: str) -> None:
    assert spec_faults(spec(kind=kind)) == message


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a", ""),
        ("0", ""),
        ("Z_.:-9", ""),
        ("", "invalid (empty) device name"),
        ("-a", 'invalid class "-a", should start with a letter or digit'),
        ("äa", 'invalid class "äa", should start with a letter or digit'),
        ("a/b", "invalid character '/' in device name \"a/b\""),
        ("aäb", "invalid character 'ä' in device name \"aäb\""),
        ("ab!c", "invalid character '!' in device name \"ab!c\""),
        ("a:", 'invalid name "a:", should end with a letter or digit'),
        ("aä", 'invalid name "aä", should end with a letter or digit'),
        ("ab-", 'invalid name "ab-", should end with a letter or digit'),
        ("a\n", 'invalid name "a\n", should end with a letter or digit'),
    ],
)
def test_a_device_name_is_valid_or_has_the_fault(name: str, message: str) -> None:
    assert spec_faults(spec(devices=[device(name)])) == (message and f'failed add device "{name}": {message}')


# --- edits --------------------------------------------------------------------------------------------------

NET = "invalid linux net device, "


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"env": ["A=", "B=1=2"]}, ""),
        ({"env": ["A=1", "=1"]}, 'invalid container edits: invalid environment variable "=1"'),
        ({"env": [""]}, 'invalid container edits: invalid environment variable ""'),
        ({"deviceNodes": [{"path": "/a"}]}, ""),
        ({"deviceNodes": [{"path": "/a"}, {"path": ""}]}, "invalid (empty) device path"),
        ({"deviceNodes": [{}]}, "invalid (empty) device path"),
        *(({"deviceNodes": [{"path": "/a", "type": t}]}, "") for t in ("", "b", "c", "u", "p")),
        ({"deviceNodes": [{"path": "/a", "type": "d"}]}, 'device "/a": invalid type "d"'),
        *(({"deviceNodes": [{"path": "/a", "permissions": p}]}, "") for p in ("", "rwm", "m")),
        ({"deviceNodes": [{"path": "/a", "permissions": "rx"}]}, 'device "/a": invalid permissions "rx"'),
        ({"mounts": [{"hostPath": "a", "containerPath": "b"}]}, ""),
        ({"mounts": [{"hostPath": "", "containerPath": "b"}]}, "invalid mount, empty host path"),
        ({"mounts": [{"hostPath": "a"}]}, "invalid mount, empty container path"),
        *(({"hooks": [{"hookName": n, "path": "p", "env": ["A=1"]}]}, "") for n in ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")),
        ({"hooks": [{"hookName": "start", "path": "p"}]}, 'invalid hook name "start"'),
        ({"hooks": [{"path": "p"}]}, 'invalid hook name ""'),
        ({"hooks": [{"hookName": "prestart"}]}, 'invalid hook "prestart" with empty path'),
        ({"hooks": [{"hookName": "prestart", "path": "p", "env": ["A"]}]}, 'invalid hook "prestart": invalid environment variable "A"'),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "b", "name": "a"}]}, ""),
        ({"netDevices": [{"name": "b"}]}, NET + "empty HostInterfaceName"),
        ({"netDevices": [{"hostInterfaceName": "b"}]}, NET + "empty Name"),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "a", "name": "c"}]}, NET + 'duplicate HostInterfaceName "a" with names "c" and "b"'),
        ({"netDevices": [{"hostInterfaceName": "a", "name": "b"}, {"hostInterfaceName": "c", "name": "b"}]}, NET + 'duplicate Name "b" with HostInterfaceName "c" and "a"'),
        ({"intelRdt": {"closID": "c" * 4095}}, ""),
        *(({"intelRdt": {"closID": c}}, "invalid ClosID") for c in ("c" * 4096, "c" * 5000, ".", "..", "a/b", "a\n")),
        ({"intelRdt": {"closID": "..."}}, ""),
    ],
)  # fmt: skip
def test_container_edits_are_valid_or_have_the_fault(edits: dict[str, Any], message: str) -> None:
    assert spec_faults(spec(containerEdits=edits)) == message
    assert spec_faults(spec(containerEdits=dict.fromkeys(edits))) == ""


# --- types --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "spec must be an object"),
        (spec(devices={}), "spec.devices must be a list"),
        (spec(devices=[None]), "spec.devices[0] is empty"),
        (spec(devices=[device(), []]), "spec.devices[1] must be an object"),
        (spec(kind=1), "spec.kind has the wrong type int"),
        (spec(annotations=[]), "spec.annotations has the wrong type list"),
        (spec(containerEdits={"additionalGids": [1, "2"]}), "spec.containerEdits.additionalGids[1] has the wrong type str"),
        (spec(containerEdits={"additionalGids": [True]}), "spec.containerEdits.additionalGids[0] has the wrong type bool"),
        (spec(containerEdits={"intelRdt": {"enableCMT": 1}}), "spec.containerEdits.intelRdt.enableCMT has the wrong type int"),
        (spec(containerEdits={"env": "A=1"}), "spec.containerEdits.env must be a list"),
    ],
)  # fmt: skip
def test_wrong_types_are_rejected(value: Any, message: str) -> None:
    assert spec_faults(value) == message


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (spec(newer=1), 'unknown field "newer" in spec'),
        (spec(devices=[device(newer=1)]), 'unknown field "newer" in spec.devices[0]'),
        (spec(containerEdits={"newer": 1}), 'unknown field "newer" in spec.containerEdits'),
        (spec(containerEdits={"mounts": [{"newer": 1}]}), 'unknown field "newer" in spec.containerEdits.mounts[0]'),
    ],
)
def test_unknown_fields_are_rejected(value: Any, message: str) -> None:
    assert spec_faults(value) == message


@pytest.mark.parametrize(
    ("field", "minimum", "maximum"),
    [("major", -(2**63), 2**63 - 1), ("uid", 0, 2**32 - 1), ("fileMode", 0, 2**32 - 1), ("gid", 0, 2**32 - 1)],
)
def test_numbers_have_the_ranges_of_the_go_types(field: str, minimum: int, maximum: int) -> None:
    for value in (minimum, 0, 1, maximum):
        assert spec_faults(spec(containerEdits={"deviceNodes": [{"path": "/a", field: value}]})) == ""
    for value in (minimum - 1, maximum + 1):
        message = f"spec.containerEdits.deviceNodes[0].{field} {value} is out of range"
        assert spec_faults(spec(containerEdits={"deviceNodes": [{"path": "/a", field: value}]})) == message


def test_annotations_must_be_text() -> None:
    assert spec_faults(spec(annotations={"a": "b", "c": None})) == ""
    assert spec_faults(spec(annotations={"a": "b", "c": 1})) == "spec.annotations has a value that is not text"


@pytest.mark.parametrize("edits", [{"mounts": [{"type": "bind"}]}, {"deviceNodes": [{"path": "/a", "hostPath": "/b"}]}])
def test_the_declared_version_considers_the_edits_of_every_device(edits: dict[str, Any]) -> None:
    devices = [device("a", edits), device("b")]
    wanted = "0.4.0" if "mounts" in edits else "0.5.0"
    assert (minimum_version(spec(devices=devices)), version_to_declare(spec(devices=devices))) == ("0.3.0", wanted)
    assert minimum_version(spec(devices=devices[::-1])) == wanted
    assert version_to_declare(spec(devices=None)) == "0.3.0"


def test_booleans_and_numbers_are_accepted_for_fields_of_these_types() -> None:
    rdt = {"enableMonitoring": True, "schemata": ["a"], "l3CacheSchema": "b"}
    node = {"path": "/a", "major": 1, "minor": 0, "fileMode": 0o600, "uid": 0, "gid": 5}
    assert spec_faults(spec(containerEdits={"intelRdt": rdt, "deviceNodes": [node], "additionalGids": [0]})) == ""


# --- fields by version -----------------------------------------------------------------------------

DROPPED = [
    {"intelRdt": {"closID": "gold", "enableCMT": True}},
    {"intelRdt": {"closID": "gold", "enableMBM": True}},
    {"intelRdt": {"enableMBM": False}},
    {"intelRdt": {"enableCMT": None}},
]


@pytest.mark.parametrize("of_spec", [True, False])
@pytest.mark.parametrize("edits", DROPPED)
def test_a_dropped_field_is_accepted_until_its_last_version(edits: dict[str, Any], of_spec: bool) -> None:
    more = {"containerEdits": edits} if of_spec else {"devices": [device("a", {"env": ["A=1"]}), device("b", edits)]}
    (name,) = set(edits["intelRdt"]) - {"closID"}
    for version in ("0.7.0", "0.8.0", "1.0.0", "v1.0.0"):
        assert spec_faults(spec(cdiVersion=version, **more)) == ""
    for version in ("1.1.0", "v1.1.0", "9.0.0"):
        assert f'unknown field "{name}" in spec.' in spec_faults(spec(cdiVersion=version, **more))
    assert "at least v0.7.0" in spec_faults(spec(cdiVersion="0.6.0", **more))


VALUES = {
    "annotations": {"a": "b"}, "hostPath": "/dev/x", "type": "tmpfs", "intelRdt": {}, "closID": "c", "l3CacheSchema": "a", "memBwSchema": "b",
    "schemata": ["a"], "enableCMT": True, "enableMBM": True, "enableMonitoring": True, "additionalGids": [5],
    "netDevices": [{"hostInterfaceName": "a", "name": "b"}],
}  # fmt: skip
OWNERS = {
    "intelRdt": {"closID": "c"}, "mounts": [{"hostPath": "/a", "containerPath": "/b"}], "deviceNodes": [{"path": "/dev/x"}],
}  # fmt: skip


@pytest.mark.parametrize("path", [*SINCE, *(f"containerEdits.intelRdt.{name}" for name in LAST_WITH)])
def test_each_field_is_accepted_in_its_versions_only(path: str) -> None:
    *parents, name = path.split(".")
    value: Any = VALUES[name]
    if parents[:1] == ["containerEdits"] and len(parents) == 2:
        owner = OWNERS[parents[1]]
        value = [{**owner[0], name: value}] if isinstance(owner, list) else {**owner, name: value}
        name = parents[1]
    extra: Any = {"containerEdits": {name: value}} if parents[:1] == ["containerEdits"] else {"annotations": {"a": "b"}}
    if parents == ["devices"]:
        extra = {"devices": [{**device("a", {"env": ["A=1"]}), "annotations": {"a": "b"}}]}
    first = VERSIONS.index(SINCE.get(path, SINCE["containerEdits.intelRdt"]))
    last = VERSIONS.index(LAST_WITH.get(path.rpartition(".")[2], NEWEST))
    accepted = [v for v in VERSIONS if spec_faults(spec(cdiVersion=v, **extra)) == ""]
    assert accepted == list(VERSIONS[first : last + 1])


def test_fields_of_no_common_version_are_refused_when_a_spec_is_built() -> None:
    with pytest.raises(
        InvalidSpecError, match=r"1\.0\.0 is the last version with enableCMT .* another field needs 1\.1\.0"
    ):
        ContainerEdits(intel_rdt={"enableCMT": True, "schemata": ["L3:0=f"]})
    old = ContainerEdits(intel_rdt={"closID": "c", "enableMBM": True})
    new = ContainerEdits(net_devices=[NetDevice(host_interface_name="a", name="b")])
    specs = ClaimSpecs(Path("/nowhere"), "toy.example.com")
    assert specs.build([("a", old.json())])["cdiVersion"] == "0.7.0"
    with pytest.raises(InvalidSpecError, match="enableMBM"):
        specs.build([("a", old.json()), ("b", new.json())])
