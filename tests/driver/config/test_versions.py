"""Older versions of parameters are converted, a claim's layer is merged over its class, and a kind has a JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Generic, Literal, TypeVar

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_devkit.json_schema import json_schema
from dra_kubeletplugin import Capacity, Claim, Config, Device, Driver, PreparedDevice, Quantity, Version
from dra_kubeletplugin.driver.class_validation import check
from dra_kubeletplugin.errors import ConfigError, DriverError, DriverFailedError
from tests.helpers.parameters import decode, resolve, validate

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
    assert decode(parameters, [Stable], DRIVER, "config[0]") == Stable(long=False)


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
        decode(parameters, [Stable], DRIVER, "config[0]")


def test_a_failing_conversion_is_an_error_of_the_driver_and_not_of_the_claim() -> None:
    class Broken(Config):
        OLDER = (Alpha,)
        API_VERSION = "gpu.example.com/v3"

        @classmethod
        def convert_from(cls, older: Alpha, /) -> Any:
            return older if older.slice_ms else older.missing  # type: ignore[attr-defined]

    with pytest.raises(DriverFailedError, match=r"convert_from\(\) of Broken raised AttributeError"):
        decode(gpu("v1alpha1", sliceMs=0), [Broken], DRIVER, "config[0]")
    with pytest.raises(DriverFailedError, match="returned Alpha: it must return Broken"):
        decode(gpu("v1alpha1"), [Broken], DRIVER, "config[0]")


def test_a_kind_with_older_versions_and_no_conversion_is_reported_at_the_start() -> None:
    class WithoutConversion(Config):
        OLDER = (Alpha,)

    class InvalidOlder(Config):
        OLDER = (int,)  # type: ignore[assignment]

    for kind, message in (
        (WithoutConversion, r"has no convert_from\(cls, older\)"),
        (InvalidOlder, "InvalidOlder.OLDER is .*int.*: set it to a subclass"),
    ):
        driver = type("Gpu", (Driver,), {"devices": lambda self: [], "prepare": lambda self, claim: [], "config": kind})
        with pytest.raises(DriverError, match=message):
            check(driver)


class Inner(Config):
    size: Quantity = Quantity("1Gi")
    label: str = ""


class Layered(Config):
    LAYERED = True
    mode: Literal["a", "b"]
    inner: Inner = Inner()
    sizes: Sequence[int] = ()


def test_a_claim_is_merged_over_its_class_field_by_field() -> None:
    entries = [
        entry({"mode": "a", "inner": {"size": "2Gi", "label": "x"}, "sizes": [1, 2]}, "FromClass"),
        entry({"inner": {"size": "3Gi", "label": None}, "sizes": [3]}),
    ]
    wanted = Layered(mode="a", inner=Inner(size=Quantity("3Gi")), sizes=[3])
    assert resolve(entries, [Layered], DRIVER, "r") == (wanted, "FromClaim")


def test_a_single_layer_may_omit_required_fields_but_not_misspell_fields() -> None:
    validate({"sizes": [1]}, [Layered], DRIVER, "config[0]")
    with pytest.raises(ConfigError, match=r"config\[0\]: parameters: unknown field 'size', did you mean 'sizes'"):
        validate({"size": [1]}, [Layered], DRIVER, "config[0]")
    with pytest.raises(ConfigError, match="missing required field 'mode'"):
        resolve([entry({"sizes": [1]})], [Layered], DRIVER, "r")


def test_a_fault_in_one_layer_is_reported_with_that_layer() -> None:
    with pytest.raises(ConfigError, match=r"config\[0\] \(FromClass\): parameters.sizes"):
        resolve([entry({"mode": "a", "sizes": "x"}, "FromClass"), entry({"sizes": [1]})], [Layered], DRIVER, "r")


# --- layers in several versions ----------------------------------------------------------------------


class First(Config):
    KIND, API_VERSION, LAYERED = "Clock", "gpu.example.com/v1alpha1", True
    mhz: int = 1000
    name: str = ""
    inner: Inner = Inner()


class Second(Config):
    KIND, API_VERSION, LAYERED, OLDER = "Clock", "gpu.example.com/v1beta1", True, (First,)
    speed: Literal["Low", "High"] = "Low"
    name: str = ""
    inner: Inner = Inner()

    @classmethod
    def convert_from(cls, older: First, /) -> Second:
        return cls(speed="High" if older.mhz > 2000 else "Low", name=older.name, inner=older.inner)


class Third(Config):
    KIND, API_VERSION, LAYERED, OLDER = "Clock", "gpu.example.com/v1", True, (Second,)
    fast: bool = False
    name: str = ""
    inner: Inner = Inner()
    burst: bool = False

    @classmethod
    def convert_from(cls, older: Second, /) -> Third:
        return cls(fast=older.speed == "High", name=older.name, inner=older.inner)

    def check(self) -> None:
        if self.burst and not self.fast:
            raise ValueError("burst needs fast")


SPEED = {
    "v1alpha1": lambda fast: {"mhz": 3000 if fast else 1000},
    "v1beta1": lambda fast: {"speed": "High" if fast else "Low"},
    "v1": lambda fast: {"fast": fast},
}
layer_fields = st.fixed_dictionaries(
    {},
    optional={"fast": st.booleans(), "name": st.sampled_from(["", "a", "b"]), "label": st.sampled_from(["", "x", "y"])},
)


def clock(version: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parameters with ``fields`` in the form of a version."""
    out: dict[str, Any] = {"apiVersion": f"{DRIVER}/{version}", "kind": "Clock"}
    if "fast" in fields:
        out |= SPEED[version](fields["fast"])
    if "name" in fields:
        out["name"] = fields["name"]
    if "label" in fields:
        out["inner"] = {"label": fields["label"]}
    return out


