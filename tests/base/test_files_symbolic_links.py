"""A symbolic link at a name that the plugin writes, locks or removes: the file that it points to is neither written nor truncated."""

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


def mark(folder: Path) -> None:
    lock = InstanceLock(folder)
    lock.id = INSTANCE
    lock.acquire()
    lock.reap_dead()
    lock.release()


def ask(folder: Path) -> None:
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


def keep_times(folder: Path) -> None:
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
    "spec that is removed": (remove_spec, f"{PREFIX}_{UID}.json"),
    "note that is removed": (remove_spec, f".{PREFIX}_{UID}.record"),
    "process mark": (mark, f"{INSTANCE}.lock"),
    "process mark's temporary file": (mark, f".{INSTANCE}.new"),
    "process mark of another": (ask, f"{INSTANCE}.lock"),
    "lock on a path": (lock_path, "dra.sock.lock"),
    "lock's temporary file": (lock_path, f".dra.sock.lock.{INSTANCE}"),
    "lock that is removed": (remove_lock, "dra.sock.lock"),
    "taint times": (keep_times, "taint-times.json"),
    "taint times' temporary file": (keep_times, f".taint-times.json.{INSTANCE}"),
    "stale socket": (remove_socket, "dra.sock"),
}


@pytest.mark.parametrize("target", ["file", "nothing"])
@pytest.mark.parametrize(("work", "name"), CASES.values(), ids=CASES)
def test_the_target_of_a_link_is_neither_written_nor_made(
    work: Callable[[Path], None], name: str, target: str, tmp_path: Path
) -> None:
    folder, precious = tmp_path / "folder", tmp_path / "precious"
    folder.mkdir()
    if target == "file":
        precious.write_bytes(SECRET)
        precious.chmod(0o640)
    (folder / name).symlink_to(precious)
    with contextlib.suppress(OSError):  # an error is fine: each caller reports it
        work(folder)
    if target == "file":
        assert precious.read_bytes() == SECRET
        assert precious.stat().st_mode & 0o777 == 0o640
    else:
        assert not precious.exists()


@pytest.mark.parametrize("target", ["file", "nothing"])
async def test_a_socket_is_not_served_at_a_link(target: str, tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "dra.sock"
    if target == "file":
        precious.write_bytes(SECRET)
    path.symlink_to(precious)
    server = UnixServer(path, INSTANCE, [])
    with pytest.raises(Exception, match="is not a socket"):
        await server.start()
    assert path.is_symlink()
    assert precious.exists() == (target == "file")


def test_a_note_that_is_a_link_is_not_read(tmp_path: Path) -> None:
    specs = ClaimSpecs(tmp_path, "d.example.com", INSTANCE)
    (tmp_path / "elsewhere").write_bytes(b"note")
    specs.note_path(UID).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        specs.note(UID)
    assert not specs.has_content(UID, None, b"note")  # so the next pass writes it again, as a file
