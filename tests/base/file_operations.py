"""The plugin's operations on files in folders that other processes can write, each with the name of its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from dra_kubeletplugin.base.flock import FileLock, remove_unlocked
from dra_kubeletplugin.cdi import ClaimSpecs
from dra_kubeletplugin.claims.instance_lock import InstanceLock
from dra_kubeletplugin.plugin.grpc.sockets import remove_stale

UID = "3f2c9a52-6f55-4a35-9d0e-1c5d3c9fbe01"
INSTANCE = "7-0123abcd"


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
    lock = FileLock(folder / "dra.sock.lock")
    lock.acquire(0)
    lock.write(b"content")
    lock.remove()


def remove_lock(folder: Path) -> None:
    remove_unlocked(folder / "dra.sock.lock")


def remove_socket(folder: Path) -> None:
    assert not remove_stale(folder / "dra.sock")


PREFIX = "k8s.d.example.com-claim"
OPERATIONS: dict[str, tuple[Callable[[Path], None], str]] = {
    "spec": (write_spec, f"{PREFIX}_{UID}.json"),
    "spec's temporary file": (write_spec, f".{PREFIX}_{UID}.json.tmp-{INSTANCE}"),
    "note": (write_note, f".{PREFIX}_{UID}.record"),
    "note's temporary file": (write_two_notes, f".{PREFIX}_{UID}.record.tmp-{INSTANCE}"),
    "probe of the CDI folder": (probe, f".{PREFIX}_.tmp-{INSTANCE}"),
    "removed spec": (remove_spec, f"{PREFIX}_{UID}.json"),
    "removed note": (remove_spec, f".{PREFIX}_{UID}.record"),
    "instance lock": (hold_instance_lock, f"{INSTANCE}.lock"),
    "lock of another instance": (check_other_instances, f"{INSTANCE}.lock"),
    "lock on a path": (lock_path, "dra.sock.lock"),
    "removed lock": (remove_lock, "dra.sock.lock"),
    "stale socket": (remove_socket, "dra.sock"),
}
