"""A security policy such as SELinux denies access that the file modes permit: an error names the file and the next
step, and nothing is lost.
"""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.errors import SocketError
from dra_kubeletplugin.plugin.grpc.server import UnixServer
from tests.helpers.crash.file_faults import failing_calls
from tests.helpers.drivers import make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref, unprepare_call


@pytest.mark.parametrize("place", ["CDI files", "records", "a record"])
async def test_denied_files_fail_claims_with_the_next_step_and_lose_nothing(place: str) -> None:
    async with node_with(cls := make_toy_class()) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        uid, cdi, path = claim["metadata"]["uid"], str(node.settings.cdi_root), node.settings.records_path
        if place != "CDI files":
            assert (await prepare_call(node, ref(claim))).claims[uid].error == ""
            await node.stop()
            inode = (path / f"{uid}.json").stat().st_ino
        text = {"CDI files": f"'{cdi}/", "records": f"{path.name}'", "a record": f"/{uid}.json'"}[place]
        with failing_calls(errno.EACCES, "open", text=text):
            if place == "CDI files":
                error = (await prepare_call(node, ref(claim))).claims[uid].error
                assert f"{cdi}/k8s." in error
                assert "cannot be written (Permission denied): see the permissions" in error
                assert cls.state == {}
            else:
                await node.start()
                assert "see its owner and mode" in (await prepare_call(node, ref(claim))).claims[uid].error
                assert (await unprepare_call(node, ref(claim))).claims[uid].error
                assert any("see its owner and mode" in line for line in await node.plugin.not_ready())
                assert (path / f"{uid}.json").stat().st_ino == inode
            assert any("ermission denied" in line or "its owner" in line for line in await node.plugin.not_ready())
        assert (await prepare_call(node, ref(claim))).claims[uid].error == ""
        assert await node.plugin.not_ready() == []
        assert (await node.leftovers())["records"] == [uid]


@pytest.mark.mounts
async def test_a_socket_on_a_read_only_file_system_is_an_error_with_the_cause(tmp_path: Path) -> None:
    folder, locks = tmp_path / "read-only", tmp_path / "locks"
    folder.mkdir()
    locks.mkdir()
    subprocess.run(["mount", "--bind", str(folder), str(folder)], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], check=True)
        with pytest.raises(SocketError, match=r"x\.sock cannot be served: .*Read-only file system"):
            await UnixServer(folder / "x.sock", "1-00000000", [], locks).start()
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
    assert list(locks.iterdir()) == []
