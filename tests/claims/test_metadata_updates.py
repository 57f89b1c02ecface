"""Updates of a prepared claim's metadata: in the record and in the file that containers have open. The generation
increases by one with each update.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import inspect
import os
from pathlib import Path
from typing import Any

import pytest

from dra_kubeletplugin import Claim, Driver, NetworkData, PreparedDevice, metadata
from dra_kubeletplugin.claims import ClaimIdentity, Record, State
from dra_kubeletplugin.claims.metadata_updates import MetadataUpdates
from dra_kubeletplugin.driver import MetadataUpdate
from dra_kubeletplugin.errors import (
    ClaimBusyError,
    DraError,
    DriverError,
    MetadataUpdateError,
    RecordsError,
    StillWorkingError,
    StoppingError,
)
from dra_kubeletplugin.metadata.document import Document, decode, decode_whole
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.file_faults import FileFaults
from tests.helpers.crash.record_stores import DRIVER
from tests.helpers.waiting import wait_until

UID = "uid-1"
ETH = NetworkData(interface_name="eth1", ips=["10.0.0.2/24"], hardware_address="02:00:00:00:00:01")


class Net(Driver):
    name = DRIVER
    metadata = True

    async def prepare(self, claim: Claim) -> list[PreparedDevice]:
        return [d.prepared(metadata={"text": "x" * 64}) for d in claim.devices]


def claim(api: FakeApiServer) -> ClaimIdentity:
    """Returns a claim with two requests. One request is an alternative, the other has two devices."""
    ref = api.allocate("c", UID, "d-0", DRIVER, request="net/fast")
    results = api.claims["c"]["status"]["allocation"]["devices"]["results"]
    results += [{**results[0], "request": "acc", "device": name} for name in ("d-1", "d-2")]
    return ref


def path(r: RunningManager, request: str) -> Path:
    return r.settings.plugin_dir / f"dra-device-metadata/{UID}_{request}.json"


def read_document(r: RunningManager, request: str) -> Document:
    return decode(path(r, request).read_bytes(), path(r, request))


async def test_an_update_reaches_a_container_with_the_file_open_and_increases_the_generation_by_one(
    tmp_path: Path,
) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))
        with path(r, "net").open("rb") as mounted:  # a container has the inode, not the name
            driver = r.driver
            assert await driver.update_metadata(UID, "net", network_data=ETH) == 2
            (device,) = decode(mounted.read(), Path("mounted")).devices
            assert (device.network, device.generation) == (
                metadata.Network("eth1", ("10.0.0.2/24",), "02:00:00:00:00:01"),
                2,
            )
            assert await driver.update_metadata(UID, "net/fast", attributes={"speed": 100, "long": "x" * 60}) == 3
            assert await driver.update_metadata(UID, "net", attributes={"long": None}) == 4
            mounted.seek(0)
            (device,) = decode(mounted.read(), Path("mounted")).devices
            assert (dict(device.attributes), device.network and device.network.interface_name) == (
                {"speed": 100, "text": "x" * 64},
                "eth1",
            )
            assert path(r, "net").read_bytes() == os.pread(mounted.fileno(), 1 << 20, 0)
        assert read_document(r, "acc").generation == 1, "a reader of another request gets no event"
        assert await driver.update_metadata(UID, "net", attributes={"speed": 100}) == 4, "an update without a change"
        assert not path(r, "net").read_bytes().endswith(b"\n\n")


async def test_updates_survive_a_restart_and_a_repeated_prepare(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as r:
        ref = claim(api)
        await r.prepare(ref)
        await r.driver.update_metadata(UID, "acc", attributes={"x": 1}, device="d-2")
        content = path(r, "acc").read_bytes()
    async with running_manager(tmp_path, Net(), api) as r:
        assert not isinstance(await r.prepare(ref), DraError)
        assert path(r, "acc").read_bytes() == content
        assert await r.driver.update_metadata(UID, "acc", attributes={"x": 2}, device="node/d-2") == 3
        assert [d.attributes.get("x") for d in read_document(r, "acc").devices] == [None, 2]
        assert r.claims.files.are_intact((await r.claims.store.all())[0]), "the note contains the update"


@pytest.mark.parametrize("added", [{"text": "y"}, {"more": "z" * 64}], ids=["shorter", "longer"])
async def test_an_update_that_stops_before_any_file_operation_leaves_no_partial_file_and_the_next_pass_completes_it(
    tmp_path: Path, added: dict[str, Any]
) -> None:
    """From some operation on, each fails, as if the process had died."""
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))
        faults = FileFaults(r.settings.plugin_dir, r.settings.cdi_root)
        with path(r, "net").open("rb") as mounted:

            def read_in_container() -> int:
                return decode(os.pread(mounted.fileno(), 1 << 20, 0), Path("mounted")).generation

            for number in range(200):
                generation = await r.driver.update_metadata(
                    UID, "net", attributes={"text": "x" * 64, "n": None, "more": None}
                )
                with (
                    faults.failing(errno.EIO, lambda n, at=number: n >= at),  # type: ignore[misc]
                    contextlib.suppress(RecordsError),
                ):
                    await r.driver.update_metadata(UID, "net", attributes={**added, "n": number})
                seen = read_in_container()
                await r.claims.reconciler.once(ask_server=False)
                (record,) = await r.claims.store.all()
                assert r.claims.files.are_intact(record)
                assert generation <= seen <= read_in_container() <= generation + 1
                if faults.count <= number:
                    assert read_in_container() == generation + 1
                    return
    raise AssertionError("more file operations than expected")


async def test_two_instances_and_many_tasks_lose_no_update_and_the_generation_never_decreases(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = claim(api)
    async with (
        running_manager(tmp_path, Net(), api) as old_manager,
        running_manager(tmp_path, Net(), api) as new_manager,
    ):
        await old_manager.prepare(ref)
        generations: list[int] = []
        is_done = asyncio.Event()

        async def read_generations() -> None:
            while not is_done.is_set():
                data = path(old_manager, "net").read_bytes()
                if document := decode_whole(data, path(old_manager, "net")):  # a reader reads a half-written file again
                    generations.append(document.generation)
                await asyncio.sleep(0)

        reader_task = asyncio.create_task(read_generations())
        updates = [
            r.driver.update_metadata(UID, "net", attributes={f"{prefix}{i}": i})
            for i in range(10)
            for prefix, r in (("o", old_manager), ("n", new_manager))
        ] + [
            r.driver.update_metadata(UID, "acc", attributes={prefix: 1}, device="d-1")
            for prefix, r in (("o", old_manager), ("n", new_manager))
        ]
        await asyncio.gather(*updates)
        is_done.set()
        await reader_task
        assert generations
        assert generations == sorted(generations)
        (device,) = read_document(new_manager, "net").devices
        assert (device.generation, len(device.attributes)) == (21, 21)
        assert (
            read_document(new_manager, "acc").generation,
            set(read_document(new_manager, "acc").devices[0].attributes),
        ) == (3, {"text", "o", "n"})


async def test_an_update_during_prepare_waits_for_it_and_an_update_within_prepare_is_an_error_with_the_next_step(
    tmp_path: Path,
) -> None:
    class BlockingNet(Net):
        resume, is_inside = asyncio.Event(), True

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if self.is_inside:
                await self.update_metadata(claim, "net", network_data=ETH)
            await self.resume.wait()
            return await super().prepare(claim)

    api = FakeApiServer()
    ref = claim(api)
    driver = BlockingNet()
    async with running_manager(tmp_path, driver, api, call_timeout=1) as r:
        while isinstance(error := await r.prepare(ref), StillWorkingError):
            pass
        assert "claim uid-1 has had other work in flight for more than 0.5 s" in str(error)
        assert "do not await update_metadata() in prepare" in str(error)
        await wait_until(lambda: not r.claims.tasks.uids)
    driver.is_inside = False
    async with running_manager(tmp_path, driver, api) as r:
        preparing = asyncio.create_task(r.prepare(ref))
        await wait_until(lambda: r.claims.tasks.uids)
        update = driver.update_metadata(UID, "net", network_data=ETH)
        driver.resume.set()
        await preparing
        assert await update == 2
        assert read_document(r, "net").devices[0].network is not None


async def test_an_update_after_unprepare_or_for_an_unknown_device_is_a_clear_error(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = claim(api)
    async with running_manager(tmp_path, Net(), api) as r:
        with pytest.raises(MetadataUpdateError, match="claim uid-1 is not prepared"):
            await r.driver.update_metadata(UID, "net", network_data=ETH)
        await r.prepare(ref)
        for arguments, message in (
            ({"request": "gpu"}, "has no request 'gpu': it has net/fast, acc"),
            ({"request": "acc"}, "has devices node/d-1, node/d-2: choose one with device="),
            ({"request": "acc", "device": "d-7"}, "device 'd-7' matches none"),
            ({"attributes": {f"a{i}": i for i in range(32)}}, "33 attributes are more than 32"),
            ({"attributes": {"a": 2**64}}, "does not fit into 64 bits"),
            ({"attributes": {"a b": 1}}, "a b"),
            ({"attributes": {"a": object()}}, r"attributes\['a'\] is"),
            ({"attributes": {"a": "\ud800"}}, "update_metadata"),
            ({"network_data": None}, "nothing to update"),
            ({"network_data": {"ips": []}}, "network_data is a NetworkData"),
        ):
            with pytest.raises(DriverError, match=message):
                await r.driver.update_metadata(UID, **{"request": "net", "network_data": ETH, **arguments})  # type: ignore[arg-type]
        assert read_document(r, "net").generation == 1
        await r.unprepare(ref)
        with pytest.raises(MetadataUpdateError, match="is not prepared"):
            await r.driver.update_metadata(UID, "net", network_data=ETH)
    with pytest.raises(StoppingError):
        await r.driver.update_metadata(UID, "net", network_data=ETH)


async def test_an_update_from_a_thread_of_the_driver_is_complete_when_the_call_returns(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))

        def work() -> int:
            r.driver.update_metadata(UID, "net", network_data=ETH)
            return read_document(r, "net").generation

        assert await asyncio.to_thread(work) == 2

        def fails() -> None:
            with pytest.raises(MetadataUpdateError):
                r.driver.update_metadata("nobody", "net", network_data=ETH)

        await asyncio.to_thread(fails)


async def test_an_update_that_is_not_awaited_is_logged_with_its_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))
        r.driver.update_metadata(UID, "net", network_data=ETH)
        line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
        await wait_until(lambda: f"(claims/test_metadata_updates.py:{line})" in caplog.text)
        assert "update_metadata() was not awaited: write `await` before it" in caplog.text


async def test_a_claim_without_metadata_and_a_driver_without_metadata_files_have_different_errors(
    tmp_path: Path,
) -> None:
    class Off(Net):
        metadata = False

    api = FakeApiServer()
    ref = claim(api)
    async with running_manager(tmp_path, Off(), api) as r:
        await r.prepare(ref)
        with pytest.raises(DriverError, match=r"Off.metadata is off"):
            r.driver.update_metadata(UID, "net", network_data=ETH)
    async with running_manager(tmp_path, Net(), api) as r:
        with pytest.raises(MetadataUpdateError, match="prepared by a version of the driver that wrote none"):
            await r.driver.update_metadata(UID, "net", network_data=ETH)


async def test_a_driver_that_has_no_metadata_any_more_removes_the_files_of_older_claims(tmp_path: Path) -> None:
    class Off(Net):
        metadata = False

    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as r:
        await r.prepare(claim(api))
        assert path(r, "net").exists() and path(r, "acc").exists()
    async with running_manager(tmp_path, Off(), api) as r:
        assert await r.unprepare(claim(api)) == ()
        assert list(path(r, "net").parent.iterdir()) == []


# --- updates that do not complete normally -----------------------------------------------------------------


UPDATE = MetadataUpdate(uid=UID, request="net", attributes={"x": {"int": 1}})


async def test_an_update_while_another_instance_prepares_the_claim_is_an_error_that_says_to_repeat_it(
    tmp_path: Path,
) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as r, running_manager(tmp_path, Net(), api) as other:
        record = Record(UID, "ns", "c", State.PREPARING, "boot", owner=other.process.id)
        await r.claims.store.do(lambda records: records.insert(record))
        with pytest.raises(ClaimBusyError, match="is being prepared by another instance of the plugin"):
            await r.claims.update_metadata(UPDATE)


@pytest.mark.parametrize(
    ("state", "boot", "fields"),
    [
        (State.UNPREPARING, "boot", {}),
        (State.PREPARED, "earlier", {}),
        (State.PREPARED, "boot", {"recovered": True}),
    ],
)
async def test_only_a_prepared_claim_can_be_updated_and_a_failure_is_logged(
    tmp_path: Path, state: State, boot: str, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        record = Record(UID, "ns", "c", state, boot, **fields)
        await r.claims.store.do(lambda records: records.insert(record))
        with pytest.raises(
            MetadataUpdateError, match=r"^claim ns/c \(UID uid-1\) is not prepared, so it has no metadata"
        ):
            await r.claims.update_metadata(UPDATE)
    (line,) = [line for line in caplog.records if "metadata is not updated: claim ns/c" in line.getMessage()]
    assert (vars(line)["claim_uid"], vars(line)["request"]) == (UID, "net")


async def test_an_update_during_the_stop_of_the_plugin_is_an_error(tmp_path: Path) -> None:
    is_preparing = asyncio.Event()

    class HangingNet(Net):
        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            is_preparing.set()
            await asyncio.Event().wait()
            return []

    async with running_manager(tmp_path, HangingNet(), FakeApiServer()) as r:
        preparing = asyncio.create_task(r.prepare(claim(r.api)))
        await is_preparing.wait()
        update = asyncio.ensure_future(r.claims.update_metadata(UPDATE))
        await asyncio.sleep(0.01)
        await r.claims.stop(0)
        with pytest.raises(StoppingError, match="the plugin is shutting down"):
            await update
        await preparing


def test_an_update_before_the_start_or_after_the_end_of_the_loop_is_an_error(tmp_path: Path) -> None:
    async def run() -> MetadataUpdates:
        async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
            updates = MetadataUpdates(r.claims.engine.rollback, 1.0)
            with pytest.raises(StoppingError, match=r"call it after start\(\) has returned"):
                updates.begin(UPDATE)
            updates.open()
            return updates

    updates = asyncio.run(run())
    with pytest.raises(StoppingError, match="the plugin has stopped"):  # and no warning of a coroutine
        updates.begin(UPDATE)
