"""An instance is alive as long as it can touch hardware, is never considered dead before, and leaves no files
behind.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from dra_devkit.testing import node_with
from dra_kubeletplugin.claims.instance_lock import InstanceLock, OwnedSocket
from tests.helpers.crash.harness import DRIVER, node_harness
from tests.helpers.crash.record_stores import KillableLock
from tests.helpers.drivers import make_toy_class


def is_ending(pid: int) -> bool:
    """Returns whether the kernel has begun to end a process. Its threads do nothing more, and its locks are released
    before the test sees the exit.
    """
    try:
        flags = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[6]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(int(flags) & 0x4)  # PF_EXITING


@pytest.mark.crash
async def test_dra_run_holds_its_lock_while_a_thread_is_in_the_hardware_and_removes_it_at_its_end(
    tmp_path: Path,
) -> None:
    async with node_harness(tmp_path) as b:
        process = await b.start(SHUTDOWN_GRACE_PERIOD="1s")
        hold_file = await b.apply_pod_and_hold_prepare("pod")
        folder = b.node.kubelet_root / "plugins" / DRIVER / "processes"
        other = InstanceLock(folder)
        (lock_file,) = folder.iterdir()
        id = lock_file.name.removesuffix(".lock")
        process.send_signal(signal.SIGTERM)
        while process.returncode is None:
            assert other.alive(id) or is_ending(process.pid)
            await asyncio.sleep(0.01)
        assert not other.alive(id)
        hold_file.unlink()
        b.plugins.clear()
        await b.start()
        assert not lock_file.exists()
        await b.cluster.wait_running("pod")
        b.check_quiet()


# --- malformed files next to the lock files ---------------------------------------------------------


def writer_of(line: bytes) -> Callable[[Path], object]:
    """Returns a function that writes a file whose second line is ``line``."""
    return lambda path: path.write_bytes(b"1.0\n%s\n" % line)


def name_other_files(path: Path) -> None:
    """Names a file and a folder that are no sockets. Both are in ``tmp_path``, so a fault of the code removes no file of the machine."""
    other = path.parent / "other"
    other.touch()
    writer_of(msgspec.json.encode([{"path": str(other)}, {"path": str(path.parent)}]))(path)


MALFORMED: dict[str, Callable[[Path], object]] = {
    "empty": Path.touch,
    "not JSON": writer_of(b"\xff\xfe{"),
    "wrong types": writer_of(b"7"),
    "a socket without a path": writer_of(b"[{}]"),
    "a path that is too long": writer_of(b'[{"path": "/' + b"x" * 300 + b'"}]'),
    "a file of another program": name_other_files,
    "nested without end": writer_of(b"[" * 50_000),
    "a directory": lambda path: path.mkdir(),
    "a pipe": os.mkfifo,
    "a link to nothing": lambda path: path.symlink_to("/nonexistent/x"),
}


@pytest.mark.parametrize("name", ["1-deadbeef.lock", "x.lock", "notes.txt"])
@pytest.mark.parametrize("write_malformed", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_files_next_to_the_lock_files_stop_no_start_and_are_no_instances(
    write_malformed: Callable[[Path], object], name: str, tmp_path: Path
) -> None:
    write_malformed(tmp_path / name)
    lock = InstanceLock(tmp_path)
    lock.acquire()
    from dra_kubeletplugin.plugin.grpc.sockets import remove_stale

    sockets = lock.reap_dead()
    if write_malformed is name_other_files and name == "1-deadbeef.lock":
        assert [s.path for s in sockets] == [str(tmp_path / "other"), str(tmp_path)]
    for socket_left in sockets:
        assert not remove_stale(Path(socket_left.path), socket_left.device or None, socket_left.inode or None)
    assert lock.others() == []
    assert lock.is_newest()
    assert not lock.alive(name.removesuffix(".lock"))
    assert (tmp_path / "other").exists() == (write_malformed is name_other_files)
    lock.release()


async def test_sockets_of_killed_instances_are_removed_and_those_of_running_instances_stay() -> None:
    async with node_with(make_toy_class()) as node:
        instance_id = node.plugin.process.id
        await node.stop()
        folder, registry = node.settings.plugin_dir, node.settings.registry_dir
        dead_lock = KillableLock(folder / "processes")
        dead_lock.acquire()
        running_lock = InstanceLock(folder / "processes")
        running_lock.acquire()
        removed_paths = [
            folder / f".{dead_lock.id}a",
            registry / f".{dead_lock.id}b",
            folder / f".{instance_id}a",
            folder / "left.sock",
        ]
        kept_paths = [folder / f".{running_lock.id}a", registry / f".{running_lock.id}b", folder / "theirs.sock"]
        for path in removed_paths + kept_paths:
            with socket.socket(socket.AF_UNIX) as s:
                s.bind(os.fsencode(path))
        info = (folder / "left.sock").stat()
        dead_lock.write_sockets(
            [
                OwnedSocket(str(folder / "left.sock"), info.st_dev, info.st_ino),
                OwnedSocket(str(folder / "theirs.sock"), 1, 1),
            ]
        )
        dead_lock.kill()
        await node.start()
        assert [p.name for p in removed_paths if p.exists()] == []
        assert [p.name for p in kept_paths if not p.exists()] == []
        for path in kept_paths:
            path.unlink()
        running_lock.release()
