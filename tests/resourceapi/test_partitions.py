"""Partitions are equal to the table, counter set and example devices of KEP-4815."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Device, Partition, Partitioned, Profile, Quantity, partitions
from dra_kubeletplugin.errors import InvalidObjectError
from dra_kubeletplugin.resourceapi.partitions import capacity_name, counter_name
from dra_kubeletplugin.resourceapi.validation.names import C_IDENTIFIER, LABEL
from tests.resourceapi.kep_4815 import COUNTERS, DEVICES, PLACES, RESOURCES, ROWS

NAMES = ["gpu-0-mig-1g.5gb-0", "gpu-0-mig-1g.5gb-1", "gpu-0-mig-2g.10gb-0-1"]


def kep_profiles() -> list[Profile]:
    return [
        Profile(name=name, takes=dict(zip(RESOURCES, [memory, *rest], strict=True)), slots=slots, at=PLACES[name])
        for name, memory, slots, *rest in ROWS
    ]


def a100(*, whole: bool = False) -> Partitioned:
    has = {name: value for name, value in COUNTERS.items() if not name.startswith("memorySlice")}
    return partitions("gpu-0", kep_profiles(), has=has, slots=8, slot="memorySlice", kind="mig", whole=whole)


def by_name(found: Partitioned) -> dict[str, Device]:
    return {d.name: d for d in found.devices}


def test_the_counters_are_those_of_the_kep_with_names_that_the_server_accepts() -> None:
    assert a100().counter_set.counters == {counter_name(k): Quantity(v) for k, v in COUNTERS.items()}
    assert "memory-slice-7" in a100().counter_set.counters


@pytest.mark.parametrize("name", NAMES)
def test_the_example_devices_of_the_kep_have_names_that_the_server_accepts(name: str) -> None:
    device = by_name(a100())[name.replace(".", "-")]
    kep = DEVICES[name]
    assert device.capacity == {capacity_name(k): Quantity(v) for k, v in kep.items()}
    ((counter_set, taken),) = device.consumes_counters.items()
    assert (counter_set, taken) == ("gpu-0", {counter_name(k): Quantity(v) for k, v in kep.items()})
    assert device.attributes["profile"] == name.split("-")[3]


def test_every_row_of_the_kep_table_is_a_profile_with_a_device_at_each_place() -> None:
    found = a100()
    assert len(found.devices) == sum(map(len, PLACES.values())) == 25
    for name, memory, slots, *amounts in ROWS:
        for first in PLACES[name]:
            (device,) = [d for d in found.devices if d.data.profile.name == name and d.data.slots[0] == first]
            wanted = dict(zip(RESOURCES, [memory, *amounts], strict=True))
            wanted |= {f"memorySlice{i}": 1 for i in range(first, first + slots)}
            assert device.consumes_counters["gpu-0"] == {counter_name(k): Quantity(v) for k, v in wanted.items()}


def fits(devices: Iterable[Device], found: Partitioned) -> bool:
    available = {name: Quantity(value) for name, value in found.counter_set.counters.items()}
    for device in devices:
        for taken in device.consumes_counters.values():
            available = {name: amount - Quantity(taken.get(name, 0)) for name, amount in available.items()}
    return all(amount >= Quantity(0) for amount in available.values())


def test_the_first_two_kep_devices_fit_together_but_neither_fits_with_the_third() -> None:
    found = a100()
    first, second, third = (by_name(found)[n.replace(".", "-")] for n in NAMES)
    assert fits([first, second], found)
    assert not fits([first, third], found)
    assert not fits([second, third], found)


@given(st.lists(st.integers(0, 24), unique=True, max_size=8))
def test_partitions_that_fit_together_share_no_slot_and_exclude_the_whole_device(picks: list[int]) -> None:
    found = a100(whole=True)
    chosen = [found.devices[i] for i in picks]
    slots = [s for d in chosen for s in d.data.slots]
    if fits(chosen, found):
        assert len(slots) == len(set(slots))
    if chosen:
        assert not fits([*chosen, found.devices[-1]], found)
    assert fits([found.devices[-1]], found)


def test_the_whole_device_is_last_and_consumes_all_counters() -> None:
    whole = a100(whole=True).devices[-1]
    assert (whole.name, whole.data.profile, "profile" in whole.attributes) == ("gpu-0", None, False)
    assert whole.consumes_counters["gpu-0"] == a100().counter_set.counters


@given(st.text(min_size=1).filter(lambda t: any(c.isascii() and c.isalpha() for c in t)))
def test_any_name_with_a_letter_becomes_a_valid_counter_and_capacity_name(text: str) -> None:
    assert LABEL.fullmatch(counter_name(text))
    assert C_IDENTIFIER.fullmatch(capacity_name("a" + text))


def test_names_are_converted_as_the_kep_requires() -> None:
    assert [counter_name(n) for n in ("copy-engines", "memorySlice0", "OFAEngines")] == [
        "copy-engines",
        "memory-slice-0",
        "ofa-engines",
    ]
    assert [capacity_name(n) for n in ("copy-engines", "memorySlice0", "memory")] == [
        "copyEngines",
        "memorySlice0",
        "memory",
    ]


def small(*profiles: Profile, **more: Any) -> Partitioned:
    return partitions("gpu", profiles, **({"has": {"memory": "8Gi"}, "slots": 2} | more))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: small(Profile(name="p", takes={"cores": 1})), "profile 'p' takes 1 of 'cores', but the device has only memory"),
        (lambda: small(Profile(name="p", takes={"memory": "9Gi"})), "takes 9Gi of 'memory', but the device has 8Gi"),
        (lambda: small(Profile(name="p", takes={"memory": "9GB"})), "gpu: profile 'p': memory: '9GB' is not a quantity"),
        (lambda: small(has={"memory": 1.5}), "gpu: memory: 1.5 is not a quantity"),
        (lambda: small(Profile(name="p", takes={}, at=[2])), "profile 'p' with 1 slots does not fit at 2: slots are 0 to 1"),
        (lambda: small(Profile(name="p", takes={}, at=[-1])), "does not fit at -1"),
        (lambda: small(Profile(name="p", takes={}, slots=0)), "does not fit at 0"),
        (lambda: small(Profile(name="a.b", takes={}), Profile(name="a-b", takes={})), "two partitions are called 'gpu-part-a-b-0'"),
        (lambda: small(has={}, slots=0), "counter set 'gpu': counters: Required value"),
        (lambda: small(counter_set="A"), "counter set 'A': name: Invalid value"),
        (lambda: small(Profile(name="p", takes={}), device_name=lambda part: "gpu"), "two partitions are called 'gpu'"),
        (lambda: small(slots=40), "counter set 'gpu': counters: Too many: 41"),
        (lambda: small(has={"copyEngines": 1, "copy-engines": 1}), "two resources have the counter name 'copy-engines'"),
    ],
)  # fmt: skip
def test_an_invalid_table_is_rejected_with_the_profile_and_the_reason(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidObjectError) as raised:
        make()
    assert message in str(raised.value)


# NVIDIA's driver on an H100: profile, id, first slots, slots, memory in MiB, and the other resources in the order of RESOURCES.
H100 = [
    ("1g.10gb", 19, range(7), 1, 9984, 16, 1, 1, 0, 1, 0),
    ("1g.10gb+me", 20, range(7), 1, 9984, 16, 1, 1, 0, 1, 1),
    ("1g.20gb", 15, range(0, 7, 2), 2, 20096, 26, 1, 1, 0, 1, 0),
    ("2g.20gb", 14, range(0, 5, 2), 2, 20096, 32, 2, 2, 0, 2, 0),
    ("3g.40gb", 9, (0, 4), 4, 40448, 60, 3, 3, 0, 3, 0),
    ("4g.40gb", 5, (0,), 4, 40448, 64, 4, 4, 0, 4, 0),
    ("7g.80gb", 0, (0,), 8, 81152, 132, 8, 7, 0, 7, 1),
]


def h100() -> Partitioned:
    """Returns the partitions of an H100 with the names, capacities and attributes of NVIDIA's driver."""
    ids = {name: number for name, number, *_ in H100}

    def device_name(part: Partition) -> str:
        profile = part.profile
        return (
            f"gpu-0-mig-{re.sub('[^a-z0-9]', '', profile.name)}-{ids[profile.name]}-{part.slots[0]}"
            if profile
            else "gpu-0"
        )

    return partitions(
        "gpu-0",
        [
            Profile(name=name, takes=dict(zip(RESOURCES, [f"{memory}Mi", *rest], strict=True)), slots=slots, at=at)
            for name, _, at, slots, memory, *rest in H100
        ],
        has=dict(zip(RESOURCES, ["81559Mi", 132, 8, 7, 0, 7, 1], strict=True)),
        slots=8,
        slot="memorySlice",
        slot_capacities=False,
        device_name=device_name,
        counter_set="gpu-0-counter-set",
        attributes={"productName": "NVIDIA H100 80GB HBM3"},
        part_attributes={"type": "mig", "parentUUID": "GPU-1"},
        whole_attributes={"type": "gpu", "uuid": "GPU-1"},
    )


