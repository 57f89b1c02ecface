"""The state of the GPUs of a described host, in a file that outlives the plugin. Tests change it to inject faults."""

from __future__ import annotations

import contextlib
import fcntl
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

State = dict[str, Any]
XID = 0x8
NO_INSTANCE = 0xFFFFFFFF


class HardwareState:
    """Reads and changes the file. It belongs to one boot: after a reboot the GPUs have no instances and no faults.

    Keys: ``mig`` (addresses with MIG mode on), ``instances``, ``in_use``, ``lost`` and ``unmonitored`` (addresses),
    ``released`` (addresses with persistence mode off), ``action`` (recovery action by address), ``events`` (not yet
    delivered), ``replaced`` (the kernel driver was updated), ``kill_at`` (the process dies at the call with this number
    that changes a GPU; an odd number is before a change, an even number after it), ``changes`` (numbers so far).
    """

    def __init__(self, path: Path, boot: str) -> None:
        self.path = path
        self.boot = boot

    def read(self) -> State:
        with contextlib.suppress(FileNotFoundError):
            state: State = json.loads(self.path.read_text())
            if state["boot"] == self.boot:
                return state
        empty: State = {key: [] for key in ("mig", "instances", "in_use", "lost", "unmonitored", "released", "events")}
        return {"boot": self.boot, **empty, "action": {}, "replaced": False, "changes": 0, "kill_at": 0}

    @contextlib.contextmanager
    def change(self) -> Iterator[State]:
        """Yields the state, and writes it after the block. Processes and threads wait for each other."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            state = self.read()
            yield state
            temporary = self.path.with_suffix(f".{uuid.uuid4().hex}")
            temporary.write_text(json.dumps(state))
            temporary.replace(self.path)

    def set(self, **values: Any) -> None:
        """Replaces the values of some keys."""
        with self.change() as state:
            state |= values

    def set_persistent(self, address: str, *, on: bool) -> None:
        """Changes persistence mode of a GPU."""
        with self.change() as state:
            state["released"] = [a for a in state["released"] if a != address] + ([] if on else [address])

    def send_xid(self, address: str, xid: int, gpu_instance: int = NO_INSTANCE) -> None:
        """Adds an event, as a GPU reports it after an error."""
        with self.change() as state:
            state["events"].append({"address": address, "type": XID, "data": xid, "gi": gpu_instance})
