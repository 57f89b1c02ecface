"""Keeps the times when taints were added, in memory and in a small file.

If a pod tolerates a NoExecute taint for an hour, the hour starts when the taint is added. The API server keeps this time only in the
slice, and the kubelet deletes the slices of a plugin that does not run.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

import msgspec

from ...base.json_types import JSON
from ...cdi.directory import content_of, write_file
from ...errors import describe
from .slice_objects import ExistingSlice

log = logging.getLogger(__name__)
TAINT_TIMES = "taint-times.json"  # name of the file in the plugin's folder
Times = dict[str, dict[str, list[JSON]]]  # pool → device → taints


class _Taint(msgspec.Struct, rename="camel"):
    """The field of a taint that is checked: with a malformed time, the API server would reject the slice."""

    time_added: datetime | None = None


class TaintTimes:
    """The times of the taints in one publisher's slices.

    Args:
        path: the file; None keeps the times in memory only. If the file cannot be read or written, taints may get new times.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._times: Times = {}
        self._read = path is None

    def of(self, pool: str) -> Mapping[str, list[JSON]]:
        """Returns the taints of a pool's devices, by device, for devices with a taint that has a time."""
        return self._times.get(pool, {})

    def learn(self, existing: Iterable[ExistingSlice]) -> None:
        """Adds the times in the API server's slices. The first call also reads the file. Call it before slices are planned."""
        self._load()
        now: Times = {pool: dict(devices) for pool, devices in self._times.items()}
        for slice_ in existing:
            if slice_.timed:
                now.setdefault(slice_.pool, {}).update(slice_.timed)
        self._keep(now)

    def forget(self, tainted: Mapping[str, Iterable[str]]) -> None:
        """Forgets the times of all devices except ``tainted`` (pool → names), so that a taint that is added again gets a new time."""
        now = {
            pool: {n: t for n, t in devices.items() if n in names}
            for pool, devices in self._times.items()
            if (names := set(tainted.get(pool, ())))
        }
        self._keep({pool: devices for pool, devices in now.items() if devices})

    def _load(self) -> None:
        if self._read or self._path is None:
            return
        self._read = True
        try:
            content = content_of(str(self._path))
            msgspec.json.decode(content, type=dict[str, dict[str, list[_Taint]]])
            self._times = msgspec.json.decode(content, type=Times)
        except FileNotFoundError:
            pass
        except (OSError, ValueError) as e:
            log.warning("cannot read %s, so taints may get new times: %s", self._path, describe(e))

    def _keep(self, now: Times) -> None:
        if now == self._times:
            return
        self._times = now
        if self._path is None:
            return
        # The name is the same for all instances, so the next write replaces the file of an instance that was killed during a write.
        temporary = self._path.with_name(f".{self._path.name}.tmp")
        try:
            write_file(str(self._path), str(temporary), msgspec.json.encode(now), 0o600)
        except OSError as e:
            log.warning("cannot write %s, so taints may get new times after a restart: %s", self._path, describe(e))
