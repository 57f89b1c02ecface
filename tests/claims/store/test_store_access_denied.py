"""A security policy such as SELinux denies access that the file modes permit: an error names the file and the next
step, and nothing is lost.
"""

from __future__ import annotations

import errno
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
from grpc.aio import _server

from dra_devkit.testing import node_with
from dra_kubeletplugin import Device, Host
from dra_kubeletplugin.errors import SocketError
from dra_kubeletplugin.plugin.grpc import UnixServer
from tests.helpers.drivers import Toy, make_toy_class
from tests.helpers.node_steps import allocate, prepare_call, ref, unprepare_call

HOST = {"functions": [{"address": "0000:01:00.0", "vendor": 0x10EE, "device": 0x1234}]}


def denied(path: object = "") -> PermissionError:
    return PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


class Pci(Toy):
    name = "pci.example.com"

    async def devices(self) -> list[Device]:
        return [f.device() for f in self.host.pci(vendor=0x10EE)]


@pytest.mark.parametrize("denied_operation", ["the list of devices", "an attribute"])
async def test_devices_stay_published_when_sys_cannot_be_read(
    denied_operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_with(Pci, host=HOST) as node:
        old_devices = await node.published()
        with monkeypatch.context() as patch:
            if denied_operation == "an attribute":
                _deny(patch, "open", "/vendor")
                real = os.access
                patch.setattr(
                    os, "access", lambda p, mode: real(p, mode) and not (mode == os.R_OK and str(p).endswith("/vendor"))
                )
            else:
                _deny(patch, "listdir", "bus/pci/devices")
            with pytest.raises(PermissionError):
                list(Host(node.settings.sysfs_root).pci())
            await node.plugin.discovery.call_now()
            assert any("Permission denied" in line for line in await node.plugin.not_ready())
            assert list(await node.published()) == list(old_devices) != []
        await node.rescan()
        assert await node.plugin.not_ready() == []


def _deny(patch: pytest.MonkeyPatch, name: str, part: str) -> None:
    real = getattr(os, name)

    def call(path: Any, *args: Any, **options: Any) -> Any:
        if str(path).rstrip("/").endswith(part):
            raise denied(path)
        return real(path, *args, **options)

    patch.setattr(os, name, call)


async def test_cdi_files_with_denied_writes_fail_the_claim_and_show_in_readiness(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with node_with(cls := make_toy_class()) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        uid, cdi = claim["metadata"]["uid"], str(node.settings.cdi_root)
        with monkeypatch.context() as patch:
            real = os.open

            def open_(path: Any, flags: int, *args: Any, **options: Any) -> int:
                if str(path).startswith(cdi) and flags & os.O_CREAT:
                    raise denied(path)
                return real(path, flags, *args, **options)

            patch.setattr(os, "open", open_)
            error = (await prepare_call(node, ref(claim))).claims[uid].error
            assert f"{cdi}/k8s." in error
            assert "cannot be written (Permission denied): see the permissions" in error
            assert any("Permission denied" in line for line in await node.plugin.not_ready())
            assert cls.state == {}
        assert (await prepare_call(node, ref(claim))).claims[uid].error == ""
        assert await node.plugin.not_ready() == []


@pytest.mark.parametrize("denied_file", ["the folder", "a claim"])
async def test_records_that_may_not_be_opened_fail_claims_and_are_not_replaced(
    denied_file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with node_with(make_toy_class()) as node:
        claim = await allocate(node, "c", [{"pool": "node-1", "device": "toy-0"}])
        uid = claim["metadata"]["uid"]
        assert (await prepare_call(node, ref(claim))).claims[uid].error == ""
        await node.stop()
        file = node.settings.records_path / f"{uid}.json"
        inode = file.stat().st_ino
        with monkeypatch.context() as patch:
            _deny(patch, "open", node.settings.records_path.name if denied_file == "the folder" else file.name)
            await node.start()
            error = (await prepare_call(node, ref(claim))).claims[uid].error
            assert "see its owner and mode" in error, error
            assert (await unprepare_call(node, ref(claim))).claims[uid].error
            assert any("see its owner and mode" in line for line in await node.plugin.not_ready())
        assert file.stat().st_ino == inode
        assert (await prepare_call(node, ref(claim))).claims[uid].error == ""
        assert (await node.leftovers())["records"] == [uid]


async def test_a_socket_that_may_not_be_bound_is_an_error_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Denied(socket.socket):
        def bind(self, address: Any) -> None:
            raise denied()

    def fail(self: object, address: str) -> int:
        raise RuntimeError(f"Failed to bind to address {address}")

    monkeypatch.setattr(_server.Server, "add_insecure_port", fail)
    monkeypatch.setattr(socket, "socket", Denied)
    with pytest.raises(SocketError, match=r"x\.sock cannot be served: .*Permission denied.*such as SELinux"):
        await UnixServer(tmp_path / "x.sock", "1-00000000", []).start()
    assert list(tmp_path.iterdir()) == []


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
