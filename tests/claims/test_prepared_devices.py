"""A driver's prepared devices, one by one: what the record and the response contain, and which answers are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, cast

import pytest

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
from dra_kubeletplugin.cdi import ClaimSpecs, validate_spec
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims import prepared_devices as module
from dra_kubeletplugin.claims.prepared_devices import PreparedResult, complete, prepared_result
from dra_kubeletplugin.claims.record import allocated_json
from dra_kubeletplugin.errors import BadAnswerError, HostPathMissingError
from dra_kubeletplugin.host import Host
from tests.helpers.crash.record_stores import DRIVER

UID = "0b6a0c1e-0000-4000-8000-000000000001"


def allocated(name: str = "d-0", request: str = "r", **more: Any) -> AllocatedDevice:
    fields = {
        "share_id": None,
        "admin_access": False,
        "consumed_capacity": {},
        "config": None,
        "config_source": "",
    } | more
    return AllocatedDevice(request=request, pool="node", name=name, device=Device(name), **fields)


def done(
    *devices: AllocatedDevice, answer: Any = None, host: Host | None = None, folder: Path = Path("/cdi")
) -> Record:
    """The record after ``complete`` with the driver's answer; by default each device is prepared with an edit."""
    claim = Claim(namespace="ns", name="c", uid=UID, devices=devices)
    entries = [allocated_json(d) | {"takes": {}} for d in devices]
    record = Record(UID, "ns", "c", State.PREPARING, "boot", doc={"devices": entries})
    if answer is None:
        answer = [d.prepared(ContainerEdits(env={"X": d.name}), data={"n": 1}) for d in devices]
    complete(record, claim, answer, ClaimSpecs(folder, DRIVER), host or Host())
    return record


def test_each_device_is_recorded_with_its_id_its_data_and_what_was_known_of_it() -> None:
    one, two = allocated(), allocated("d-1", "s", share_id="x", admin_access=True)
    record = done(one, two, answer=[two.prepared(), one.prepared(ContainerEdits(env={"X": "1"}), data={"n": 1})])
    first, second = record.devices
    assert (first["device"], first["data"], first["takes"], len(first["cdi"])) == ("d-0", {"n": 1}, {}, 1)
    assert first["cdi"][0].startswith(f"k8s.{DRIVER}/claim={UID}")
    assert second == {"request": "s", "pool": "node", "device": "d-1", "shareID": "x", "adminAccess": True, "takes": {}}
    assert record.doc["complete"] is True
    assert [d["containerEdits"]["env"] for d in record.doc["cdi"]["devices"]] == [["X=1"]]
    assert prepared_result(record) == [
        PreparedResult(["r"], "node", "d-0", tuple(first["cdi"]), None),
        PreparedResult(["s"], "node", "d-1", (), "x"),
    ]


def test_a_claim_without_edits_has_no_spec() -> None:
    assert done(allocated(), answer=[allocated().prepared(data={"n": 1})]).doc["cdi"] is None


