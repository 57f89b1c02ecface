"""Device metadata files: part of a claim's record, never left, never half written, never missing for a prepared claim."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    Device,
    DeviceStatus,
    NetworkData,
    PreparedDevice,
    Version,
    metadata,
)
from dra_kubeletplugin.cdi import ClaimSpecs, validate_spec
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.claim_files import ClaimFiles, note_of, record_of
from dra_kubeletplugin.claims.metadata_files import MetadataFiles, updated
from dra_kubeletplugin.claims.prepared_devices import complete
from dra_kubeletplugin.claims.record import allocated_json, check_doc
from dra_kubeletplugin.driver import MetadataUpdate
from dra_kubeletplugin.errors import BadAnswerError, DriverError, RecordsError
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.metadata.document import decode
from tests.helpers.crash.record_stores import DRIVER

UID = "0b6a0c1e-0000-4000-8000-000000000001"
OTHER = "0b6a0c1e-0000-4000-8000-000000000002"


def device(request: str = "gpu/large", name: str = "gpu-0", **attributes: Any) -> AllocatedDevice:
    return AllocatedDevice(
        request=request, pool="node", name=name, share_id=None, admin_access=False, consumed_capacity={}, config=None,
        config_source="", device=Device(name, attributes={"model": "A", **attributes}),
    )  # fmt: skip


def claim_of(*devices: AllocatedDevice, uid: str = UID, pod_claim: str = "mine") -> Claim:
    annotations = {"resource.kubernetes.io/pod-claim-name": pod_claim} if pod_claim else {}
    return Claim(namespace="ns", name="c", uid=uid, devices=devices, object={"metadata": {"annotations": annotations}})


def prepared(claim: Claim, specs: ClaimSpecs, **more: Any) -> Record:
    entries = [allocated_json(d) for d in claim.devices]
    record = Record(
        claim.uid, "ns", "c", State.PREPARED, "boot", doc={"devices": entries, "complete": True, "cdi": None}
    )
    metadata = MetadataFiles(specs.root.parent / "plugin", specs.driver)
    complete(record, claim, [d.prepared(**more) for d in claim.devices], specs, Host(), metadata)
    return record


class Place:
    def __init__(self, top: Path) -> None:
        self.cdi, self.plugin = top / "cdi", top / "plugin"
        self.cdi.mkdir()
        self.plugin.mkdir()
        self.specs = ClaimSpecs(self.cdi, DRIVER, "token")
        self.metadata = MetadataFiles(self.plugin, DRIVER)
        self.files = ClaimFiles(self.specs, self.metadata)

    def all(self) -> list[str]:
        return sorted(str(p) for top in (self.cdi, self.plugin) for p in top.rglob("*") if not p.is_dir())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_each_request_has_a_file_and_a_cdi_device_whose_id_goes_with_its_first_device(place: Place) -> None:
    claim = claim_of(device(), device(name="gpu-1"), device("nic", "eth-0", speed=Version("1.0.0")))
    status = DeviceStatus(network_data=NetworkData(interface_name="eth1"))
    record = prepared(claim, place.specs, status=status, metadata={"made": True})
    place.files.put(record)
    ids = [d.get("cdi") for d in record.devices]
    assert ids == [[f"k8s.{DRIVER}/claim={UID}_gpu"], None, [f"k8s.{DRIVER}/claim={UID}_nic"]]
    (path,) = place.cdi.iterdir()
    spec = json.loads(path.read_text())
    validate_spec(spec)
    host = place.plugin / f"dra-device-metadata/{UID}_gpu.json"
    assert [d["name"] for d in spec["devices"]] == [f"{UID}_gpu", f"{UID}_nic"]
    assert spec["devices"][0]["containerEdits"] == {
        "mounts": [
            {
                "hostPath": str(host),
                "containerPath": "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/mine/gpu/"
                f"{DRIVER}-metadata.json",
                "options": ["ro", "bind"],
            }
        ]
    }
    document = decode(host.read_bytes(), host)
    assert document.claim == metadata.ClaimRef("c", "ns", UID, "mine")
    assert [(d.request, d.name, dict(d.attributes)) for d in document.devices] == [
        ("gpu/large", "gpu-0", {"model": "A", "made": True}),
        ("gpu/large", "gpu-1", {"model": "A", "made": True}),
    ]
    assert document.devices[0].network == metadata.Network("eth1")


def test_files_lost_cut_or_changed_come_back_and_then_all_go(place: Place) -> None:
    record = prepared(claim_of(device(), device("nic", "eth-0")), place.specs)
    place.files.put(record)
    place.files.note(record)
    whole = place.all()
    contents = {p: Path(p).read_bytes() for p in whole}
    assert not place.files.restore(record)
    for path in whole:
        Path(path).unlink()
        assert place.files.restore(record), path
        assert place.all() == whole
    for path, content in contents.items():
        Path(path).write_bytes(content[:-5])
        assert place.files.restore(record), path
    assert {p: Path(p).read_bytes() for p in contents} == contents
    assert list(place.files.uids()) == [UID]
    place.files.remove_all(UID)
    assert place.all() == []
    place.files.remove_all(UID)


def test_a_record_that_comes_back_from_its_note_has_its_metadata(place: Place) -> None:
    record = prepared(claim_of(device()), place.specs)
    place.specs.write_note(UID, note_of(record))
    found = record_of(place.specs, UID)
    assert found and found.doc["metadata"] == record.doc["metadata"]


@pytest.mark.parametrize("odd", [[], {}, {"requests": {}}, {"generation": 1, "podClaim": "", "requests": {"r": [{}]}}])
def test_a_document_with_metadata_of_another_shape_is_not_trusted(odd: object) -> None:
    with pytest.raises(ValueError, match="device metadata"):
        check_doc({"metadata": odd})


def test_what_an_older_claim_of_the_same_name_leaves_takes_nothing_of_the_later(place: Place) -> None:
    old, new = (prepared(claim_of(device(), uid=uid), place.specs) for uid in (UID, OTHER))
    place.files.put(old)
    place.files.put(new)
    place.files.remove(old)
    assert place.metadata.are_intact(new)
    place.files.remove(new)
    assert place.all() == []


def test_files_whose_spec_was_lost_are_found_and_removed(place: Place) -> None:
    """A power failure may keep one and lose the other: they are on different file systems."""
    place.metadata.put(prepared(claim_of(device(), device("nic", "eth-0")), place.specs))
    assert list(place.files.uids()) == [UID]
    place.files.remove_all(UID)
    assert place.all() == []


def test_a_rebuilt_record_without_requests_removes_all_files_of_its_claim(place: Place) -> None:
    record = prepared(claim_of(device(), device("nic", "eth-0")), place.specs)
    place.files.put(record)
    devices = [{"pool": d["pool"], "device": d["device"]} for d in record.devices]
    place.files.remove(Record(UID, "ns", "c", State.UNPREPARING, "boot", doc={"devices": devices, "rebuilt": True}))
    assert place.all() == []


def test_a_prepare_that_died_before_its_commit_leaves_no_file_after_its_rollback(place: Place) -> None:
    """The record has no metadata yet, and names the requests."""
    record = prepared(claim_of(device(), device("nic", "eth-0")), place.specs)
    place.files.put(record)
    devices = [allocated_json(d) for d in (device(), device("nic", "eth-0"))]
    place.files.remove(Record(UID, "ns", "c", State.PREPARING, "boot", doc={"devices": devices}))
    assert place.all() == []


def test_a_link_in_place_of_a_file_is_not_followed(place: Place, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    place.metadata.root.mkdir()
    (place.metadata.root / f"{UID}_gpu.json").symlink_to(target)
    record = prepared(claim_of(device()), place.specs)
    with pytest.raises(RecordsError, match="cannot be written"):
        place.files.put(record)
    place.files.remove(record)
    assert target.read_text() == "kept"
    assert place.all() == []


class Killed(BaseException):
    pass


CALLS = ("open", "write", "rename", "unlink", "mkdir", "rmdir", "symlink", "close", "fchmod")


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_half_written_file_keeps_its_inode_when_a_claim_of_the_same_name_goes(place: Place, cut: int) -> None:
    """Its containers have it mounted: what is written to another inode they never see."""
    uids = ["11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"]
    records = [prepared(claim_of(device(), uid=uid), place.specs) for uid in uids]
    for record in records:
        place.metadata.put(record)
    file = place.metadata.root / f"{uids[1]}_gpu.json"
    inode, whole = file.stat().st_ino, file.read_bytes()
    with file.open("r+b") as f:  # as a kill in the one write leaves it
        f.write(b"x" * cut)
    place.metadata.remove(records[0])
    place.metadata.put(records[1])
    assert (file.stat().st_ino, file.read_bytes()) == (inode, whole)
    place.metadata.remove(records[1])
    assert not list(place.metadata.root.iterdir())


def killed_at(monkeypatch: pytest.MonkeyPatch, number: int, fault: type[BaseException]) -> list[int]:
    """The process ends (or a call fails) at the ``number``-th call that touches the disk; answers whether it came to that."""
    counter = itertools.count()
    fired: list[int] = []

    def wrap(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(counter) == number:
                fired.append(number)
                raise fault(5, "Input/output error") if fault is OSError else fault
            return real(*args, **kwargs)

        return call

    for name in CALLS:
        monkeypatch.setattr(os, name, wrap(getattr(os, name)))
    return fired


@pytest.mark.parametrize("fault", [Killed, OSError])
@pytest.mark.parametrize("work", ["put", "remove"])
def test_whatever_dies_between_two_file_operations_nothing_is_left_and_nothing_missing(
    place: Place, work: str, fault: type[BaseException]
) -> None:
    record = prepared(claim_of(device(), device("nic", "eth-0")), place.specs)
    for number in range(60):
        if work == "remove":
            place.files.put(record)
        with pytest.MonkeyPatch.context() as patch:
            fired = killed_at(patch, number, fault)
            with contextlib.suppress(Killed, RecordsError, OSError):
                place.files.put(record) if work == "put" else place.files.remove(record)
        # The next process: it either prepares afresh, or undoes; what was being written goes with the dead writer's token.
        later = ClaimSpecs(place.cdi, DRIVER, "later")
        files = ClaimFiles(later, MetadataFiles(place.plugin, DRIVER))
        if number % 2:
            files.put(record)
            assert files.metadata.are_intact(record), number
        files.remove_all(UID)
        later.clean(lambda token: False)
        assert place.all() == [], number
        if not fired:
            assert number >= 3, "a file for each of two requests, and the spec"
            return
    raise AssertionError("more calls than thought")


def test_more_attributes_than_a_file_may_have_are_the_driver_s_fault(place: Place) -> None:
    claim = claim_of(device(**{f"a{i}": i for i in range(20)}))
    with pytest.raises(BadAnswerError, match="metadata of device gpu-0: 41 attributes are more than 32"):
        prepared(claim, place.specs, metadata={f"b{i}": i for i in range(20)})
    with pytest.raises(BadAnswerError, match=r"metadata of device gpu-0: .*does not fit into 64 bits"):
        prepared(claim_of(device()), place.specs, metadata={"x": 2**64})
    with pytest.raises(BadAnswerError, match=r"metadata of device gpu-0: attributes\['x'\] is None"):
        prepared(claim_of(device()), place.specs, metadata={"x": None})


def test_alternatives_of_one_request_are_in_one_file_and_lose_nothing(place: Place) -> None:
    """Each in a writing of its own would leave the last one's alone."""
    record = prepared(claim_of(device("gpu/large", "gpu-0"), device("gpu/small", "gpu-1")), place.specs)
    place.files.put(record)
    (host,) = place.metadata.root.iterdir()
    assert [(d.request, d.name) for d in decode(host.read_bytes(), host).devices] == [
        ("gpu/large", "gpu-0"),
        ("gpu/small", "gpu-1"),
    ]
    assert len(list(place.cdi.iterdir())) == 1