@given(st.lists(st.tuples(st.sampled_from(sorted(SPEED)), layer_fields), min_size=1, max_size=4))
def test_layers_in_any_versions_are_merged_to_the_fields_that_they_set(
    layers: list[tuple[str, dict[str, Any]]],
) -> None:
    entries = [entry(clock(version, fields), "FromClass") for version, fields in layers]
    wanted: dict[str, Any] = {"fast": False, "name": "", "label": ""}
    mixed = False
    for i, (version, fields) in enumerate(layers):
        mixed = mixed or version != layers[0][0]
        for name, value in fields.items():
            # If an older version names the field differently, its default value cannot be distinguished from an omitted field.
            if name == "fast" and i and mixed and version != "v1" and not value:
                continue
            wanted[name] = value
    config, _ = resolve(entries, [Third], DRIVER, "r")
    assert config == Third(fast=wanted["fast"], name=wanted["name"], inner=Inner(label=wanted["label"]))


def test_the_checks_of_the_newest_version_apply_to_the_merged_layers() -> None:
    fast, burst = clock("v1alpha1", {"fast": True}), {**clock("v1", {}), "burst": True}
    for entries in ([entry(fast, "FromClass"), entry(burst)], [entry(burst, "FromClass"), entry(fast)]):
        assert resolve(entries, [Third], DRIVER, "r")[0] == Third(fast=True, burst=True)
    with pytest.raises(ConfigError, match=r"^parameters: burst needs fast \(burst from config\[1\] \(FromClaim\)\)$"):
        resolve([entry(clock("v1alpha1", {"fast": False}), "FromClass"), entry(burst)], [Third], DRIVER, "r")


def test_a_layer_that_cannot_be_converted_is_reported_with_its_index() -> None:
    class Strict(Config):
        KIND, API_VERSION, LAYERED = "Clock", "gpu.example.com/v1alpha1", True
        mhz: int

    class New(Config):
        KIND, API_VERSION, LAYERED, OLDER = "Clock", "gpu.example.com/v1", True, (Strict,)
        fast: bool = False
        burst: bool = False

        @classmethod
        def convert_from(cls, older: Strict, /) -> New:
            return cls(fast=older.mhz > 2000)

    old, new = clock("v1alpha1", {"fast": True}), {**clock("v1", {}), "burst": True}
    assert resolve([entry(old, "FromClass"), entry(new)], [New], DRIVER, "r")[0] == New(fast=True, burst=True)
    assert resolve([entry(new, "FromClass"), entry(old)], [New], DRIVER, "r")[0] == New(
        fast=True
    )  # The older layer sets all fields.
    for entries in (
        [entry(clock("v1alpha1", {}), "FromClass"), entry(new)],
        [entry(new, "FromClass"), entry(clock("v1alpha1", {}))],
    ):
        at = next(i for i, e in enumerate(entries) if e["opaque"]["parameters"]["apiVersion"].endswith("v1alpha1"))
        with pytest.raises(ConfigError, match=rf"config\[{at}\] .*missing required field 'mhz'"):
            resolve(entries, [New], DRIVER, "r")


def test_a_single_layer_may_reset_a_field_to_its_default() -> None:
    config, _ = resolve([entry({**clock("v1", {}), "name": None})], [Third], DRIVER, "r")
    assert config == Third()