@pytest.mark.parametrize(
    ("requests", "edits", "lost"),
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
    requests: tuple[str, str], edits: list[dict[str, Any]], lost: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    devices = [allocated(f"d-{i}", request) for i, request in enumerate(requests)]
    done(*devices, answer=[d.prepared(ContainerEdits(**e)) for d, e in zip(devices, edits, strict=True)])
    text = "devices of one request set different values, of which a container gets only the last: "
    assert [r.getMessage() for r in caplog.records] == [text + sentence for sentence in lost]


def changed(**fields: Any) -> list[PreparedDevice]:
    prepared = allocated().prepared()
    for name, value in fields.items():
        object.__setattr__(prepared, name, value)
    return [prepared]


@pytest.mark.parametrize(
    ("answer", "says"),
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
def test_an_answer_that_does_not_match_the_allocation_is_refused_with_what_to_write(answer: Any, says: str) -> None:
    with pytest.raises(BadAnswerError) as caught:
        done(allocated(), answer=answer)
    assert says in str(caught.value)
    assert str(caught.value).startswith("claim ns/c: ")


def test_a_share_that_no_runtime_accepts_in_a_name_is_refused() -> None:
    with pytest.raises(BadAnswerError, match="CDI edits that no runtime accepts"):
        done(allocated(share_id="no share id"))


def test_devices_of_one_name_in_several_pools_and_requests_have_cdi_devices_of_their_own() -> None:
    devices = [
        allocated(),
        dataclasses.replace(allocated(), pool="node/other"),
        allocated(request="s"),
        allocated(share_id="x"),
    ]
    record = done(*devices, answer=[d.prepared(ContainerEdits(env={"X": f"{d.pool} {d.request}"})) for d in devices])
    names = [f"{UID}-d-0", f"{UID}-d-0.2", f"{UID}-d-0.3", f"{UID}-d-0-x"]
    assert [d["cdi"] for d in record.devices] == [[f"k8s.{DRIVER}/claim={name}"] for name in names]
    spec = record.doc["cdi"]
    validate_spec(spec)
    assert {d["name"]: d["containerEdits"]["env"] for d in spec["devices"]} == dict(
        zip(names, (["X=node r"], ["X=node/other r"], ["X=node s"], ["X=node r"]), strict=True)
    )


def test_a_status_may_be_missing_and_is_accepted_where_it_is_one() -> None:
    assert done(allocated(), answer=changed(status=None)).devices
    assert done(allocated(), answer=changed(status=DeviceStatus())).devices


# --- paths on the host -------------------------------------------------------------------------------------


class Machine:
    """A host whose ``/dev`` is a folder of the test."""

    def __init__(self, top: Path, *, is_real: bool, in_sysfs: bool) -> None:
        self.sysfs = top / "sys"
        self.dev = self.sysfs / "dev" if in_sysfs else top / "dev"
        self.is_real = is_real
        self.dev.mkdir(parents=True)
        (self.dev / "card0").touch()
        (self.dev / "control").touch()
        (self.dev / "link").symlink_to("/nonexistent")


def refused(host: Machine, path: str) -> str:
    try:
        done(allocated(), answer=[allocated().prepared(ContainerEdits(device_nodes=[path]))], host=cast(Host, host))
    except HostPathMissingError as e:
        return str(e)
    return ""


INSTALL = "install what creates it on the host, such as its kernel driver, or correct the path"
DESCRIBED = "the host is a described host; add the path to its YAML file"


@pytest.mark.parametrize(
    ("is_real", "in_sysfs", "advice"),
    [(True, False, INSTALL), (False, False, INSTALL), (False, True, DESCRIBED), (True, True, INSTALL)],
)
def test_a_device_node_that_is_missing_is_refused_with_advice_for_the_kind_of_host(
    tmp_path: Path, is_real: bool, in_sysfs: bool, advice: str
) -> None:
    host = Machine(tmp_path, is_real=is_real, in_sysfs=in_sysfs)
    for path in ("/dev/card0", "/dev/./card0", "/dev/link"):
        assert refused(host, path) == "", path
    found = refused(host, "/dev/fpga7")
    assert found.startswith("claim ns/c: /dev/fpga7 of device d-0 is not on the host")
    assert advice in found
    # A name that differs only in a number is another card.
    assert "did you mean" not in refused(host, "/dev/card1")
    assert "did you mean 'control'?" in refused(host, "/dev/contrl")
    assert advice in refused(host, "/dev/missing/folder/card0")


def test_paths_that_this_process_cannot_see_are_not_checked(tmp_path: Path) -> None:
    assert module._seen("/opt/x", tmp_path) is None
    assert module._seen("/dev/../opt/x", tmp_path) is None
    assert module._seen("/dev/x", tmp_path) == tmp_path / "x"
    assert module._seen("/opt/x", Path("/dev")) == Path("/opt/x")