def test_the_cdi_folder_is_made_where_it_is_missing(place: Place) -> None:
    place.cdi.rmdir()
    place.files.put(prepared(claim_of(device()), place.specs))
    assert [p.name for p in place.cdi.iterdir()] == [place.specs.path(UID).name]


def test_a_record_of_before_updates_were_known_and_one_with_malformed_ones_are_distinguished() -> None:
    of = {"generation": 1, "podClaim": "", "requests": {}}
    assert check_doc({"metadata": of}) == {"metadata": of}
    for odd in ([1], {"gpu": "two"}):
        with pytest.raises(ValueError, match="device metadata"):
            check_doc({"metadata": {**of, "updates": odd}})


def test_a_driver_s_answer_with_metadata_that_is_no_mapping_is_refused(place: Place) -> None:

    claim = claim_of(device())
    answer = PreparedDevice(request="gpu/large", pool="node", name="gpu-0", metadata=[1])  # type: ignore[arg-type]
    record = Record(UID, "ns", "c", State.PREPARING, "boot", doc={"devices": [allocated_json(claim.devices[0])]})
    with pytest.raises(BadAnswerError, match="metadata of type list"):
        complete(record, claim, [answer], place.specs, Host())


def test_files_are_readable_for_all_and_what_is_no_file_is_replaced(place: Place) -> None:
    record = prepared(claim_of(device()), place.specs)
    path = place.plugin / f"dra-device-metadata/{UID}_gpu.json"
    for kind in ("no folder", "nothing", "fifo"):
        if kind == "nothing":
            path.unlink()
        elif kind != "no folder":
            path.unlink()
            os.mkfifo(path)
            assert place.metadata.are_intact(record) is False
        place.metadata.put(record)
        assert path.is_file()
        assert path.stat().st_mode & 0o777 == 0o644
        assert place.metadata.are_intact(record) is True


@pytest.mark.parametrize("count", [31, 32])
def test_a_file_may_have_32_attributes(place: Place, count: int) -> None:
    """One is the device's own."""
    more = {f"a{i}": i for i in range(count)}
    if count == 31:
        record = prepared(claim_of(device()), place.specs, metadata=more)
        (found,) = record.doc["metadata"]["requests"]["gpu/large"]
        assert len(found["attributes"]) == 32
        update = MetadataUpdate(uid=UID, request="gpu", attributes={"model": {"string": "B"}})
        assert len(updated(record, update)["metadata"]["requests"]["gpu/large"][0]["attributes"]) == 32
        with pytest.raises(DriverError, match="33 attributes are more than 32"):
            updated(record, MetadataUpdate(uid=UID, request="gpu", attributes={"one-more": {"int": 1}}))
    else:
        with pytest.raises(BadAnswerError, match="33 attributes are more than 32"):
            prepared(claim_of(device()), place.specs, metadata=more)
