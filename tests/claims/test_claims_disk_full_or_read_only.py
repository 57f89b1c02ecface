"""The CDI folder is full, or its file system is remounted read-only, with the records writable or on a full disk:
nothing is lost, and later calls succeed.
"""

from __future__ import annotations

import contextlib
import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dra_devkit.testing import node_with
from tests.helpers.crash.file_faults import own_disk
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref, unprepare_call

pytestmark = pytest.mark.mounts
NOTHING = {"files": [], "records": [], "held": []}


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError as e:
                assert e.errno == errno.ENOSPC
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def read_only(folder: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


async def error_of(node: Any, call: Any, claim: Any) -> str:
    return str((await call(node, ref(claim))).claims[claim["metadata"]["uid"]].error)


@pytest.mark.parametrize("records", ["records well", "records full"])
@pytest.mark.parametrize("fault", [full, read_only])
async def test_claims_fail_alone_with_the_folder_s_name_and_later_calls_succeed(fault: Any, records: str) -> None:
    async with node_with(cls := make_toy_class(), reconcile_interval=0.2) as node, contextlib.AsyncExitStack() as stack:
        await node.stop()
        cdi, plugin_dir = node.settings.cdi_root, node.settings.plugin_dir
        stack.enter_context(own_disk(cdi, "64k"))
        stack.enter_context(own_disk(plugin_dir, "2m"))
        await node.start()
        stack.push_async_callback(node.stop)
        held_claim, new_claim = [
            await allocate(node, f"c{i}", [{"pool": "node-1", "device": f"toy-{i}"}]) for i in range(2)
        ]
        assert await error_of(node, prepare_call, held_claim) == ""
        with fault(cdi):
            with full(plugin_dir) if records == "records full" else contextlib.nullcontext():
                error = await error_of(node, prepare_call, new_claim)
                assert "cannot be written" in error or "disk is full" in error, error
                assert records == "records full" or str(cdi) in error, error
                assert any("cannot be written" in line for line in await node.plugin.not_ready())
                unprepared = await error_of(node, unprepare_call, held_claim)
                # A spec can be removed from a full disk, but not from a read-only one.
                assert bool(unprepared) <= (records == "records full" or fault is read_only), unprepared
                assert not (unprepared and "toy-0" not in (await node.leftovers())["held"])
            is_held = "toy-1" in (await node.leftovers())["held"]
            assert new_claim["metadata"]["uid"] not in cls.state or is_held
            assert records == "records full" or not is_held, "the failed prepare is rolled back on the faulty folder"
        # The kubelet repeats both calls.
        assert await error_of(node, prepare_call, new_claim) == ""
        assert await error_of(node, unprepare_call, held_claim) == ""
        assert list(cls.state.values()) == [["toy-1"]]
        assert (await node.leftovers())["held"] == ["toy-1"]

        async def ready() -> bool:
            return await node.plugin.not_ready() == []

        await node.api.wait("the plugin to be ready", ready)
        assert await error_of(node, unprepare_call, new_claim) == ""
        assert (await node.leftovers(), cls.state) == (NOTHING, {})
        assert [p.name for p in cdi.iterdir()] == []
