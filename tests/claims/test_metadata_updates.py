"""Later news of a prepared claim's devices: on record, in the file that containers have open, and never twice or backwards."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dra_kubeletplugin import Claim, NetworkData, PreparedDevice, metadata
from dra_kubeletplugin.base import rewrite
from dra_kubeletplugin.errors import (
    DraError,
    DriverError,
    MetadataUpdateError,
    RecordsError,
    StillWorkingError,
    StoppingError,
)
from dra_kubeletplugin.metadata.document import Document, decode, decode_whole, encode
from tests.helpers.crash.claim_manager import FakeApiServer, RunningManager, running_manager
from tests.helpers.crash.metadata_update_process import POINTS, UID, Net, claim, path
from tests.helpers.waiting import wait_until

ETH = NetworkData(interface_name="eth1", ips=["10.0.0.2/24"], hardware_address="02:00:00:00:00:01")


def told(r: RunningManager, request: str) -> Document:
    return decode(path(r, request).read_bytes(), path(r, request))


async def test_news_reach_who_has_the_file_open_and_its_generation_grows_by_one(tmp_path: Path) -> None:
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
        assert told(r, "acc").generation == 1, "another request's reader is not woken"
        assert await driver.update_metadata(UID, "net", attributes={"speed": 100}) == 4, "nothing new"
        assert not path(r, "net").read_bytes().endswith(b"\n\n")


async def test_news_survive_a_restart_and_a_repeated_prepare(tmp_path: Path) -> None:
    api = FakeApiServer()
    async with running_manager(tmp_path, Net(), api) as r:
        ref = claim(api)
        await r.prepare(ref)
        await r.driver.update_metadata(UID, "acc", attributes={"x": 1}, device="d-2")
        before = path(r, "acc").read_bytes()
    async with running_manager(tmp_path, Net(), api) as r:
        assert not isinstance(await r.prepare(ref), DraError)
        assert path(r, "acc").read_bytes() == before
        assert await r.driver.update_metadata(UID, "acc", attributes={"x": 2}, device="node/d-2") == 3
        assert [d.attributes.get("x") for d in told(r, "acc").devices] == [None, 2]
        assert r.claims.files.are_intact((await r.claims.store.all())[0]), "the note tells it too"


@pytest.mark.crash
@pytest.mark.parametrize("point", POINTS)
async def test_killed_in_an_update_record_and_file_state_the_same_after_the_next_start(
    tmp_path: Path, point: str
) -> None:
    api = FakeApiServer()
    ref = claim(api)
    async with running_manager(tmp_path, Net(), api) as r:
        await r.prepare(ref)
    seen = 1
    with path(r, "net").open("rb") as mounted:

        def container() -> Document:
            return decode(os.pread(mounted.fileno(), 1 << 20, 0), Path("mounted"))

        for number in (50, 59) if "room" in point else (50, 5):  # the file grows, and shrinks
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "tests.helpers.crash.metadata_update_process", str(tmp_path), str(number)),
                env={**os.environ, "KILL_AT": point},
                cwd=Path(__file__).parents[2],
            )
            assert await process.wait() == -signal.SIGKILL, "it never got there"
            if point != "update: half the file":
                assert seen <= container().generation <= seen + 1
            async with running_manager(tmp_path, Net(), api) as r:
                await wait_until(lambda: not r.claims.tasks.uids)
                (record,) = await r.claims.store.all()
                assert r.claims.files.are_intact(record)
                assert seen <= container().generation <= seen + 1
                seen += 1
                assert (
                    await r.driver.update_metadata(UID, "net", attributes={"number": number, "text": "z" * number}) > 1
                )
                seen = container().generation
                assert container().devices[0].attributes["text"] == "z" * number
    async with running_manager(tmp_path, Net(), api) as r:
        assert await r.unprepare(ref) == ()
        assert list(r.settings.cdi_root.iterdir()) == []
        assert [p for p in (r.settings.plugin_dir / "dra-device-metadata").rglob("*") if not p.is_dir()] == []


async def test_two_instances_and_many_tasks_lose_no_update_and_no_generation_falls(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = claim(api)
    async with running_manager(tmp_path, Net(), api) as old, running_manager(tmp_path, Net(), api) as new:
        await old.prepare(ref)
        generations: list[int] = []
        done = asyncio.Event()

        async def look() -> None:
            while not done.is_set():
                data = path(old, "net").read_bytes()
                if document := decode_whole(data, path(old, "net")):  # as a reader: a write half done is read again
                    generations.append(document.generation)
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        updates = [
            r.driver.update_metadata(UID, "net", attributes={f"{who}{i}": i})
            for i in range(10)
            for who, r in (("o", old), ("n", new))
        ] + [
            r.driver.update_metadata(UID, "acc", attributes={who: 1}, device="d-1")
            for who, r in (("o", old), ("n", new))
        ]
        await asyncio.gather(*updates)
        done.set()
        await looking
        assert generations
        assert generations == sorted(generations)
        (device,) = told(new, "net").devices
        assert (device.generation, len(device.attributes)) == (21, 21)
        assert (told(new, "acc").generation, set(told(new, "acc").devices[0].attributes)) == (3, {"text", "o", "n"})


async def test_an_update_during_prepare_waits_for_it_and_one_within_is_reported_with_what_to_do(tmp_path: Path) -> None:
    class Busy(Net):
        go_on, inside = asyncio.Event(), True

        async def prepare(self, claim: Claim) -> list[PreparedDevice]:
            if self.inside:
                await self.update_metadata(claim, "net", network_data=ETH)
            await self.go_on.wait()
            return await super().prepare(claim)

    api = FakeApiServer()
    ref = claim(api)
    driver = Busy()
    async with running_manager(tmp_path, driver, api, call_timeout=1) as r:
        while isinstance(refused := await r.prepare(ref), StillWorkingError):
            pass
        assert "claim uid-1 has had other work in flight for more than 0.5 s" in str(refused)
        assert "do not await update_metadata() in prepare" in str(refused)
        await wait_until(lambda: not r.claims.tasks.uids)
    driver.inside = False
    async with running_manager(tmp_path, driver, api) as r:
        preparing = asyncio.create_task(r.prepare(ref))
        await wait_until(lambda: r.claims.tasks.uids)
        update = driver.update_metadata(UID, "net", network_data=ETH)
        driver.go_on.set()
        await preparing
        assert await update == 2
        assert told(r, "net").devices[0].network is not None


async def test_after_unprepare_and_for_what_a_claim_has_not_there_is_a_clear_error(tmp_path: Path) -> None:
    api = FakeApiServer()
    ref = claim(api)
    async with running_manager(tmp_path, Net(), api) as r:
        with pytest.raises(MetadataUpdateError, match="claim uid-1 is not prepared"):
            await r.driver.update_metadata(UID, "net", network_data=ETH)
        await r.prepare(ref)
        for given, says in (
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
            with pytest.raises(DriverError, match=says):
                await r.driver.update_metadata(UID, **{"request": "net", "network_data": ETH, **given})  # type: ignore[arg-type]
        assert told(r, "net").generation == 1
        await r.unprepare(ref)
        with pytest.raises(MetadataUpdateError, match="is not prepared"):
            await r.driver.update_metadata(UID, "net", network_data=ETH)
    with pytest.raises(StoppingError):
        await r.driver.update_metadata(UID, "net", network_data=ETH)


async def test_a_thread_of_the_driver_s_own_has_it_done_when_the_call_returns(tmp_path: Path) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))

        def work() -> int:
            r.driver.update_metadata(UID, "net", network_data=ETH)
            return told(r, "net").generation

        assert await asyncio.to_thread(work) == 2

        def fails() -> None:
            with pytest.raises(MetadataUpdateError):
                r.driver.update_metadata("nobody", "net", network_data=ETH)

        await asyncio.to_thread(fails)


async def test_a_full_disk_leaves_the_file_as_it_was_and_the_next_pass_writes_the_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_manager(tmp_path, Net(), FakeApiServer()) as r:
        await r.prepare(claim(r.api))
        before = path(r, "net").read_bytes()
        real = os.pwrite

        def full(fd: int, data: bytes, at: int) -> int:
            if at and Path(f"/proc/self/fd/{fd}").readlink().name == f"{UID}_net.json":
                if len(data) > 3:
                    return real(fd, bytes(data)[:3], at)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return real(fd, data, at)

        with monkeypatch.context() as patch:
            patch.setattr(os, "pwrite", full)
            with pytest.raises(
                RecordsError,
                match=r"is recorded, but its file cannot be written yet; the plugin retries: .*No space left",
            ):
                await r.driver.update_metadata(UID, "net", network_data=ETH)
            assert path(r, "net").read_bytes() == before
        await r.claims.reconciler.once(ask_server=False)
        assert told(r, "net").generation == 2


async def test_a_claim_without_metadata_and_a_driver_that_has_it_off_are_distinguished(tmp_path: Path) -> None:
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


def seen_after(real: Any, file: Path, states: list[bytes]) -> Any:
    def call(*args: Any) -> Any:
        done = real(*args)
        states.append(file.read_bytes())
        return done

    return call


TEXTS = st.dictionaries(
    st.sampled_from(["a", "b", "c"]), st.none() | st.text("xyz", max_size=60), min_size=1, max_size=3
)


@given(st.lists(TEXTS, max_size=8))
@settings(max_examples=25, deadline=None)
def test_any_row_of_updates_is_what_the_file_states_at_each_moment(updates: list[dict[str, str | None]]) -> None:
    """What one sees who reads between any two writes, too: every state of the file on the way is a whole one."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "f"

        def content(generation: int, facts: dict[str, str]) -> bytes:
            wire = {n: {"string": v} for n, v in facts.items()}
            device = {"driver": "d", "pool": "p", "name": "n", "attributes": wire}
            return encode(metadata.ClaimRef("c", "ns", "u"), generation, {"r": [device]})

        facts: dict[str, str] = {}
        file.write_bytes(content(1, facts))
        inode = file.stat().st_ino
        for generation, update in enumerate(updates, 2):
            before = facts
            facts = {n: v for n, v in {**facts, **update}.items() if v is not None}
            states: list[bytes] = []
            with pytest.MonkeyPatch.context() as patch:
                for name in ("pwrite", "ftruncate"):
                    patch.setattr(os, name, seen_after(getattr(os, name), file, states))
                rewrite.rewrite(str(file), content(generation, facts))
            for state in states:
                document = decode_whole(state, file)
                assert document is not None
                assert dict(document.devices[0].attributes) in (before, facts)
            assert file.read_bytes() == content(generation, facts)
            assert file.stat().st_ino == inode


async def test_a_later_claim_of_the_same_name_gets_a_file_of_its_own(tmp_path: Path) -> None:
    api = FakeApiServer()
    first = claim(api)
    async with running_manager(tmp_path, Net(), api) as r:
        await r.prepare(first)
        with path(r, "net").open("rb") as mounted:
            second = first._replace(uid="uid-2")
            api.claims["c"]["metadata"]["uid"] = "uid-2"
            for result in api.claims["c"]["status"]["allocation"]["devices"]["results"]:
                result["device"] = result["device"].replace("d-", "d-1")
            await r.prepare(second)
            assert decode(mounted.read(), Path("mounted")).claim.uid == UID
            other = path(r, "net").with_name("uid-2_net.json")
            assert decode(other.read_bytes(), other).claim.uid == "uid-2"
        await r.unprepare(first)
        assert not path(r, "net").exists()
        assert decode(other.read_bytes(), other).claim.uid == "uid-2", "a claim removes only its own files"
