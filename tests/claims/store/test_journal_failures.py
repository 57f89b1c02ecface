"""The record journal fails: the plugin does not restart in a loop and loses nothing silently. It sets the file aside,
rebuilds it and reports it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dra_kubeletplugin import PreparedDevice, RecoveredClaim
from dra_kubeletplugin.claims import Record
from dra_kubeletplugin.claims.store.lines import FORMAT
from dra_kubeletplugin.errors import RecordsError, RecordsNewerError
from dra_kubeletplugin.testing import DriverNode, node_with
from tests.helpers.crash.record_stores import JOURNAL, insert, instance, make_record, open_store, set_format
from tests.helpers.drivers import Toy, make_toy_class
from tests.plugin.test_node import allocate, prepare_call, ref, unprepare_call


def cut_and_append(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2 + 100] + b"\n")


def zero(path: Path) -> None:
    path.write_bytes(b"")


def garbage(path: Path) -> None:
    path.write_bytes(os.urandom(8192))


def garbage_inside(path: Path) -> None:
    data = bytearray(path.read_bytes())
    half = len(data) // 2
    data[half : half + 100] = os.urandom(100)
    path.write_bytes(data)


def remove(path: Path) -> None:
    path.unlink()


async def uid_after_damage(node: DriverNode, damage: Callable[[Path], None]) -> str:
    """Prepares a claim, stops the plugin, damages the journal and starts the plugin again. Returns the claim's UID."""
    await node.run_pod()
    uid: str = (await node.claim_of("pod"))["metadata"]["uid"]
    await node.stop()
    path = node.settings.records_path
    damage(path)
    await node.start()
    return uid


@pytest.mark.parametrize("damage", [cut_and_append, zero, garbage, garbage_inside])
async def test_a_damaged_journal_is_set_aside_and_its_claims_are_restored(damage: Callable[[Path], None]) -> None:
    cls = make_toy_class()
    async with node_with(cls, http_address="127.0.0.1:0") as node:
        uid = await uid_after_damage(node, damage)
        folder = node.settings.plugin_dir
        (damaged_file,) = [p for p in folder.iterdir() if ".damaged-" in p.name]
        assert damaged_file.name.startswith("records.journal.damaged-2")
        assert (await node.leftovers()) == {"files": [uid], "records": [uid], "held": ["toy-0"]}
        assert any("set aside" in line for line in node.plugin.claims.store.journal.report)
        assert b"dra_records_damaged_total 1.0" in node.plugin.metrics.text()
        assert not await node.plugin.not_ready()
        assert any("the record journal was damaged" in line for line in await node.plugin.notes())
        # No device is allocated twice, and prepared claims can be unprepared.
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-0"}])
        assert (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error.startswith("DEVICE_HELD")
        await node.delete_pod()
        assert (await node.leftovers())["held"] == []


async def test_a_removed_journal_is_rebuilt_from_the_cdi_files() -> None:
    async with node_with(make_toy_class()) as node:
        uid = await uid_after_damage(node, remove)
        assert (await node.leftovers())["held"] == ["toy-0"]
        response = await prepare_call(node, ref(await node.claim_of("pod")))
        assert list(response.claims[uid].devices[0].request_names) == ["device"]
        await node.delete_pod()
        assert (await node.leftovers())["records"] == []


async def test_recovered_claims_of_the_driver_complete_the_claims_from_files() -> None:
    class RecoveringDriver(Toy):
        uid = ""

        async def recover(self) -> list[RecoveredClaim]:
            device = PreparedDevice(request="device", pool="node-1", name="toy-0", data={"index": 0})
            recovered_device = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            if not type(self).uid:
                return []  # the first start: nothing is prepared yet
            return [
                RecoveredClaim(uid=type(self).uid, namespace="default", name="known", devices=[device]),
                RecoveredClaim(uid="only-the-hardware-knows", devices=[recovered_device]),
            ]

    async with node_with(RecoveringDriver) as node:
        await node.run_pod()
        RecoveringDriver.uid = (await node.claim_of("pod"))["metadata"]["uid"]
        await node.stop()
        garbage(node.settings.records_path)
        await node.start()
        record = await node.plugin.claims.store.get(RecoveringDriver.uid)
        assert isinstance(record, Record)
        assert record.devices[0]["data"] == {"index": 0}
        assert (await node.leftovers())["held"] == ["toy-0", "toy-3"]


async def test_damage_while_running_is_repaired_at_the_next_call() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        garbage(node.settings.records_path)
        result = (await unprepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]]
        assert result.error == ""


async def test_damage_while_running_calls_the_recover_method_of_the_driver() -> None:
    class RecoveringDriver(Toy):
        async def recover(self) -> list[RecoveredClaim]:
            recovered_device = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            return [RecoveredClaim(uid="only-the-hardware-knows", devices=[recovered_device])]

    async with node_with(RecoveringDriver) as node:
        garbage(node.settings.records_path)

        async def is_device_held() -> bool:
            try:
                return {d for _, d in await node.plugin.claims.store.held()} == {"toy-3"}
            except RecordsError:
                return False

        await node.cluster.wait("the driver's answer", is_device_held)


