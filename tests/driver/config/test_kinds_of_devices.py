"""Kinds of parameters for types of devices: which entry applies to which device, and how devices are grouped by parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import pytest

from dra_devkit.testing import ClaimSpec, OpaqueConfig, Request, node_with
from dra_kubeletplugin import Claim, Config, Device, Driver, PreparedDevice
from dra_kubeletplugin.driver import make
from dra_kubeletplugin.driver.config.kinds import kinds_of
from dra_kubeletplugin.driver.config.parameters import Parameters, Resolved
from dra_kubeletplugin.driver.config.resolution import Resolver
from dra_kubeletplugin.errors import ConfigError, DriverError

DRIVER = "cards.example.com"
VERSION = f"{DRIVER}/v1"


class OldGpuConfig(Config):
    KIND, API_VERSION = "GpuConfig", f"{DRIVER}/v1alpha1"
    fast: bool = False


class GpuConfig(Config):
    KIND, API_VERSION = "GpuConfig", VERSION
    OLDER = (OldGpuConfig,)
    DEVICES: ClassVar = {"type": "gpu"}
    slice: Literal["Short", "Long"] = "Short"

    @classmethod
    def convert_from(cls, older: OldGpuConfig) -> GpuConfig:
        return cls(slice="Short" if older.fast else "Long")


class PartConfig(Config):
    KIND, API_VERSION = "PartConfig", VERSION
    DEVICES: ClassVar = {"type": "part"}
    memory: int = 1
    cores: int = 1


class NumberConfig(Config):
    KIND, API_VERSION = "NumberConfig", VERSION
    DEVICES: ClassVar = {"number": 1}
    name: str


KINDS = [GpuConfig, PartConfig, NumberConfig]
GPU, PART, NUMBER, OTHER = (
    Device("d", attributes=attributes)
    for attributes in ({"type": "gpu"}, {"type": "part"}, {"number": 1}, {"type": "vfio"})
)


def entry(
    kind: str, source: str = "FromClaim", requests: Sequence[str] = (), version: str = VERSION, **fields: Any
) -> dict[str, Any]:
    parameters = {"apiVersion": version, "kind": kind, **fields}
    return {"source": source, "requests": list(requests), "opaque": {"driver": DRIVER, "parameters": parameters}}


def resolve(entries: Sequence[Mapping[str, Any]], device: Device, request: str = "r") -> Resolved:
    return Parameters(KINDS, DRIVER).resolve(entries, request, kinds_of(device.attributes, KINDS))


def test_an_entry_without_requests_applies_to_the_devices_of_its_kind() -> None:
    entries = [entry("GpuConfig", slice="Long"), entry("PartConfig", memory=4)]
    for order in (entries, entries[::-1]):
        assert resolve(order, GPU) == (GpuConfig(slice="Long"), "FromClaim")
        assert resolve(order, PART) == (PartConfig(memory=4), "FromClaim")


def test_other_devices_have_the_defaults_of_the_first_kind_for_them() -> None:
    assert resolve([entry("GpuConfig", slice="Long")], PART) == (PartConfig(), "")
    assert resolve([entry("PartConfig")], GPU) == (GpuConfig(), "")
    assert resolve([entry("PartConfig")], OTHER) == (None, ""), "no kind applies to the device"
    assert resolve([entry("PartConfig")], NUMBER) == (None, ""), "the kind has a field without a default"
    assert kinds_of({"number": 1}, KINDS) == {NumberConfig}
    assert kinds_of({"number": True}, KINDS) == frozenset()


def test_the_entry_of_the_class_applies_if_the_claim_s_entry_is_for_other_devices() -> None:
    of_class = [entry("GpuConfig", "FromClass", ["r"], slice="Long"), entry("PartConfig", "FromClass", ["r"], memory=4)]
    entries = [*of_class, entry("PartConfig", cores=2)]
    assert resolve(entries, GPU) == (GpuConfig(slice="Long"), "FromClass")
    assert resolve(entries, PART) == (PartConfig(cores=2), "FromClaim")


def test_an_older_version_applies_to_the_devices_of_the_newest_version() -> None:
    entries = [entry("GpuConfig", version=OldGpuConfig.API_VERSION), entry("PartConfig", memory=4)]
    assert resolve(entries, GPU) == (GpuConfig(slice="Long"), "FromClaim")
    assert resolve(entries, PART) == (PartConfig(memory=4), "FromClaim")


def test_an_entry_that_names_a_request_without_matching_devices_is_an_error() -> None:
    wrong = entry("GpuConfig", requests=["r"])
    with pytest.raises(ConfigError) as error:
        resolve([wrong], PART)
    assert str(error.value).startswith(
        "config[0] (FromClaim): parameters.kind: GpuConfig is for devices with type=gpu, but request 'r' got another device: "
        "name other requests in this entry, or none"
    )
    assert resolve([wrong, entry("PartConfig", requests=["r"])], PART)[0] == PartConfig(), (
        "the request may receive either type"
    )
    assert resolve([entry("GpuConfig", "FromClass", ["r"])], PART)[0] == PartConfig(), (
        "the scheduler adds the request to an entry of the class"
    )
    assert resolve([entry("GpuConfig", requests=["r"])], PART, "r/part")[0] == PartConfig(), (
        "the entry may be for another alternative"
    )
    with pytest.raises(ConfigError, match="request 'r/part' got another device"):
        resolve([entry("GpuConfig", requests=["r/part"])], PART, "r/part")


async def resolve_for_claim(entries: Sequence[Mapping[str, Any]], *devices: tuple[str, Device]) -> Any:
    return await Resolver(make(Cards), DRIVER).resolve(entries, devices)


async def test_entries_without_requests_for_no_device_of_the_claim_are_an_error() -> None:
    wrong, other_driver = entry("PartConfig"), entry("Other", version="other.example.com/v1")
    (error,) = await resolve_for_claim([other_driver, wrong], ("r", GPU))
    assert isinstance(error, ConfigError)
    assert str(error).startswith(
        "config[1] (FromClaim): parameters.kind: PartConfig is for devices with type=part, and the claim has none: use the kind for the "
        "claim's devices, or remove this entry"
    )
    for entries, devices in (
        ([wrong], [("a", GPU), ("b", PART)]),
        ([wrong, entry("GpuConfig")], [("r", GPU)]),  # The request may receive either type.
        ([wrong], [("r/gpu", GPU)]),  # The entry may be for another alternative.
        (
            [entry("PartConfig", "FromClass", ["r"])],
            [("r", GPU)],
        ),  # The class may set defaults for several types of devices.
        ([other_driver], [("r", GPU)]),
    ):
        found = await resolve_for_claim(entries, *devices)
        assert not any(isinstance(f, ConfigError) for f in found), entries


def test_an_invalid_entry_is_an_error_for_every_device() -> None:
    with pytest.raises(ConfigError, match="Invalid enum value 'Slow'"):
        resolve([entry("GpuConfig", slice="Slow")], PART)


class Cards(Driver):
    """Publishes two GPUs and two parts. The data of a device contains its parameters and the devices with equal parameters."""

    name = DRIVER
    config = (GpuConfig, PartConfig)

    def devices(self) -> list[Device]:
        return [Device(f"{kind}-{i}", attributes={"type": kind}) for kind in ("gpu", "part") for i in range(2)]

    def prepare(self, claim: Claim) -> list[PreparedDevice]:
        groups = claim.devices_by_config()
        return [d.prepared(data={"config": repr(c), "with": [m.name for m in g]}) for c, g in groups for d in g]


async def test_the_devices_of_a_claim_receive_their_parameters_and_are_grouped_by_them() -> None:
    all_devices = ClaimSpec(
        Request("all", count=4),
        config=[OpaqueConfig(DRIVER, c.json()) for c in (GpuConfig(slice="Long"), PartConfig(memory=4))],
    )
    async with node_with(Cards) as node:
        await node.run_pod(claim=all_devices)
        (record,) = await node.plugin.claims.store.all()
        found = {d["device"]: d["data"] for d in record.devices}
        assert found["gpu-0"] == found["gpu-1"] == {"config": repr(GpuConfig(slice="Long")), "with": ["gpu-0", "gpu-1"]}
        assert found["part-0"] == {"config": repr(PartConfig(memory=4)), "with": ["part-0", "part-1"]}


def test_devices_other_than_a_mapping_of_attributes_are_an_error_of_the_class() -> None:
    class Wrong(Config):
        DEVICES: ClassVar = ["gpu"]  # type: ignore[assignment]

    with pytest.raises(DriverError, match=r"Wrong.DEVICES is \['gpu'\]: set it to attributes of devices, such as"):
        make(type("D", (Cards,), {"config": Wrong}))


def test_a_misspelled_devices_attribute_of_a_kind_is_reported() -> None:
    class Typo(Config):
        DEVICE = {"type": "gpu"}  # noqa: RUF012

    with pytest.raises(DriverError, match=r"Typo.DEVICE is never used, did you mean `DEVICES`\?"):
        make(type("D", (Cards,), {"config": Typo}))
