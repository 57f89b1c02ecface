"""The record journal fails: no crash loop, nothing reset silently; set aside, rebuilt, reported."""

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


def cut_and_followed(path: Path) -> None:
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


def vanish(path: Path) -> None:
    path.unlink()


async def broken_after(node: DriverNode, damage: Callable[[Path], None]) -> str:
    """A prepared claim, a stopped plugin, damage, and a fresh start. Answers the claim's UID."""
    await node.run_pod()
    uid: str = (await node.claim_of("pod"))["metadata"]["uid"]
    await node.stop()
    path = node.settings.records_path
    damage(path)
    await node.start()
    return uid


@pytest.mark.parametrize("damage", [cut_and_followed, zero, garbage, garbage_inside])
async def test_a_damaged_database_is_set_aside_and_its_claims_are_known_again(damage: Callable[[Path], None]) -> None:
    cls = make_toy_class()
    async with node_with(cls, http_address="127.0.0.1:0") as node:
        uid = await broken_after(node, damage)
        folder = node.settings.plugin_dir
        (aside,) = [p for p in folder.iterdir() if ".damaged-" in p.name]
        assert aside.name.startswith("records.journal.damaged-2")
        assert (await node.leftovers()) == {"files": [uid], "records": [uid], "held": ["toy-0"]}
        assert any("set aside" in line for line in node.plugin.claims.store.journal.report)
        assert b"dra_records_damaged_total 1.0" in node.plugin.metrics.text()
        assert not await node.plugin.not_ready()
        assert any("the record journal was damaged" in line for line in await node.plugin.notes())
        # Nothing is handed out twice, and what was held can be given back.
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-0"}])
        assert (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error.startswith("DEVICE_HELD")
        await node.delete_pod()
        assert (await node.leftovers())["held"] == []


async def test_a_database_that_vanished_is_rebuilt_from_cdi_files() -> None:
    async with node_with(make_toy_class()) as node:
        uid = await broken_after(node, vanish)
        assert (await node.leftovers())["held"] == ["toy-0"]
        again = await prepare_call(node, ref(await node.claim_of("pod")))
        assert list(again.claims[uid].devices[0].request_names) == ["device"]
        await node.delete_pod()
        assert (await node.leftovers())["records"] == []


async def test_what_the_driver_knows_completes_what_the_files_report() -> None:
    class Knowing(Toy):
        uid = ""

        async def recover(self) -> list[RecoveredClaim]:
            device = PreparedDevice(request="device", pool="node-1", name="toy-0", data={"index": 0})
            lost = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            if not type(self).uid:
                return []  # the first start: nothing is prepared yet
            return [
                RecoveredClaim(uid=type(self).uid, namespace="default", name="known", devices=[device]),
                RecoveredClaim(uid="only-the-hardware-knows", devices=[lost]),
            ]

    async with node_with(Knowing) as node:
        await node.run_pod()
        Knowing.uid = (await node.claim_of("pod"))["metadata"]["uid"]
        await node.stop()
        garbage(node.settings.records_path)
        await node.start()
        record = await node.plugin.claims.store.get(Knowing.uid)
        assert isinstance(record, Record)
        assert record.devices[0]["data"] == {"index": 0}
        assert (await node.leftovers())["held"] == ["toy-0", "toy-3"]


async def test_damage_while_running_is_repaired_at_the_next_call() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        garbage(node.settings.records_path)
        answer = (await unprepare_call(node, ref(found))).claims[found["metadata"]["uid"]]
        assert answer.error == ""


async def test_damage_while_running_asks_the_driver_what_it_holds() -> None:
    class Knowing(Toy):
        async def recover(self) -> list[RecoveredClaim]:
            lost = PreparedDevice(request="device", pool="node-1", name="toy-3", data={"index": 3})
            return [RecoveredClaim(uid="only-the-hardware-knows", devices=[lost])]

    async with node_with(Knowing) as node:
        garbage(node.settings.records_path)

        async def known() -> bool:
            try:
                return {d for _, d in await node.plugin.claims.store.held()} == {"toy-3"}
            except RecordsError:
                return False

        await node.cluster.wait("the driver's answer", known)


async def test_a_database_that_is_removed_under_a_running_plugin_is_written_again() -> None:
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


async def test_an_instance_follows_another_that_set_the_damaged_file_aside(tmp_path: Path) -> None:
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
    """A tmpfs of one MiB."""
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
async def test_a_full_disk_is_an_error_per_claim_and_heals(small_disk: Path) -> None:
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
        for _ in range(30):  # the log has some room left; then it has not
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
async def test_a_read_only_disk_is_reported_and_nothing_is_reset(tmp_path: Path) -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
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
        assert (await node.leftovers())["records"] == [found["metadata"]["uid"]]


async def test_records_that_cannot_be_used_fail_claims_and_not_the_plugin() -> None:
    async with node_with(make_toy_class()) as node:
        found = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        await node.stop()
        path = node.settings.records_path
        set_format(path, FORMAT + 2)
        await node.start()
        error = (await prepare_call(node, ref(found))).claims[found["metadata"]["uid"]].error
        assert error.startswith("RECORDS_NEWER:")
        assert any("use a newer plugin" in line for line in await node.plugin.not_ready())
        assert not [p for p in path.parent.iterdir() if "damaged" in p.name]


# --- versions ---------------------------------------------------------------------------------------


async def test_two_versions_newer_is_refused_with_what_to_do(tmp_path: Path) -> None:
    async with instance(tmp_path) as store:
        await store.all()
    path = tmp_path / JOURNAL
    set_format(path, FORMAT + 2)
    before = path.read_bytes()
    async with instance(tmp_path) as store:
        with pytest.raises(RecordsNewerError, match="use a newer plugin"):
            await store.all()
    assert path.read_bytes() == before


async def test_a_new_database_is_whole_before_it_has_its_name(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    await store.all()
    await store.close()
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith((".records", "records"))) == [JOURNAL]


@pytest.mark.mounts
async def test_a_database_file_that_turns_read_only_fails_claims_is_reported_and_heals() -> None:
    async with node_with(make_toy_class()) as node:
        await node.run_pod()
        found = await node.claim_of("pod")
        second = await allocate(node, "second", [{"pool": "node-1", "device": "toy-1"}])
        await node.stop()
        path = str(node.settings.records_path)
        subprocess.run(["mount", "--bind", path, path], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", path], check=True)
            await node.start()
            answer = await prepare_call(node, ref(second), ref(found))
            assert answer.claims[second["metadata"]["uid"]].error.startswith("RECORDS_UNAVAILABLE:")
            assert "read-only" in answer.claims[second["metadata"]["uid"]].error
            assert any("read-only" in line for line in await node.plugin.not_ready())
            assert not [p for p in node.settings.plugin_dir.iterdir() if "damaged" in p.name]
        finally:
            subprocess.run(["umount", "-l", path], check=True)
        await node.restart()
        assert not (await prepare_call(node, ref(second))).claims[second["metadata"]["uid"]].error
        assert sorted(d for _, d in await node.plugin.claims.store.held()) == ["toy-0", "toy-1"]