async def test_a_journal_that_is_removed_under_a_running_plugin_is_written_again() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        node.settings.records_path.unlink()
        await node.run_pod("second")
        await node.restart()
        assert [c[0] for c in node.driver.calls] == ["prepare", "prepare"]
        records = await node.plugin.claims.store.all()
        assert {r.name.rpartition("-t0-")[0] for r in records} == {"pod", "second"}
        await node.delete_pod()
        await node.delete_pod("second")
        assert (await node.leftovers())["records"] == []


async def test_an_instance_follows_another_instance_that_set_the_damaged_file_aside(tmp_path: Path) -> None:
    first, second = open_store(tmp_path), open_store(tmp_path)
    await first.all()
    await second.all()
    garbage(tmp_path / "records.journal")
    # A write waits for all living instances, which check the file every two seconds.
    await asyncio.gather(insert(first, make_record("u", "d-0")), second.check_file())
    await second.check_file()
    assert [r.uid for r in await second.all()] == ["u"]
    assert len([p for p in tmp_path.iterdir() if ".damaged-" in p.name and p.name.endswith("Z")]) == 1
    await first.close()
    await second.close()


# --- disks ------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A tmpfs of 1 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=True)
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    path = folder / "filler"
    with path.open("wb", buffering=0) as f:
        size = 65536
        while size:
            try:
                f.write(b"x" * size)
            except OSError:
                size //= 2
    return path


@pytest.mark.mounts
async def test_a_full_disk_is_an_error_per_claim_and_a_later_call_succeeds(small_disk: Path) -> None:
    cls = make_toy_class()
    async with node_with(cls) as node:
        await node.stop()
        shutil.copytree(node.settings.kubelet_root, small_disk / "kubelet", ignore=shutil.ignore_patterns("*.sock"))
        shutil.rmtree(node.settings.kubelet_root)
        node.settings.kubelet_root.symlink_to(small_disk / "kubelet")
        await node.start()
        claims = [await allocate(node, f"c{i}", [{"pool": "node-1", "device": f"toy-{i}"}]) for i in range(2)]
        assert not (await prepare_call(node, ref(claims[0]))).claims[claims[0]["metadata"]["uid"]].error
        filler = fill(small_disk)
        errors = []
        for _ in range(30):  # the journal has some free space left at first
            for call in (prepare_call, unprepare_call):
                errors.append((await call(node, ref(claims[1]))).claims[claims[1]["metadata"]["uid"]].error)
            if any(errors):
                break
        assert [e for e in errors if "the disk is full" in e or "cannot be written" in e], errors
        assert any("disk is full" in line for line in await node.plugin.not_ready())
        filler.unlink()
        assert not (await prepare_call(node, ref(claims[1]))).claims[claims[1]["metadata"]["uid"]].error
        assert await node.plugin.not_ready() == []
        assert sorted(d for _, d in await node.plugin.claims.store.held()) == ["toy-0", "toy-1"]
        await node.stop()


@pytest.mark.mounts
async def test_a_read_only_disk_is_reported_and_no_record_is_reset() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        await node.stop()
        folder = node.settings.plugin_dir
        subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
            from dra_kubeletplugin.errors import SettingsError

            with pytest.raises(SettingsError, match="cannot be written"):
                await node.start()
        finally:
            subprocess.run(["umount", "-l", str(folder)], check=True)
        await node.start()
        assert (await node.leftovers())["records"] == [claim["metadata"]["uid"]]


async def test_unusable_records_fail_claims_but_not_the_plugin() -> None:
    async with node_with(make_toy_class()) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await node.stop()
        path = node.settings.records_path
        set_format(path, FORMAT + 2)
        await node.start()
        error = (await prepare_call(node, ref(claim))).claims[claim["metadata"]["uid"]].error
        assert error.startswith("RECORDS_NEWER:")
        assert any("use a newer plugin" in line for line in await node.plugin.not_ready())
        assert not [p for p in path.parent.iterdir() if "damaged" in p.name]


# --- versions ---------------------------------------------------------------------------------------


async def test_a_journal_of_a_newer_version_is_refused_and_the_error_names_the_next_step(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()
    path = tmp_path / JOURNAL
    set_format(path, FORMAT + 2)
    content = path.read_bytes()
    async with instance(tmp_path) as store:
        with pytest.raises(RecordsNewerError, match="use a newer plugin"):
            await store.all()
    assert path.read_bytes() == content


async def test_a_new_journal_is_complete_before_it_gets_its_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.all()
    await store.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".records", "records"))) == [JOURNAL]


@pytest.mark.mounts
async def test_a_journal_that_becomes_read_only_fails_claims_is_reported_and_recovers() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        claim = await node.claim_of("pod")
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-1"}])
        await node.stop()
        path = str(node.settings.records_path)
        subprocess.run(["mount", "--bind", path, path], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
            await node.start()
            response = await prepare_call(node, ref(second), ref(claim))
            assert response.claims[second["metadata"]["uid"]].error.startswith("RECORDS_UNAVAILABLE:")
            assert "read-only" in response.claims[second["metadata"]["uid"]].error
            assert any("read-only" in line for line in await node.plugin.not_ready())
            assert not [p for p in node.settings.plugin_dir.iterdir() if "damaged" in p.name]
        finally:
            subprocess.run(["umount", "-l", path], check=True)
        await node.restart()
        assert not (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error
        assert sorted(d for _, d in await node.plugin.claims.store.held()) == ["toy-0", "toy-1"]
