"""The rules of a CDI spec, one by one: what each refuses, in the Go library's words, and the nearest thing that it lets pass."""

from __future__ import annotations

from typing import Any

import pytest

from dra_kubeletplugin.cdi.spec import check_shape, minimum_version, spec_faults, version_to_declare
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


# --- what a field needs -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("least", "more"),
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
def test_the_least_version_is_that_of_the_newest_field(least: str, more: dict[str, Any]) -> None:
    assert minimum_version(spec() | more) == least


@pytest.mark.parametrize("prefix", ["", "v"])
def test_a_spec_may_declare_the_least_version_and_no_lower(prefix: str) -> None:
    needs = {"containerEdits": {"additionalGids": [1]}}
    assert spec_faults(spec(cdiVersion=f"{prefix}0.7.0", **needs)) == ""
    assert spec_faults(spec(cdiVersion=f"{prefix}0.6.0", **needs)) == "the spec version must be at least v0.7.0"
    assert spec_faults(spec(cdiVersion=f"{prefix}1.0.0", **needs)) == ""


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_versions_before_0_3_0_are_known_and_too_old_for_anything(version: str) -> None:
    assert spec_faults(spec(cdiVersion=version)) == "the spec version must be at least v0.3.0"


# --- whole specs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "says"),
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
def test_a_spec_as_a_whole(more: dict[str, Any], says: str) -> None:
    assert spec_faults(spec() | more) == says


@pytest.mark.parametrize(
    ("kind", "says"),
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
def test_kinds(kind: str, says: str) -> None:
    assert spec_faults(spec(kind=kind)) == says


@pytest.mark.parametrize(
    ("name", "says"),
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
def test_names_of_devices(name: str, says: str) -> None:
    assert spec_faults(spec(devices=[device(name)])) == (says and f'failed add device "{name}": {says}')


# --- edits --------------------------------------------------------------------------------------------------

NET = "invalid linux net device, "


@pytest.mark.parametrize(
    ("edits", "says"),
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
def test_container_edits(edits: dict[str, Any], says: str) -> None:
    assert spec_faults(spec(containerEdits=edits)) == says
    assert spec_faults(spec(containerEdits=dict.fromkeys(edits))) == ""


# --- types --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "says"),
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
def test_wrong_types_are_refused_by_writers_and_readers(value: Any, says: str) -> None:
    assert spec_faults(value) == says
    with pytest.raises(InvalidSpecError) as e:
        check_shape(value)
    assert str(e.value) == says


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (spec(newer=1), 'unknown field "newer" in spec'),
        (spec(devices=[device(newer=1)]), 'unknown field "newer" in spec.devices[0]'),
        (spec(containerEdits={"newer": 1}), 'unknown field "newer" in spec.containerEdits'),
        (spec(containerEdits={"mounts": [{"newer": 1}]}), 'unknown field "newer" in spec.containerEdits.mounts[0]'),
    ],
)
def test_fields_of_a_newer_version_are_refused_by_writers_and_not_by_readers(value: Any, says: str) -> None:
    assert spec_faults(value) == says
    check_shape(value)


@pytest.mark.parametrize(
    ("field", "least", "most"),
    [("major", -(2**63), 2**63 - 1), ("uid", 0, 2**32 - 1), ("fileMode", 0, 2**32 - 1), ("gid", 0, 2**32 - 1)],
)
def test_numbers_are_taken_as_far_as_go_has_them(field: str, least: int, most: int) -> None:
    for value in (least, 0, 1, most):
        assert spec_faults(spec(containerEdits={"deviceNodes": [{"path": "/a", field: value}]})) == ""
    for value in (least - 1, most + 1):
        says = f"spec.containerEdits.deviceNodes[0].{field} {value} is out of range"
        assert spec_faults(spec(containerEdits={"deviceNodes": [{"path": "/a", field: value}]})) == says


def test_annotations_are_texts() -> None:
    assert spec_faults(spec(annotations={"a": "b", "c": None})) == ""
    assert spec_faults(spec(annotations={"a": "b", "c": 1})) == "spec.annotations has a value that is not text"


@pytest.mark.parametrize("what", [{"mounts": [{"type": "bind"}]}, {"deviceNodes": [{"path": "/a", "hostPath": "/b"}]}])
def test_mounts_and_host_paths_of_every_device_count_for_what_is_declared(what: dict[str, Any]) -> None:
    devices = [device("a", what), device("b")]
    wanted = "0.4.0" if "mounts" in what else "0.5.0"
    assert (minimum_version(spec(devices=devices)), version_to_declare(spec(devices=devices))) == ("0.3.0", wanted)
    assert minimum_version(spec(devices=devices[::-1])) == wanted
    assert version_to_declare(spec(devices=None)) == "0.3.0"


def test_true_and_numbers_are_taken_where_they_belong() -> None:
    rdt = {"enableCMT": True, "enableMBM": False, "enableMonitoring": True, "schemata": ["a"], "l3CacheSchema": "b"}
    node = {"path": "/a", "major": 1, "minor": 0, "fileMode": 0o600, "uid": 0, "gid": 5}
    assert spec_faults(spec(containerEdits={"intelRdt": rdt, "deviceNodes": [node], "additionalGids": [0]})) == ""
