"""The results of a driver are validated immediately. Errors name the field, and valid results are recorded unchanged."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, Config, ContainerEdits, Device, DeviceNode, Hook, Mount, NetDevice, PreparedDevice
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.prepared_devices import add_prepared
from dra_kubeletplugin.claims.record import Record, State
from dra_kubeletplugin.driver import AllocatedDevice
from dra_kubeletplugin.errors import (
    BadAnswerError,
    ConfigError,
    DraError,
    DriverFailedError,
    HostPathMissingError,
    InvalidSpecError,
    PermanentError,
)
from dra_kubeletplugin.host import Host
from tests.helpers.parameters import resolve

UID = "11111111-2222-3333-4444-555555555555"
DEVICE = AllocatedDevice(
    request="r", pool="p", name="d", share_id=None, admin_access=False, consumed_capacity={}, config=None, config_source="",
    published=Device("d"),
)  # fmt: skip
CLAIM = Claim(namespace="ns", name="n", uid=UID, devices=(DEVICE,))


def record_of(result: Any, dev: Path = Path("/dev"), claim: Claim = CLAIM) -> Record:
    record = Record(UID, "ns", "n", State.PREPARING, "boot")
    add_prepared(record, claim, result, ClaimSpecs(Path("/nowhere"), "x.example.com"), Host(dev=dev))
    return record


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"mounts": [Mount(host_path="lib", container_path="/lib")]}, r"mounts\[0\].host_path 'lib' must be an absolute path"),
        ({"mounts": [Mount(host_path="/lib", container_path="lib")]}, r"mounts\[0\].container_path 'lib' must be an abs"),
        ({"mounts": [Mount(host_path="x", container_path="/x", type="none", options=["rbind"])]}, r"host_path 'x' must be"),
        ({"hooks": [Hook(hook_name="createContainer", path="nvidia-ctk")]}, r"hooks\[0\].path 'nvidia-ctk' must be an abs"),
        ({"device_nodes": ["/dev/a", "b"]}, r"device_nodes\[1\] 'b' must be an absolute path"),
        ({"device_nodes": [DeviceNode(path="/dev/a", host_path="b")]}, r"device_nodes\[0\] 'b' must be an absolute path"),
        ({"device_nodes": [None]}, r"device_nodes\[0\] must be a DeviceNode, not NoneType"),
        ({"mounts": ["/lib"]}, r"mounts\[0\] must be a Mount, not str"),
        ({"mounts": [Mount(host_path=5, container_path="/x")]}, r"Mount: .*Expected `str`, got `int` - at `\$.hostPath`"),  # type: ignore[arg-type]
        ({"mounts": [Mount(host_path=object(), container_path="/x")]}, "Mount: "),  # type: ignore[arg-type]
        ({"env": {"A": "\ud800"}}, r"env\[0\] 'A=\\ud800' is not valid Unicode"),
        ({"env": {"A": "x\0y"}}, r"env\[0\] 'A=x\\x00y' must not contain a NUL"),
        ({"env": {"A=B": "x"}}, "must not contain '='"),
        ({"env": {1: "x"}}, "env name 1 must be text"),
        ({"env": ["A=b"]}, "env must be a mapping of names to values, not list"),
        ({"device_nodes": "/dev/a"}, "device_nodes must be a list, not str"),
        ({"device_nodes": DeviceNode(path="/dev/a")}, "device_nodes must be a list, not DeviceNode"),
        ({"mounts": Mount(host_path="/a", container_path="/a")}, "mounts must be a list, not Mount"),
        ({"mounts": [Mount(host_path="/a", container_path="/a", options="ro")]}, r"Mount: .*Expected `array`, got `str` - at `\$.options`"),
        ({"additional_gids": 5}, "additional_gids must be a list, not int"),
        ({"mounts": [Mount(host_path="/a\0", container_path="/x")]}, r"mounts\[0\].hostPath .* must not contain a NUL"),
        ({"net_devices": [NetDevice(host_interface_name="e\udc80", name="e")]}, r"netDevices\[0\].hostInterfaceName"),
        ({"hooks": [Hook(hook_name="createContainer", path="/x", args=["\0"])]}, r"hooks\[0\].args\[0\]"),
        ({"intel_rdt": {"closID": "\ud800"}}, "intelRdt.closID"),
        ({"intel_rdt": {"closId": "c"}}, "unknown field `closId`"),
        ({"intel_rdt": {"schemata": ("L3:0=f\0",)}}, r"intelRdt.schemata\[0\] .* must not contain a NUL"),
        ({"device_nodes": [DeviceNode(path="/a", gid=-1)]}, r"Expected `int` >= 0 - at `\$.gid`"),
        ({"additional_gids": ["x"]}, r"Expected `int`, got `str` - at `\$.additionalGids\[0\]`"),
    ],
)  # fmt: skip
def test_invalid_edits_are_rejected_when_they_are_created(edits: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message) as raised:
        ContainerEdits(**edits)
    str(raised.value).encode()


def test_a_mount_of_a_host_path_is_a_bind_mount_by_default() -> None:
    """Without a type or an option, runc mounts a file system without a name and fails with "no such device"."""
    mounts = {
        "bare": Mount(host_path="/a", container_path="/x"),
        "read-only": Mount(host_path="/a", container_path="/x", options=("ro",)),
        "explicit": Mount(host_path="/a", container_path="/x", options=["rbind", "ro"]),
        "typed": Mount(host_path="/a", container_path="/x", type="bind"),
        "other": Mount(host_path="tmpfs", container_path="/x", type="tmpfs"),
    }
    built = {name: ContainerEdits(mounts=[mount]).json()["mounts"][0].get("options") for name, mount in mounts.items()}
    assert built == {
        "bare": ["bind"],
        "read-only": ["ro", "bind"],
        "explicit": ["rbind", "ro"],
        "typed": None,
        "other": None,
    }


def test_the_source_of_a_tmpfs_mount_is_not_a_host_path() -> None:
    edits = ContainerEdits(mounts=[Mount(host_path="tmpfs", container_path="/x", type="tmpfs")])
    assert list(edits.host_paths()) == []
    assert record_of([DEVICE.prepared(edits)]).cdi


@given(st.dictionaries(st.text(max_size=5), st.text(st.characters(exclude_categories=()), max_size=5), max_size=3))
def test_any_environment_is_kept_unchanged_or_rejected(env: dict[str, str]) -> None:
    try:
        edits = ContainerEdits(env=env)
    except InvalidSpecError as e:
        e.event().encode()
    else:
        assert edits.json().get("env", []) == [f"{k}={v}" for k, v in env.items()]


@pytest.mark.parametrize("kind", ["node", "mount", "hook"])
def test_each_host_path_of_a_container_must_exist(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "host-file"
    edits = {
        "node": ContainerEdits(device_nodes=[DeviceNode(path="/dev/x", host_path=str(path))]),
        "mount": ContainerEdits(mounts=[Mount(host_path=str(path), container_path="/x")]),
        "hook": ContainerEdits(hooks=[Hook(hook_name="createContainer", path=str(path))]),
    }[kind]
    with pytest.raises(HostPathMissingError, match="host-file of device d is not on the host"):
        record_of([DEVICE.prepared(edits)])
    path.symlink_to("/only/the/host/sees/this")
    assert record_of([DEVICE.prepared(edits)]).cdi


def test_in_a_container_only_paths_below_dev_are_checked(tmp_path: Path) -> None:
    outside = ContainerEdits(
        mounts=[Mount(host_path="/opt/vendor/lib", container_path="/x")],
        hooks=[Hook(hook_name="createContainer", path="/opt/vendor/hook")],
    )
    assert record_of([DEVICE.prepared(outside)], tmp_path).cdi
    for path in ("/dev/toy/0", "/dev//toy/./0", "/dev/x/../toy/0"):
        inside = DEVICE.prepared(ContainerEdits(mounts=[Mount(host_path=path, container_path="/x")]))
        with pytest.raises(HostPathMissingError):
            record_of([inside], tmp_path)
        (tmp_path / "toy").mkdir()
        (tmp_path / "toy/0").touch()
        assert record_of([inside], tmp_path).cdi
        (tmp_path / "toy/0").unlink()
        (tmp_path / "toy").rmdir()


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (None, "prepare returned NoneType, not a list of PreparedDevice"),
        (5, "prepare returned int, not a list"),
        ([], "returned no entry for device d"),
        (["d"], "prepare returned a list with str, not PreparedDevice: return device.prepared"),
        ([DEVICE.prepared()] * 2, "returned device d twice"),
        (
            [DEVICE.prepared(), PreparedDevice(request="r", pool="p", name="e")],
            "device e of pool p for request 'r', which is not allocated",
        ),
        ([PreparedDevice(request="r", pool="p", name=["d"])], "a PreparedDevice whose names are not text"),  # type: ignore[arg-type]
        (
            [PreparedDevice(request="r", pool="p", name="d", edits={})],
            "device d with edits of type dict, not ContainerEdits",
        ),  # type: ignore[arg-type]
        (
            [PreparedDevice(request="r", pool="p", name="d", status={})],
            "device d with status of type dict, not DeviceStatus",
        ),  # type: ignore[arg-type]
        ([DEVICE.prepared(data={"a": b"x"})], "device d: data.a is of type bytes"),
        ([DEVICE.prepared(data={"a": float("inf")})], "device d: data.a is inf"),
        ([DEVICE.prepared(data="\ud800")], "device d: data is not valid Unicode"),
        ([DEVICE.prepared(data="x" * 70_000)], "device d: data is too large: 70,002 bytes"),
    ],
)
def test_an_invalid_result_is_an_error_with_its_device_or_field(result: Any, message: str) -> None:
    with pytest.raises(BadAnswerError, match=message) as raised:
        record_of(result)
    assert str(raised.value).startswith("claim ns/n: ")


def test_the_record_contains_data_and_devices() -> None:
    record = record_of([DEVICE.prepared(ContainerEdits(env={"A": "ü"}), data={"a": (1, None)})])
    (device,) = record.devices
    assert device["data"] == {"a": [1, None]}
    assert record.cdi and record.cdi["devices"][0]["containerEdits"] == {"env": ["A=ü"]}
    assert record_of([DEVICE.prepared()]).cdi is None
    admin = dataclasses.replace(DEVICE, admin_access=True)
    (device,) = record_of([admin.prepared()], claim=dataclasses.replace(CLAIM, devices=(admin,))).devices
    assert device["adminAccess"] is True


class Parameters(Config):
    KIND = "Parameters"
    API_VERSION = "odd.example.com/v1"
    colour: Literal["red"] = "red"
    name: str = ""

    def check(self) -> None:
        match self.name:
            case "value":
                raise ValueError("it \x00 \x1b[2J")
            case "exit":
                raise SystemExit(0)
            case "key":
                raise KeyError("name")
            case "package error":
                raise PermanentError("never")


@pytest.mark.parametrize(
    ("parameters", "error", "message"),
    [
        ({"name": "\ud800"}, ConfigError, "parameters.name is not valid Unicode"),
        ({"\ud800": 1}, ConfigError, "is not valid Unicode"),
        ({"kind": "\udfff"}, ConfigError, "parameters.kind is not valid Unicode"),
        ({"name": "value"}, ConfigError, "parameters: it "),
        ({"name": "exit"}, DriverFailedError, "the checks of Parameters raised SystemExit: 0"),
        ({"name": "key"}, DriverFailedError, "the checks of Parameters raised KeyError: 'name'"),
        ({"name": "package error"}, PermanentError, "never"),
    ],
)
def test_errors_for_parameters_and_their_checks_can_be_encoded(
    parameters: Any, error: type[DraError], message: str
) -> None:
    entries = [{"source": "FromClaim", "opaque": {"driver": "odd.example.com", "parameters": parameters}}]
    with pytest.raises(error, match=message) as raised:
        resolve(entries, [Parameters], "odd.example.com", "r")
    raised.value.event().encode()
