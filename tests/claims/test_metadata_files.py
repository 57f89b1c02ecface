"""Device metadata files: each prepared claim has complete files, and no file is left after the unprepare."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.cdi.spec_validation import validate_spec
from dra_kubeletplugin import (
    AllocatedDevice,
    Claim,
    ContainerEdits,
    Device,
    DeviceStatus,
    NetworkData,
    Version,
    metadata,
)
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims import Record, State
from dra_kubeletplugin.claims.claim_files import ClaimFiles
from dra_kubeletplugin.claims.metadata_files import MetadataFiles
from dra_kubeletplugin.claims.metadata_updates import updated
from dra_kubeletplugin.claims.prepared_devices import add_prepared
from dra_kubeletplugin.claims.record import allocated_json
from dra_kubeletplugin.driver import MetadataUpdate
from dra_kubeletplugin.errors import BadAnswerError, DriverError, RecordsError
from dra_kubeletplugin.host import Host
from dra_kubeletplugin.metadata.document import decode
from tests.helpers.crash.record_stores import DRIVER

UID = "0b6a0c1e-0000-4000-8000-000000000001"


def device(request: str = "gpu/large", name: str = "gpu-0", **attributes: Any) -> AllocatedDevice:
    return AllocatedDevice(
        request=request, pool="node", name=name, share_id=None, admin_access=False, consumed_capacity={}, config=None,
        config_source="", published=Device(name, attributes={"model": "A", **attributes}),
    )  # fmt: skip


def claim_of(*devices: AllocatedDevice, uid: str = UID, pod_claim: str = "mine") -> Claim:
    annotations = {"resource.kubernetes.io/pod-claim-name": pod_claim} if pod_claim else {}
    return Claim(namespace="ns", name="c", uid=uid, devices=devices, object={"metadata": {"annotations": annotations}})


def prepared(claim: Claim, specs: ClaimSpecs, **attributes: Any) -> Record:
    entries = [allocated_json(d) for d in claim.devices]
    record = Record(claim.uid, "ns", "c", State.PREPARED, "boot", devices=entries, complete=True)
    metadata = MetadataFiles(specs.root.parent / "plugin", specs.driver)
    add_prepared(record, claim, [d.prepared(**attributes) for d in claim.devices], specs, Host(), metadata)
    return record


class MetadataFolders:
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
def folders(tmp_path: Path) -> MetadataFolders:
    return MetadataFolders(tmp_path)


def test_each_request_has_a_file_and_a_cdi_device_whose_id_is_returned_with_its_first_device(
    folders: MetadataFolders,
) -> None:
    claim = claim_of(device(), device(name="gpu-1"), device("nic", "eth-0", speed=Version("1.0.0")))
    status = DeviceStatus(network_data=NetworkData(interface_name="eth1"))
    record = prepared(claim, folders.specs, status=status, metadata={"made": True})
    folders.files.put(record)
    ids = [d.get("cdi") for d in record.devices]
    assert ids == [[f"k8s.{DRIVER}/claim={UID}_gpu"], None, [f"k8s.{DRIVER}/claim={UID}_nic"]]
    (path,) = folders.cdi.iterdir()
    spec = json.loads(path.read_text())
    validate_spec(spec)
    host = folders.plugin / f"dra-device-metadata/{UID}_gpu.json"
    assert host.stat().st_mode & 0o777 == 0o644
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


def test_removed_cut_or_changed_files_are_restored_and_then_all_are_removed(folders: MetadataFolders) -> None:
    record = prepared(claim_of(device(), device("nic", "eth-0")), folders.specs)
    folders.files.put(record)
    folders.files.note(record)
    contents = {p: Path(p).read_bytes() for p in folders.all()}
    assert not folders.files.restore(record)
    for name, content in contents.items():
        Path(name).unlink()
        assert folders.files.restore(record), name
        assert folders.all() == list(contents)
        Path(name).write_bytes(content[:-5])
        assert folders.files.restore(record), name
    assert {p: Path(p).read_bytes() for p in contents} == contents
    folders.files.remove(record)
    assert folders.all() == [str(folders.specs.note_path(UID))]
    folders.files.restore(record)
    for path in folders.specs.path(UID), folders.specs.note_path(UID):
        path.unlink()  # a power failure may keep only the metadata, on another file system
    assert folders.files.uids() == {UID}
    for _ in range(2):
        folders.files.remove_all(UID)
        assert folders.all() == []


def test_a_link_in_place_of_a_file_is_not_followed(folders: MetadataFolders, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("kept")
    folders.metadata.root.mkdir()
    (folders.metadata.root / f"{UID}_gpu.json").symlink_to(target)
    record = prepared(claim_of(device()), folders.specs)
    with pytest.raises(RecordsError, match="cannot be written"):
        folders.files.put(record)
    folders.files.remove(record)
    assert target.read_text() == "kept"
    assert folders.all() == []


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_half_written_file_keeps_its_inode_when_a_claim_of_the_same_name_is_removed(
    folders: MetadataFolders, cut: int
) -> None:
    """Containers have the inode mounted, so they would never see the content of another inode."""
    uids = ["11111111-0000-4000-8000-000000000000", "22222222-0000-4000-8000-000000000000"]
    records = [prepared(claim_of(device(), uid=uid), folders.specs) for uid in uids]
    for record in records:
        folders.metadata.put(record)
    file = folders.metadata.root / f"{uids[1]}_gpu.json"
    inode, content = file.stat().st_ino, file.read_bytes()
    with file.open("r+b") as f:  # as a kill during the write leaves it
        f.write(b"x" * cut)
    folders.files.remove(records[0])
    folders.metadata.put(records[1])
    assert (file.stat().st_ino, file.read_bytes()) == (inode, content)
    folders.files.remove(records[1])
    assert not list(folders.metadata.root.iterdir())


def test_alternatives_of_one_request_are_in_one_file(folders: MetadataFolders) -> None:
    """Separate writes would leave only the alternative of the last write."""
    claim, edits = claim_of(device("gpu/large", "gpu-0"), device("gpu/small", "gpu-1")), ContainerEdits(env={"A": "1"})
    record = prepared(claim, folders.specs, edits=edits)
    names = [[f"{UID}-gpu-0", f"{UID}_gpu"], [f"{UID}-gpu-1"]]
    assert [d["cdi"] for d in record.devices] == [[f"k8s.{DRIVER}/claim={name}" for name in of] for of in names]
    folders.files.put(record)
    (host,) = folders.metadata.root.iterdir()
    assert [(d.request, d.name) for d in decode(host.read_bytes(), host).devices] == [
        ("gpu/large", "gpu-0"),
        ("gpu/small", "gpu-1"),
    ]
    assert len(list(folders.cdi.iterdir())) == 1


def test_a_file_may_have_32_attributes_of_allowed_values(folders: MetadataFolders) -> None:
    """The device itself has one attribute."""
    attributes: dict[str, Any] = {f"a{i}": i for i in range(31)}
    record = prepared(claim_of(device()), folders.specs, metadata=attributes)
    assert record.metadata
    (entry,) = record.metadata["requests"]["gpu/large"]
    assert len(entry["attributes"]) == 32
    update = MetadataUpdate(uid=UID, request="gpu", attributes={"model": {"string": "B"}})
    assert len(updated(record, update)["requests"]["gpu/large"][0]["attributes"]) == 32
    with pytest.raises(DriverError, match="33 attributes are more than 32"):
        updated(record, MetadataUpdate(uid=UID, request="gpu", attributes={"one-more": {"int": 1}}))
    for added, message in (
        (attributes | {"a31": 31}, "33 attributes are more than 32"),
        ({"x": 2**64}, ".*does not fit into 64 bits"),
        ({"x": None}, r"attributes\['x'\] is None"),
    ):
        with pytest.raises(BadAnswerError, match=f"metadata of device gpu-0: {message}"):
            prepared(claim_of(device()), folders.specs, metadata=added)