def test_an_unlayered_older_version_replaces_lower_layers_and_accepts_higher_ones() -> None:
    class Plain(Config):
        KIND, API_VERSION = "Clock", "gpu.example.com/v0"
        name: str = ""

    class Layer(Config):
        KIND, API_VERSION, LAYERED, OLDER = "Clock", "gpu.example.com/v1", True, (Plain,)
        name: str = ""
        fast: bool = False

        @classmethod
        def convert_from(cls, older: Plain, /) -> Layer:
            return cls(name=older.name)

    plain, layer = clock("v0", {"name": "a"}), {**clock("v1", {}), "fast": True}
    assert resolve([entry(plain, "FromClass"), entry(layer)], [Layer], DRIVER, "r")[0] == Layer(name="a", fast=True)
    assert resolve([entry(layer, "FromClass"), entry(plain)], [Layer], DRIVER, "r")[0] == Layer(name="a")


class AllFeatures(Config):
    """All features of a schema."""

    KIND = "AllFeatures"
    API_VERSION = "gpu.example.com/v1"
    mode: Literal["a", "b"] = "a"
    count: Annotated[int, msgspec.Meta(ge=1, le=8)] = 1
    ratio: float | None = None
    name: Annotated[str, msgspec.Meta(max_length=3)] = ""
    tags: Mapping[str, str] = msgspec.field(default_factory=dict)
    inner: Inner = Inner()
    memory: Capacity | None = None
    firmware: Version | None = None
    pair: tuple[int, bool] | None = None


_leaf = (
    st.none()
    | st.booleans()
    | st.integers(-2, 10)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["a", "b", "abcd", "1Gi", "x", "1.2.3"])
)
_value = st.recursive(
    _leaf,
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(st.sampled_from(["size", "label", "value", "k"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from(["mode", "count", "ratio", "name", "tags", "inner", "pair", "other"]), _value))
def test_the_schema_accepts_the_same_parameters_as_the_decoder(fields: dict[str, Any]) -> None:
    import jsonschema  # The import takes a second, so only these tests import the module.

    parameters = {"apiVersion": AllFeatures.API_VERSION, "kind": AllFeatures.KIND, **fields}
    try:
        validate(parameters, [AllFeatures], DRIVER, "config[0]")
        right = True
    except ConfigError:
        right = False
    assert jsonschema.Draft202012Validator(json_schema(AllFeatures)).is_valid(parameters) is right


def test_a_schema_contains_defaults_descriptions_and_required_fields_of_the_kind() -> None:
    import jsonschema  # The import takes a second, so only these tests import the module.

    schema = json_schema(AllFeatures)
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema["description"] == "All features of a schema."
    assert schema["required"] == ["apiVersion", "kind"]
    assert schema["$defs"]["Inner"]["properties"]["size"]["default"] == "1Gi"
    assert json_schema(Layered)["required"] == []


class One(Config, tag="one"):
    size: int
    unit: str = ""


class Two(Config, tag="two"):
    size: int


class Layers(Config):
    LAYERED = True
    inner: Inner
    either: One | Two
    named: Mapping[str, One] = msgspec.field(default_factory=dict)
    several: Sequence[Two] = ()


FROM_CLASS = {"inner": {"label": "a"}, "either": {"type": "one", "size": 1}, "named": {"k": {"type": "one", "size": 1}}}


def test_nested_objects_are_merged_over_those_of_the_class() -> None:
    import jsonschema  # The import takes a second, so only these tests import the module.

    claim_layer = {"either": {"unit": "x"}, "named": {"k": {"unit": "y"}}}
    parameters = [entry(FROM_CLASS, "FromClass"), entry(claim_layer)]
    config, _ = resolve(parameters, [Layers], "gpu.example.com", "r")
    assert isinstance(config, Layers)
    assert config.either == One(size=1, unit="x") and config.named == {"k": One(size=1, unit="y")}
    assert not list(jsonschema.Draft202012Validator(json_schema(Layers)).iter_errors(claim_layer))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"either": {"type": "three"}}, "parameters.either.type: Invalid value 'three'"),
        ({"either": {"type": "one", "size": "x"}}, "parameters.either.size: Expected `int`, got `str`"),
        ({"named": {"k": {"type": "one", "siz": 1}}}, "unknown field 'siz', did you mean 'size'?"),
        ({"named": {"k": 7}}, "Expected `object`, got `int`"),
        ({"several": [{"type": "two"}]}, "parameters.several[0]: missing required field 'size'"),
    ],
)
def test_a_fault_within_a_layer_is_reported_with_its_path(parameters: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as e:
        validate(parameters, [Layers], "gpu.example.com", "x")
    assert message in e.value.message


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
    assert decode(right, [Boxes], "gpu.example.com", "x") and not list(validator.iter_errors(right))
    for wrong in ({"text": {"value": 1}}, {"either": {"size": 1}}, {"either": {"type": "three", "size": 1}}):
        assert list(validator.iter_errors(right | wrong))
        with pytest.raises(ConfigError):
            decode(right | wrong, [Boxes], "gpu.example.com", "x")


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