def test_names_of_devices_and_counter_set_can_follow_another_driver() -> None:
    found = h100()
    devices = by_name(found)
    assert len(devices) == 26
    assert found.counter_set.name == "gpu-0-counter-set"
    assert set(devices) >= {"gpu-0", "gpu-0-mig-1g10gb-19-6", "gpu-0-mig-1g10gbme-20-0", "gpu-0-mig-7g80gb-0-0"}
    assert {name for d in found.devices for name in d.consumes_counters} == {"gpu-0-counter-set"}


def test_slots_are_counters_also_without_slot_capacities() -> None:
    found = h100()
    part, whole = by_name(found)["gpu-0-mig-2g20gb-14-4"], found.devices[-1]
    amounts = ["20096Mi", 32, 2, 2, 0, 2, 0]
    assert part.capacity == {capacity_name(r): Quantity(v) for r, v in zip(RESOURCES, amounts, strict=True)}
    assert part.consumes_counters["gpu-0-counter-set"].keys() & {f"memory-slice-{i}" for i in range(8)} == {
        "memory-slice-4",
        "memory-slice-5",
    }
    assert whole.consumes_counters["gpu-0-counter-set"] == found.counter_set.counters
    assert whole.capacity.keys() == part.capacity.keys()
    assert not fits([by_name(found)["gpu-0-mig-1g10gb-19-4"], part], found)


