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
from dra_kubeletplugin.slices.pack import pack
from dra_kubeletplugin.slices.plan import make_plan


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


# --- packing and planning -------------------------------------------------------------------------

names = st.lists(st.integers(0, 400).map(lambda i: f"d{i}"), unique=True, max_size=300)


def devices(of: list[str], tainted: set[str]) -> list[dict[str, object]]:
    taint = [{"key": "k", "effect": "NoSchedule"}]
    return [{"name": n, "taints": taint} if n in tainted else {"name": n} for n in of]


@given(names, names, st.sets(st.integers(0, 400).map(lambda i: f"d{i}"), max_size=20))
def test_slices_respect_limits_hold_every_device_once_and_keep_it_in_place(
    first: list[str], second: list[str], tainted: set[str]
) -> None:
    before = {f"s{i}": [d["name"] for d in c.devices] for i, c in enumerate(pack(devices(first, set())))}
    contents = pack(devices(second, tainted), (), before)
    assert sorted(d["name"] for c in contents for d in c.devices) == sorted(second)
    for content in contents:
        limit = 64 if any(d.get("taints") for d in content.devices) else 128
        assert len(content.devices) <= limit
    if not tainted & set(second):
        where = {n: key for key, group in before.items() for n in group}
        for content in contents:
            assert all(where.get(d["name"], content.key) == content.key for d in content.devices)


def test_an_empty_pool_is_one_slice_without_devices() -> None:
    (content,) = pack([])
    assert content.devices == []


def stored(plan: object, existing: list[dict[str, object]]) -> list[dict[str, object]]:
    """What the server has after a plan."""
    names_gone = {o["metadata"]["name"] for o in plan.delete}  # type: ignore[attr-defined]
    updated = {o["metadata"]["name"]: o for o in plan.update}  # type: ignore[attr-defined]
    out = [updated.get(o["metadata"]["name"], o) for o in existing if o["metadata"]["name"] not in names_gone]  # type: ignore[index]
    for i, o in enumerate(plan.create):  # type: ignore[attr-defined]
        out.append(
            {
                **o,
                "metadata": {
                    "name": f"{o['metadata']['generateName']}{len(existing)}{i}",
                    "uid": "u",
                    "resourceVersion": "1",
                },
            }
        )
    return sorted(out, key=lambda o: o["metadata"]["name"])  # type: ignore[index]


@given(st.lists(names, min_size=1, max_size=5))
def test_any_sequence_of_changes_leaves_one_complete_generation(history: list[list[str]]) -> None:
    existing: list[dict[str, object]] = []
    generation = 0
    for step in history:
        before = {o["metadata"]["name"]: [d["name"] for d in o["spec"].get("devices", [])] for o in existing}  # type: ignore[index]
        contents = pack(devices(step, set()), (), before)
        existing = stored(make_plan(contents, existing, "d.example.com", "n"), existing)
        pools = [o["spec"]["pool"] for o in existing]  # type: ignore[index]
        assert {p["generation"] for p in pools} == {pools[0]["generation"]}
        assert {p["resourceSliceCount"] for p in pools} == {len(existing)}
        assert pools[0]["generation"] >= generation
        generation = pools[0]["generation"]
        assert make_plan(pack(devices(step, set()), (), {o["metadata"]["name"]: [d["name"] for d in o["spec"].get("devices", [])] for o in existing}), existing, "d.example.com", "n").writes == 0  # type: ignore[index]  # fmt: skip


def test_one_changed_slice_keeps_the_generation_and_times_of_taints() -> None:
    first = pack(devices(["a", "b"], {"a"}))
    existing = stored(make_plan(first, [], "d.example.com", "n"), [])
    existing[0]["spec"]["devices"][0]["taints"][0]["timeAdded"] = "2026-01-01T00:00:00Z"  # type: ignore[index]
    contents = pack(devices(["a", "b", "c"], {"a"}), (), {existing[0]["metadata"]["name"]: ["a", "b"]})  # type: ignore[index]
    plan = make_plan(contents, existing, "d.example.com", "n")
    assert (len(plan.update), len(plan.create), len(plan.delete)) == (1, 0, 0)
    spec = plan.update[0]["spec"]
    assert spec["pool"]["generation"] == 1
    assert spec["devices"][0]["taints"][0]["timeAdded"] == "2026-01-01T00:00:00Z"
