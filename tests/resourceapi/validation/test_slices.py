"""Devices, versions and slices are validated without a cluster."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dra_devkit.schemas.decoding import decode, decode_strictly
from dra_devkit.schemas.shapes import dra_shape
from dra_devkit.validation.slices import validate_spec
from dra_kubeletplugin import Capacity, Device, Quantity, RequestPolicy, Taint, Version
from dra_kubeletplugin.resourceapi import version
from dra_kubeletplugin.resourceapi.validation.names import LABEL, sanitize
from dra_kubeletplugin.resourceapi.validation.slices import max_devices

SLICE = dra_shape("ResourceSlice")


@pytest.mark.parametrize(
    "text", ["v1.2.3", "1.2", "535.104.05", "1.2.3-", "1.2.3+", "1.2.3-01", "", "18446744073709551616.0.0"]
)
def test_an_invalid_semantic_version_is_a_fault_of_its_device(text: str) -> None:
    made = Version(text)
    (fault,) = Device("d", attributes={"firmware": made, "model": "x"}).faults()
    assert fault.startswith("attributes['firmware']: ") and "Version.coerce()" in fault and repr(text) in fault
    assert (made == Version(text), made == Version("1.2.3"), hash(made), str(made)) == (True, False, hash(made), text)
    for use in (lambda: made.major, lambda: made < Version("1.0.0"), lambda: version.parse(text)):
        with pytest.raises(version.VersionError):
            use()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1.2.3-rc.1+build", "1.2.3-rc.1+build"),
        ("6.19.14.31400000", "6.19.14+31400000"),
        ("535.104.05", "535.104.5"),
        ("535.129.03.1", "535.129.3+1"),
        ("v1.2", "1.2.0"),
        ("12", "12.0.0"),
        ("v2.10-rc1", "2.10.0-rc1"),
        ("1.2+b3", "1.2.0+b3"),
        ("20.39.1002 (MT_0000000359)", "20.39.1002+MT.0000000359"),
        ("FW 000.007", "0.7.0"),
    ],
)
def test_a_version_of_hardware_is_coerced_to_the_nearest_semantic_version(text: str, expected: str) -> None:
    assert str(Version.coerce(text)) == expected


@given(st.text() | st.from_regex(r"[vV]?[0-9]{1,5}(\.[0-9a-z]{1,5}){0,6}[ +_-]?[0-9a-z.]*"))
def test_coercion_of_any_text_with_a_number_makes_a_valid_version(text: str) -> None:
    made = Version.coerce(text)
    if re.search("[0-9]", text) and not re.search("[0-9]{19}", text) and len(text) <= 64:
        assert Device("d", attributes={"firmware": made}).faults() == []
    assert Version.coerce(made) == made


def test_coercion_keeps_a_text_without_a_number_for_the_validation() -> None:
    for value in ("N/A", "", None, 1.5):
        assert bool(Device("d", attributes={"firmware": Version.coerce(value)}).faults()) == (value != 1.5)


def test_versions_are_sorted_as_specified_by_semver() -> None:
    texts = [
        "1.0.0-alpha",
        "1.0.0-alpha.1",
        "1.0.0-alpha.beta",
        "1.0.0-beta",
        "1.0.0-beta.2",
        "1.0.0-beta.11",
        "1.0.0-rc.1",
        "1.0.0",
        "1.10.0",
    ]
    parsed = [Version(t) for t in texts]
    shuffled = parsed[3:] + parsed[:3]
    assert sorted(shuffled) == parsed
    assert Version("1.0.0+a") == Version("1.0.0+b")
    assert hash(Version("1.0.0+a")) == hash(Version("1.0.0+b"))
    assert [str(v) for v in parsed] == texts
    assert Version(parsed[0]) == parsed[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Device("gpu:0"), "name: Invalid value"),
        (lambda: Device("GPU"), "lowercase RFC 1123 label"),
        (lambda: Device("d", attributes={"model": "x" * 65}), "attributes[model].string: Too long: may not be more than 64 bytes"),
        (lambda: Device("d", attributes={"a-b": 1}), "valid C identifier"),
        (lambda: Device("d", attributes={"a": 1.5}), "use str, int, bool, Version"),  # type: ignore[dict-item]
        (lambda: Device("d", attributes={}, capacity={"memory": "1 Gi"}), "capacity['memory']: '1 Gi' is not a quantity"),
        (lambda: Device("d", attributes={f"a{i}": i for i in range(33)}), "must not exceed 32"),
        (lambda: Device("d", taints=[Taint(key="k", effect="Sometimes")]), "Unsupported value"),
        (lambda: Device("d", binding_failure_conditions=["x"]), "bindingConditions are required"),
        (lambda: Device("d", binding_conditions=["x"]), "bindingFailureConditions are required"),
        (lambda: Device("d", attributes={"l": ["x"] * 48, "m": "x"}), "attribute values must not exceed 48"),
        (lambda: Device("d", attributes={"l": ["x" * 65]}), "attributes[l].strings[0]: Too long"),
        (lambda: Device("d", attributes={"model": "\ud800"}), "attributes['model'] is '\\ud800', which is not valid Unicode"),
        (lambda: Device("d", attributes={"a/b/c": 1}), "attributes[a/b/c]: must not contain more than one slash"),
        (lambda: Device("d", attributes={}, capacity={"a/b/c": 1}), "capacity[a/b/c]: must not contain more than one slash"),
        (lambda: Device("d", consumes_counters={"gpu": {}}), "consumesCounters[0].counters: Required value"),
        (lambda: Device("d", attributes={"l": []}), "attributes['l'] is []"),
        (lambda: Device("d", attributes={"l": [1, "x"]}), "attributes['l'] is [1, 'x']"),
        (lambda: Device("d", attributes={"l": [2**63]}), "attributes['l']: 9223372036854775808 does not fit into 64 bits"),
        (lambda: Device("d", attributes={}, capacity={"memory": Capacity("1Gi", RequestPolicy(default="1Gi"))}), "allowMultipleAllocations must be true"),
        (lambda: Device(3), "its name is int, not text"),  # type: ignore[arg-type]
        (lambda: Device(None), "its name is NoneType, not text"),  # type: ignore[arg-type]
        (lambda: Device("d", attributes=["model"]), "attributes is list: use a mapping"),  # type: ignore[arg-type]
        (lambda: Device("d", attributes={}, capacity="80Gi"), "capacity is str: use a mapping"),  # type: ignore[arg-type]
        (lambda: Device("d", taints=Taint(key="x")), "taints is Taint: use a list of Taint"),  # type: ignore[arg-type]
        (lambda: Device("d", taints=["x"]), "taints has str: use a list of Taint"),  # type: ignore[list-item]
        (lambda: Device("d", consumes_counters={"gpu": 3}), "consumes_counters['gpu'] is int: use a mapping of counters"),  # type: ignore[dict-item]
        (lambda: Device("d", consumes_counters={"gpu": {0: 1}}), "consumes_counters['gpu'] has a name that is int"),  # type: ignore[dict-item]
        (lambda: Device("d", attributes={None: 1}), "attributes has a name that is NoneType, not text"),  # type: ignore[dict-item]
        (lambda: Device("d", consumes_counters=["gpu"]), "consumes_counters is list: use a mapping"),  # type: ignore[arg-type]
        (lambda: Device("d", binding_conditions="ab", binding_failure_conditions=["x"]), "binding_conditions is str: use a list"),
        (lambda: Device("d", binding_conditions=[1], binding_failure_conditions=["x"]), "binding_conditions has int: use a list"),  # type: ignore[list-item]
        (lambda: Device("d", nodes="node-1"), "nodes is str: use Nodes.named"),  # type: ignore[arg-type]
        (lambda: Device("d", extra=[1]), "extra is list: use a mapping"),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_an_invalid_value_is_a_fault_of_its_device(make: Callable[[], Device], message: str) -> None:
    (fault,) = make().faults()
    assert message in fault


def test_a_device_is_converted_to_the_form_of_the_api() -> None:
    device = Device(
        "d", attributes={"v": Version("1.2.3"), "b": True, "i": 1, "s": "x"}, capacity={"memory": Quantity("1Gi")}
    )
    json = device.json()
    assert json["capacity"] == {"memory": {"value": "1Gi"}}
    assert json["attributes"] == {"v": {"version": "1.2.3"}, "b": {"bool": True}, "i": {"int": 1}, "s": {"string": "x"}}
    spec = {
        "driver": "d.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [json],
    }
    assert validate_spec(decode_strictly({"metadata": {}, "spec": spec}, SLICE)["spec"], "spec") == []


def test_a_list_attribute_is_typed_and_halves_the_devices_of_a_slice() -> None:
    listed = {"s": ["a", "b"], "i": [1, 2], "b": [True], "v": [Version("1.0.0")]}
    device = Device("d", attributes=listed | {f"a{i}": i for i in range(27)} | {"more": ["x"] * 15}, capacity={})
    assert device.json()["attributes"]["v"] == {"versions": ["1.0.0"]}
    assert device.json()["attributes"]["b"] == {"bools": [True]}
    assert (max_devices([device.json()]), max_devices([Device("e", attributes={"s": "a"}).json()])) == (64, 128)


@given(st.text(max_size=100))
def test_sanitize_makes_a_device_name_of_any_text(text: str) -> None:
    assert LABEL.fullmatch(sanitize(text))


junk = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=3)
    | st.just(Taint(key="k")),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4) | st.integers(), inner, max_size=2),
    max_leaves=4,
)
FIELDS = (
    "name", "attributes", "capacity", "taints", "consumes_counters", "binding_conditions", "binding_failure_conditions", "nodes", "extra",
)  # fmt: skip
API_FIELDS = ("attributes", "capacity", "taints", "consumesCounters", "bindingConditions", "nodeName", "nodeSelector")


@given(st.sampled_from(FIELDS), junk | st.dictionaries(st.sampled_from(API_FIELDS), junk, min_size=1, max_size=2))
@example("extra", {"attributes": {0: {}}})
@example("extra", {"attributes": {"a": [{0: 1}]}})
def test_a_device_with_any_field_can_be_sent_or_is_rejected_with_a_reason(name: str, value: object) -> None:
    device = Device(**{"name": "d", name: value})  # type: ignore[arg-type]
    if faults := device.faults():
        assert "AttributeError" not in str(faults) and "KeyError" not in str(faults)
    else:
        spec = {"driver": "d.example.com", "devices": [device.json()]}
        decode({"spec": spec}, SLICE, [])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "a\ud800"}, "its name is 'a\\ud800', which is not valid Unicode"),
        ({"taints": [Taint(key=5)]}, "taints has a Taint whose key, value or effect is not text"),  # type: ignore[arg-type]
        ({"attributes": {1: "x"}}, "attributes has a name that is int, not text"),
        ({"binding_conditions": "ready"}, "binding_conditions is str: use a list of str"),
        ({"extra": {"name": "other"}}, "extra: name is a field of Device: set it there"),
    ],
)  # fmt: skip
def test_a_field_of_a_wrong_type_is_reported_with_the_correct_type(fields: dict[str, Any], message: str) -> None:
    assert message in "; ".join(Device(**{"name": "d", **fields}).faults())


EMPTY_SPEC_ERRORS = ["spec.driver", "spec.pool.name", "spec.pool.resourceSliceCount"]


@pytest.mark.parametrize("node", [None, "n1"])
@pytest.mark.parametrize("pool", ["", "p"])
@pytest.mark.parametrize("driver", ["", "d.example.com"])
def test_errors_of_an_empty_spec_have_the_order_of_the_server(driver: str, pool: str, node: str | None) -> None:
    empty = decode_strictly({"metadata": {"name": "s"}, "spec": {}}, SLICE)["spec"]
    assert [f.field for f in validate_spec(empty, "spec")] == [*EMPTY_SPEC_ERRORS, "spec"]
    old = {**empty, "driver": driver, "pool": {**empty["pool"], "name": pool}} | ({"nodeName": node} if node else {})
    # Errors for immutable fields that the update empties come after the pool and before the node selection.
    changed = [("spec.pool.name", pool), ("spec.driver", driver), ("spec.nodeName", node)]
    immutable = [field for field, before in changed if before]
    assert [f.field for f in validate_spec(empty, "spec", old)] == [*EMPTY_SPEC_ERRORS, *immutable, "spec"]