def test_another_device_with_all_counters_excludes_all_partitions() -> None:
    found = h100()
    function = Device("gpu-vfio-0", consumes_counters={found.counter_set.name: found.counter_set.counters})
    assert fits([function], found)
    assert [device.name for device in found.devices if fits([function, device], found)] == []


def test_attributes_of_the_whole_device_and_of_its_partitions_differ() -> None:
    *parts, whole = h100().devices
    assert whole.attributes == {"productName": "NVIDIA H100 80GB HBM3", "type": "gpu", "uuid": "GPU-1"}
    profiles = [part.attributes["profile"] for part in parts]
    assert profiles[-1] == "7g.80gb"
    common = {"productName": "NVIDIA H100 80GB HBM3", "type": "mig", "parentUUID": "GPU-1"}
    assert [part.attributes for part in parts] == [common | {"profile": name} for name in profiles]


def test_attributes_of_a_profile_override_those_of_all_partitions() -> None:
    profiles = [Profile(name="big", takes={}, slots=2), Profile(name="small", takes={}, attributes={"size": "small"})]
    found = by_name(small(*profiles, attributes={"size": "all"}, part_attributes={"size": "part"}))
    assert [found[n].attributes["size"] for n in ("gpu-part-big-0-1", "gpu-part-small-0", "gpu")] == [
        "part",
        "small",
        "all",
    ]
