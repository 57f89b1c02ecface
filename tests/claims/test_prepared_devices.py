"""Prepared devices that a driver returns: the contents of the record and the response, and the return values that are
refused.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

from dra_devkit.cdi.spec_validation import validate_spec
from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    ContainerEdits,
    Device,
    DeviceNode,
    DeviceStatus,
    Mount,
    PreparedDevice,
)
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.prepared_devices import PreparedResult, add_prepared, prepared_result
from dra_kubeletplugin.claims.record import allocated_json
from dra_kubeletplugin.errors import BadAnswerError, HostPathMissingError
from dra_kubeletplugin.host import Host
from tests.helpers.crash.record_stores import DRIVER

UID = "0b6a0c1e-0000-4000-8000-000000000001"


def allocated(name: str = "d-0", request: str = "r", **fields: Any) -> AllocatedDevice:
    defaults = {
        "share_id": None,
        "admin_access": False,
        "consumed_capacity": {},
        "config": None,
        "config_source": "",
    } | fields
    return AllocatedDevice(request=request, pool="node", name=name, published=Device(name), **defaults)


def completed_record(
    *devices: AllocatedDevice, returned: Any = None, host: Host | None = None, folder: Path = Path("/cdi")
) -> Record:
    """Returns the record after ``complete`` with the driver's return value; by default each device is prepared with an
    edit.
    """
    claim = Claim(namespace="ns", name="c", uid=UID, devices=devices)
    entries = [allocated_json(d) | {"takes": {}} for d in devices]
    record = Record(UID, "ns", "c", State.PREPARING, "boot", devices=entries)
    if returned is None:
        returned = [d.prepared(ContainerEdits(env={"X": d.name}), data={"n": 1}) for d in devices]
    add_prepared(record, claim, returned, ClaimSpecs(folder, DRIVER), host or Host())
    return record


def test_each_device_is_recorded_with_its_id_its_data_and_its_allocation() -> None:
    device_0, device_1 = allocated(), allocated("d-1", "s", share_id="x", admin_access=True)
    record = completed_record(
        device_0,
        device_1,
        returned=[device_1.prepared(), device_0.prepared(ContainerEdits(env={"X": "1"}), data={"n": 1})],
    )
    first, second = record.devices
    assert (first["device"], first["data"], first["takes"], len(first["cdi"])) == ("d-0", {"n": 1}, {}, 1)
    assert first["cdi"][0].startswith(f"k8s.{DRIVER}/claim={UID}")
    assert second == {"request": "s", "pool": "node", "device": "d-1", "shareID": "x", "adminAccess": True, "takes": {}}
    assert record.complete is True
    assert [d["containerEdits"]["env"] for d in (record.cdi or {})["devices"]] == [["X=1"]]
    assert prepared_result(record) == [
        PreparedResult(["r"], "node", "d-0", tuple(first["cdi"]), None),
        PreparedResult(["s"], "node", "d-1", (), "x"),
    ]


def test_a_claim_without_edits_has_no_spec_and_a_device_may_have_a_status_or_none() -> None:
    assert completed_record(allocated(), returned=[allocated().prepared(data={"n": 1})]).cdi is None
    for status in (None, DeviceStatus()):
        assert completed_record(allocated(), returned=changed(status=status)).devices


@pytest.mark.parametrize(
    ("requests", "edits", "replaced_values"),
    [
        (("r", "r"), [{"env": {"X": "1", "Y": "1"}}, {"env": {"X": "2", "Y": "1"}}], ["variable X of d-0, d-1"]),
        (("r/a", "r/b"), [{"env": {"X": "1"}}, {"env": {"X": "2"}}], ["variable X of d-0, d-1"]),
        (("r", "s"), [{"env": {"X": "1"}}, {"env": {"X": "2"}}], []),
        (("r", "r"), [{"env": {"X": "1"}}, {"env": {"X": "1", "Z": "2"}}], []),
        (
            ("r", "r"),
            [{"mounts": [Mount(host_path=f"/dev/{p}", container_path="/card")]} for p in ("null", "zero")],
            ["mount /card of d-0, d-1"],
        ),
        (
            ("r", "r"),
            [{"device_nodes": [DeviceNode(path="/dev/card", host_path=f"/dev/{p}")]} for p in ("null", "zero")],
            ["device node /dev/card of d-0, d-1"],
        ),
        (("r", "r"), [{"device_nodes": ["/dev/null"]}, {"device_nodes": ["/dev/null"]}], []),
    ],
)
def test_values_that_another_device_of_the_request_replaces_are_logged(
    requests: tuple[str, str], edits: list[dict[str, Any]], replaced_values: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    devices = [allocated(f"d-{i}", request) for i, request in enumerate(requests)]
    completed_record(*devices, returned=[d.prepared(ContainerEdits(**e)) for d, e in zip(devices, edits, strict=True)])
    text = "devices of one request set different values, of which a container gets only the last: "
    assert [r.getMessage() for r in caplog.records] == [text + sentence for sentence in replaced_values]


def changed(**fields: Any) -> list[PreparedDevice]:
    prepared = allocated().prepared()
    for name, value in fields.items():
        object.__setattr__(prepared, name, value)
    return [prepared]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (7, "prepare returned int, not a list of PreparedDevice"),
        (
            [7],
            "prepare returned a list with int, not PreparedDevice: return device.prepared(...) for each of claim.devices",
        ),
        (changed(pool=7), "whose names are not text: use AllocatedDevice.prepared()"),
        (changed(edits=None), "device d-0 with edits of type NoneType, not ContainerEdits"),
        (changed(edits={}), "device d-0 with edits of type dict, not ContainerEdits: write ContainerEdits(...)"),
        (changed(status={}), "device d-0 with status of type dict, not DeviceStatus"),
        (changed(metadata=None), "device d-0 with metadata of type NoneType, not Mapping"),
        (changed() * 2, "device d-0 twice for request r"),
        (changed(request="x"), "device d-0 of pool node for request 'x', which is not allocated to it"),
        (changed(share_id="s"), "device d-0 of pool node, share s, for request 'r', which is not allocated to it"),
        ([], "no entry for device d-0: return one for every device"),
        (changed(data={"x": {1}}), "device d-0: "),
    ],
)
def test_a_return_value_that_does_not_match_the_allocation_is_refused_with_the_next_step(
    returned: Any, message: str
) -> None:
    with pytest.raises(BadAnswerError) as caught:
        completed_record(allocated(), returned=returned)
    assert message in str(caught.value)
    assert str(caught.value).startswith("claim ns/c: ")


def test_a_share_that_no_runtime_accepts_in_a_name_is_refused() -> None:
    with pytest.raises(BadAnswerError, match="CDI edits that no runtime accepts"):
        completed_record(allocated(share_id="no share id"))


def test_devices_of_one_name_in_several_pools_and_requests_have_separate_cdi_devices() -> None:
    devices = [
        allocated(),
        dataclasses.replace(allocated(), pool="node/other"),
        allocated(request="s"),
        allocated(share_id="x"),
    ]
    record = completed_record(
        *devices, returned=[d.prepared(ContainerEdits(env={"X": f"{d.pool} {d.request}"})) for d in devices]
    )
    names = [f"{UID}-d-0", f"{UID}-d-0.2", f"{UID}-d-0.3", f"{UID}-d-0-x"]
    assert [d["cdi"] for d in record.devices] == [[f"k8s.{DRIVER}/claim={name}"] for name in names]
    spec = record.cdi
    validate_spec(spec)
    assert {d["name"]: d["containerEdits"]["env"] for d in spec["devices"]} == dict(
        zip(names, (["X=node r"], ["X=node/other r"], ["X=node s"], ["X=node r"]), strict=True)
    )


# --- paths on the host -------------------------------------------------------------------------------------


class FakeHost:
    """A host whose ``/dev`` is a folder of the test."""

    def __init__(self, top: Path, *, is_real: bool, in_sysfs: bool) -> None:
        self.sysfs = top / "sys"
        self.dev = self.sysfs / "dev" if in_sysfs else top / "dev"
        self.is_real = is_real
        self.dev.mkdir(parents=True)
        (self.dev / "card0").touch()
        (self.dev / "control").touch()
        (self.dev / "link").symlink_to("/nonexistent")


def error_for_path(host: FakeHost, path: str) -> str:
    mount = Mount(host_path=path, container_path="/x")
    try:
        completed_record(
            allocated(), returned=[allocated().prepared(ContainerEdits(mounts=[mount]))], host=cast(Host, host)
        )
    except HostPathMissingError as e:
        return str(e)
    return ""


INSTALL = "install what creates it on the host, such as its kernel driver, or correct the path"
DESCRIBED = "the host is a described host; add the path to its YAML file"


@pytest.mark.parametrize(
    ("is_real", "in_sysfs", "advice"),
    [(True, False, INSTALL), (False, False, INSTALL), (False, True, DESCRIBED), (True, True, INSTALL)],
)
def test_a_missing_path_is_refused_with_advice_for_the_kind_of_host_if_this_process_can_see_it(
    tmp_path: Path, is_real: bool, in_sysfs: bool, advice: str
) -> None:
    host = FakeHost(tmp_path, is_real=is_real, in_sysfs=in_sysfs)
    for path in ("/dev/card0", "/dev/./card0", "/dev/link", "/opt/x", "/dev/../opt/x"):
        assert error_for_path(host, path) == "", path
    message = error_for_path(host, "/dev/fpga7")
    assert message.startswith("claim ns/c: /dev/fpga7 of device d-0 is not on the host")
    assert advice in message
