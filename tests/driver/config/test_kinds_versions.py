"""Older versions of parameters are converted, and a kind has a JSON Schema."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar

import msgspec
import pytest

from dra_devkit.json_schema import json_schema
from dra_kubeletplugin import Claim, Config, Device, Driver, PreparedDevice, Quantity
from dra_kubeletplugin.driver.class_validation import check
from dra_kubeletplugin.errors import ConfigError, DriverError, DriverFailedError
from tests.helpers.parameters import decode

DRIVER = "gpu.example.com"


class Alpha(Config):
    KIND = "GpuConfig"
    API_VERSION = "gpu.example.com/v1alpha1"
    slice_ms: int = 10


class Beta(Config):
    KIND = "GpuConfig"
    API_VERSION = "gpu.example.com/v1beta1"
    OLDER = (Alpha,)
    time_slice: Literal["Short", "Long"] = "Short"

    @classmethod
    def convert_from(cls, older: Alpha, /) -> Beta:
        if older.slice_ms > 1000:
            raise ValueError(f"a slice of {older.slice_ms} ms is longer than Long")
        return cls(time_slice="Short" if older.slice_ms <= 20 else "Long")


class Stable(Config):
    KIND = "GpuConfig"
    API_VERSION = "gpu.example.com/v1"
    OLDER = (Beta,)
    long: bool = False

    @classmethod
    def convert_from(cls, older: Beta, /) -> Stable:
        return cls(long=older.time_slice == "Long")

    def check(self) -> None:
        if self.long:
            raise ValueError("long slices are not available")


def gpu(version: str, **fields: Any) -> dict[str, Any]:
    return {"apiVersion": f"{DRIVER}/{version}", "kind": "GpuConfig", **fields}


def entry(parameters: Any, source: str = "FromClaim") -> dict[str, Any]:
    return {"source": source, "requests": [], "opaque": {"driver": DRIVER, "parameters": parameters}}


@pytest.mark.parametrize("parameters", [gpu("v1alpha1", sliceMs=20), gpu("v1beta1", timeSlice="Short"), gpu("v1"), {}])
def test_every_version_is_accepted_and_the_driver_receives_the_newest(parameters: Any) -> None:
    assert decode(parameters, [Stable], DRIVER) == Stable(long=False)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (gpu("v1alpha1", sliceMS=20), "parameters: unknown field 'sliceMS', did you mean 'sliceMs'"),
        (gpu("v1alpha1", sliceMs=2000), "v1alpha1 GpuConfig as gpu.example.com/v1beta1 GpuConfig: a slice of 2000 ms"),
        (
            gpu("v1alpha1", sliceMs=200),
            "v1beta1 GpuConfig as gpu.example.com/v1 GpuConfig: parameters: long slices are",
        ),
        (
            gpu("v2"),
            "apiVersion: 'gpu.example.com/v2' is not known .*/v1 GpuConfig, .*v1beta1 GpuConfig, .*v1alpha1 GpuConfig",
        ),
    ],
)
def test_a_fault_is_reported_for_the_version_of_the_parameters(parameters: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        decode(parameters, [Stable], DRIVER)


def test_a_failing_conversion_is_an_error_of_the_driver_and_not_of_the_claim() -> None:
    class Broken(Config):
        OLDER = (Alpha,)
        API_VERSION = "gpu.example.com/v3"

        @classmethod
        def convert_from(cls, older: Alpha, /) -> Any:
            return older if older.slice_ms else older.missing  # type: ignore[attr-defined]

    with pytest.raises(DriverFailedError, match=r"convert_from\(\) of Broken raised AttributeError"):
        decode(gpu("v1alpha1", sliceMs=0), [Broken], DRIVER)
    with pytest.raises(DriverFailedError, match="returned Alpha: it must return Broken"):
        decode(gpu("v1alpha1"), [Broken], DRIVER)


class Inner(Config):
    size: Quantity = Quantity("1Gi")
    label: str = ""


class Described(Config):
    """A description."""

    KIND = "Described"
    API_VERSION = "gpu.example.com/v1"
    inner: Inner = Inner()


def test_a_schema_contains_defaults_descriptions_and_required_fields_of_the_kind() -> None:
    import jsonschema  # The import takes a second, so only these tests import the module.

    schema = json_schema(Described)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"] == "A description."
    assert schema["required"] == ["apiVersion", "kind"]
    assert schema["$defs"]["Inner"]["properties"]["size"]["default"] == "1Gi"


class One(Config, tag="one"):
    size: int
    unit: str = ""


class Two(Config, tag="two"):
    size: int


T = TypeVar("T")


class Box(msgspec.Struct, Generic[T]):
    value: T


class Boxes(Config):
    number: Box[int]
    text: Box[str]
    either: One | Two


def test_types_with_the_same_name_have_separate_schemas_and_a_schema_contains_the_tag() -> None:
    import jsonschema  # The import takes a second, so only these tests import the module.

    validator = jsonschema.Draft202012Validator(json_schema(Boxes))
    right = {"number": {"value": 1}, "text": {"value": "x"}, "either": {"type": "two", "size": 1}}
    assert decode(right, [Boxes], "gpu.example.com") and not list(validator.iter_errors(right))
    for wrong in ({"text": {"value": 1}}, {"either": {"size": 1}}, {"either": {"type": "three", "size": 1}}):
        assert list(validator.iter_errors(right | wrong))
        with pytest.raises(ConfigError):
            decode(right | wrong, [Boxes], "gpu.example.com")


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("method", ["check", "convert_from"])
def test_an_async_check_or_conversion_is_reported_at_the_start(method: str, nested: bool) -> None:
    async def async_method(*_: Any) -> None: ...

    body = {method: classmethod(async_method) if method == "convert_from" else async_method, "size": 1}
    kind = type("AsyncConfig", (Config,), {**body, "__annotations__": {"size": int}, "__module__": __name__})
    if nested:
        kind = type("Outer", (Config,), {"__annotations__": {"inner": list[kind]}, "__module__": __name__})  # type: ignore[valid-type]

    class Npu(Driver):
        name = "npu.example.com"
        config = kind

        def devices(self) -> list[Device]:
            return []

        def prepare(self, claim: Claim) -> list[PreparedDevice]:
            return []

    with pytest.raises(DriverError, match=rf"AsyncConfig.{method}\(\) is async"):
        check(Npu)
