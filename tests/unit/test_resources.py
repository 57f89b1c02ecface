"""Devices, quantities, versions and slices without a cluster."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Quantity, Taint, Version
from dra_kubeletplugin.errors import InvalidObjectError
from dra_kubeletplugin.resources import quantity, schema, version
from dra_kubeletplugin.resources.names import LABEL, sanitize
from dra_kubeletplugin.resources.slice_rules import validate_spec


@pytest.mark.parametrize(
    "text", ["1K", "1 Gi", "1e3Ki", "NaN", "Infinity", "1_000", "\uff11", "", ".", "+", "1e", "0x1", "1Gii", "--1"]
)
def test_what_kubernetes_refuses_is_no_quantity(text: str) -> None:
    with pytest.raises(quantity.QuantityError):
        quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("1.5Gi", "1536Mi"), ("0", "0"), ("1000m", "1"), ("1e3", "1e3"), ("1E", "1E"), (".5", "500m"), ("5.", "5"), ("2048Ki", "2Mi"), ("-1.5", "-1500m")],
)  # fmt: skip
def test_quantities_have_one_canonical_form(text: str, canonical: str) -> None:
    assert quantity.canonical(quantity.parse(text)) == canonical


@given(st.integers(-(10**15), 10**15), st.sampled_from(["", "k", "M", "Ki", "Mi", "m"]))
def test_a_quantity_s_canonical_form_has_the_same_value(number: int, suffix: str) -> None:
    parsed = quantity.parse(f"{number}{suffix}")
    assert quantity.parse(quantity.canonical(parsed)) == parsed


@pytest.mark.parametrize(
    "text", ["v1.2.3", "1.2", "535.104.05", "1.2.3-", "1.2.3+", "1.2.3-01", "", "18446744073709551616.0.0"]
)
def test_what_is_no_semantic_version_is_refused(text: str) -> None:
    with pytest.raises(version.VersionError):
        version.parse(text)


def test_versions_have_the_order_of_semver_org() -> None:
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
    parsed = [version.parse(t) for t in texts]
    shuffled = parsed[3:] + parsed[:3]
    assert sorted(shuffled) == parsed
    assert version.parse("1.0.0+a") == version.parse("1.0.0+b")


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Device("gpu:0"), "name: Invalid value"),
        (lambda: Device("GPU"), "lowercase RFC 1123 label"),
        (lambda: Device("d", {"model": "x" * 65}), "attributes[model].string: Too long: may not be more than 64 bytes"),
        (lambda: Device("d", {"a-b": 1}), "valid C identifier"),
        (lambda: Device("d", {"a": 1.5}), "give str, int, bool, Version"),  # type: ignore[dict-item]
        (lambda: Device("d", {}, {"memory": "1 Gi"}), "quantities must match"),
        (lambda: Device("d", {f"a{i}": i for i in range(33)}), "must not exceed 32"),
        (lambda: Device("d", taints=[Taint(key="k", effect="Sometimes")]), "Unsupported value"),
        (lambda: Device("d", binding_failure_conditions=["x"]), "bindingConditions are required"),
    ],
)  # fmt: skip
def test_a_device_that_kubernetes_would_refuse_cannot_be_made(make: object, says: str) -> None:
    with pytest.raises(InvalidObjectError) as e:
        make()  # type: ignore[operator]
    assert says in str(e.value)


def test_a_device_has_the_api_s_form() -> None:
    device = Device(
        "d", {"v": Version(1, 2, 3), "b": True, "i": 1, "s": "x"}, {"memory": Quantity(quantity.parse("1Gi").value)}
    )
    json = device.json()
    assert json["attributes"] == {"v": {"version": "1.2.3"}, "b": {"bool": True}, "i": {"int": 1}, "s": {"string": "x"}}
    spec = {
        "driver": "d.example.com",
        "nodeName": "n",
        "pool": {"name": "n", "generation": 1, "resourceSliceCount": 1},
        "devices": [json],
    }
    assert validate_spec(schema.decode({"metadata": {}, "spec": spec}, "ResourceSlice")["spec"], "spec") == []


@given(st.text(max_size=100))
def test_any_text_can_be_made_a_device_name(text: str) -> None:
    assert LABEL.fullmatch(sanitize(text))
