"""What a container gets with a device: the author's typed way to write CDI container edits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..errors import InvalidSpecError
from .spec import _check_edits


class _Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    def json(self) -> dict[str, Any]:
        built: dict[str, Any] = msgspec.to_builtins(self)
        return built


class DeviceNode(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A device node in the container.

    ``path`` is where it appears, ``host_path`` where it is on the host (the same when empty). Type and numbers are looked up
    on the host by the runtime when left out. ``permissions`` are of the cgroup: any of r, w, m. ``file_mode`` is octal bits.
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: int = 0
    minor: int = 0
    file_mode: int | None = None
    permissions: str = ""
    uid: int | None = None
    gid: int | None = None

    @property
    def source(self) -> str:
        return self.host_path or self.path


class Mount(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A bind mount from the host, e.g. ``Mount(host_path="/opt/x", container_path="/opt/x", options=["ro", "bind"])``."""

    host_path: str
    container_path: str
    options: Sequence[str] = ()
    type: str = ""


class Hook(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An OCI hook. ``timeout`` is in seconds."""

    hook_name: str
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout: int | None = None


class NetDevice(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A host's network interface that moves into the container (CDI 1.1.0)."""

    host_interface_name: str
    name: str


class ContainerEdits:
    """The changes that one device makes to a container; immutable.

    Checked when made: raises :class:`InvalidSpecError` with the field and the rule, so that a fault shows in a unit test.

    Args:
        env: ``{"NAME": "value"}``.
        device_nodes: paths, or :class:`DeviceNode` for more.
        mounts, hooks, net_devices: see their classes.
        additional_gids: supplementary group ids of the process.
        intel_rdt: as in the CDI specification.
    """

    __slots__ = ("_json", "_nodes")

    def __init__(
        self,
        *,
        env: Mapping[str, str] | None = None,
        device_nodes: Sequence[str | DeviceNode] = (),
        mounts: Sequence[Mount] = (),
        hooks: Sequence[Hook] = (),
        net_devices: Sequence[NetDevice] = (),
        additional_gids: Sequence[int] = (),
        intel_rdt: Mapping[str, Any] | None = None,
    ) -> None:
        for name in env or {}:
            if "=" in name:
                raise InvalidSpecError(f"env name {name!r} must not contain '='")
        nodes = [DeviceNode(path=n) if isinstance(n, str) else n for n in device_nodes]
        built: dict[str, Any] = {
            "env": [f"{k}={v}" for k, v in (env or {}).items()],
            "deviceNodes": [n.json() for n in nodes],
            "mounts": [m.json() for m in mounts],
            "hooks": [h.json() for h in hooks],
            "netDevices": [n.json() for n in net_devices],
            "additionalGids": list(additional_gids),
        }
        if intel_rdt is not None:
            built["intelRdt"] = dict(intel_rdt)
        self._json = {k: v for k, v in built.items() if v not in ([], None)}
        self._nodes = tuple(nodes)
        _check_edits(self._json)

    def json(self) -> dict[str, Any]:
        """The ``containerEdits`` object of a CDI spec."""
        return dict(self._json)

    def host_paths(self) -> Iterator[str]:
        """Paths that must exist on the host for a container to start."""
        yield from (n.source for n in self._nodes if not n.major)
        yield from (m["hostPath"] for m in self._json.get("mounts", []))

    def __bool__(self) -> bool:
        return bool(self._json)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContainerEdits) and self._json == other._json

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self._json))

    def __repr__(self) -> str:
        return f"ContainerEdits({self._json})"
