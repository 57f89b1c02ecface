"""The plugin does not follow a symbolic link at a name that it writes, locks or removes: it neither writes nor truncates the target."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest

from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.devices.slices.taint_times import TaintTimes
from dra_kubeletplugin.plugin.grpc import UnixServer, remove_dead, remove_stale
from dra_kubeletplugin.plugin.grpc.path_lock import PathLock

UID = "3f2c9a52-6f55-4a35-9d0e-1c5d3c9fbe01"
INSTANCE = "7-0123abcd"
SECRET = b'{"pool": {"device": []}}\n'


def write_spec(folder: Path) -> None:
    ClaimSpecs(folder, "d.example.com", INSTANCE).write(UID, {"kind": "k"})


def write_note(folder: Path) -> None:
    ClaimSpecs(folder, "d.example.com", INSTANCE).write_note(UID, b"note")


def write_two_notes(folder: Path) -> None:
    write_note(folder)
    write_note(folder)


def probe(folder: Path) -> None:
    ClaimSpecs(folder, "d.example.com", INSTANCE).probe()


def remove_spec(folder: Path) -> None:
    specs = ClaimSpecs(folder, "d.example.com", INSTANCE)
    specs.remove(UID)
    specs.remove_note(UID)


def hold_instance_lock(folder: Path) -> None:
    lock = InstanceLock(folder)
    lock.id = INSTANCE
    lock.acquire()
    lock.reap_dead()
    lock.release()


def check_other_instances(folder: Path) -> None:
    lock = InstanceLock(folder)
    assert not lock.alive(INSTANCE)
    assert lock.others() == []
    lock.reap_dead()


def lock_path(folder: Path) -> None:
    lock = PathLock(folder / "dra.sock.lock", INSTANCE)
    lock.acquire()
    lock.release()


def remove_lock(folder: Path) -> None:
    remove_dead(folder / "dra.sock.lock")


def save_taint_times(folder: Path) -> None:
    times = TaintTimes(folder / "taint-times.json", INSTANCE)
    times._load()
    times._keep({"pool": {"device": [{"key": "k", "timeAdded": "2026-01-01T00:00:00Z"}]}})


def remove_socket(folder: Path) -> None:
    assert not remove_stale(folder / "dra.sock")


PREFIX = "k8s.d.example.com-claim"
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "spec": (write_spec, f"{PREFIX}_{UID}.json"),
    "spec's temporary file": (write_spec, f".{PREFIX}_{UID}.json.tmp-{INSTANCE}"),
    "note": (write_note, f".{PREFIX}_{UID}.record"),
    "note's temporary file": (write_two_notes, f".{PREFIX}_{UID}.record.tmp-{INSTANCE}"),
    "probe of the CDI folder": (probe, f".{PREFIX}_.tmp-{INSTANCE}"),
    "removed spec": (remove_spec, f"{PREFIX}_{UID}.json"),
    "removed note": (remove_spec, f".{PREFIX}_{UID}.record"),
    "instance lock": (hold_instance_lock, f"{INSTANCE}.lock"),
    "instance lock's temporary file": (hold_instance_lock, f".{INSTANCE}.new"),
    "lock of another instance": (check_other_instances, f"{INSTANCE}.lock"),
    "lock on a path": (lock_path, "dra.sock.lock"),
    "lock's temporary file": (lock_path, f".dra.sock.lock.{INSTANCE}"),
    "removed lock": (remove_lock, "dra.sock.lock"),
    "taint times": (save_taint_times, "taint-times.json"),
    "taint times' temporary file": (save_taint_times, f".taint-times.json.{INSTANCE}"),
    "stale socket": (remove_socket, "dra.sock"),
}


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(("act", "name"), CASES.values(), ids=CASES)
def test_the_target_of_a_link_is_neither_written_nor_created(
    act: Callable[[Path], None], name: str, target: str, tmp_path: Path
) -> None:
    folder, target_file = tmp_path / "folder", tmp_path / "target"
    folder.mkdir()
    if target == "file":
        target_file.write_bytes(SECRET)
        target_file.chmod(0o640)
    (folder / name).symlink_to(target_file)
    with contextlib.suppress(OSError):  # An error is allowed, because each caller reports it.
        act(folder)
    if target == "file":
        assert target_file.read_bytes() == SECRET
        assert target_file.stat().st_mode & 0o777 == 0o640
    else:
        assert not target_file.exists()


@pytest.mark.parametrize("target", ["file", "nothing"])
async def test_a_socket_is_not_served_at_a_link(target: str, tmp_path: Path) -> None:
    target_file, path = tmp_path / "target", tmp_path / "dra.sock"
    if target == "file":
        target_file.write_bytes(SECRET)
    path.symlink_to(target_file)
    server = UnixServer(path, INSTANCE, [])
    with pytest.raises(Exception, match="is not a socket"):
        await server.start()
    assert path.is_symlink()
    assert target_file.exists() == (target == "file")


def test_a_note_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path, "d.example.com", INSTANCE)
    (tmp_path / "target").write_bytes(b"note")
    specs.note_path(UID).symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        specs.note(UID)
    assert not specs.has_content(UID, None, b"note")  # The next pass therefore writes the note again, as a file.
