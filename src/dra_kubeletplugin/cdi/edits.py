"""The typed API for CDI container edits: the changes that a container gets together with a device."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec

from ..errors import InvalidSpecError, describe, kind_of, printable
from .spec import check_edits, version_to_declare

E = TypeVar("E")
_NOT_TEXT = (bytes, bytearray, Mapping, list, tuple, set, frozenset, Awaitable, type(lambda: None))
_BIND = frozenset({"bind", "rbind"})
_Unsigned = Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)]


class _IntelRdt(msgspec.Struct, omit_defaults=True, rename="camel", forbid_unknown_fields=True):
    clos_id: str | None = msgspec.field(name="closID", default=None)
    l3_cache_schema: str | None = None
    mem_bw_schema: str | None = None
    schemata: list[str] | None = None
    enable_cmt: bool | None = msgspec.field(name="enableCMT", default=None)
    enable_mbm: bool | None = msgspec.field(name="enableMBM", default=None)
    enable_monitoring: bool | None = None


class _Others(msgspec.Struct, omit_defaults=True, rename="camel"):
    """The edits that have no class for authors."""

    additional_gids: list[_Unsigned] = []
    intel_rdt: _IntelRdt | None = None


class _Edit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    def json(self) -> dict[str, Any]:
        """Returns the edit as a JSON object. Raises :class:`InvalidSpecError` for a value of another type."""
        try:
            built: dict[str, Any] = msgspec.to_builtins(self)
            msgspec.convert(built, type(self))
        except Exception as e:
            raise InvalidSpecError(f"{type(self).__name__}: {describe(e)}") from None
        return built


class DeviceNode(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A device node in the container.

    Args:
        path: the path in the container.
        host_path: the path on the host; empty means the same path.
        type: by default, the runtime reads it from the node on the host.
        major: by default, the runtime reads it from the node on the host.
        minor: by default, the runtime reads it from the node on the host.
        file_mode: permission bits, e.g. ``0o660``.
        permissions: letters of the cgroup's device rule: ``r`` (read), ``w`` (write), ``m`` (mknod).
    """

    path: str
    host_path: str = ""
    type: str = ""
    major: _Unsigned = 0
    minor: _Unsigned = 0
    file_mode: _Unsigned | None = None
    permissions: str = ""
    uid: _Unsigned | None = None
    gid: _Unsigned | None = None

    @property
    def source(self) -> str:
        return self.host_path or self.path


class Mount(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A bind mount from the host, e.g. ``Mount(host_path="/opt/x", container_path="/opt/x", options=["ro"])``.

    The option ``bind`` is added if there is neither ``bind`` nor ``rbind`` nor a ``type``, because a runtime rejects
    such a mount. A ``type`` such as ``tmpfs`` makes another kind of mount, whose ``host_path`` is the source argument of mount(2).
    """

    host_path: str
    container_path: str
    options: Sequence[str] = ()
    type: str = ""

    @property
    def is_bind(self) -> bool:
        """Whether ``host_path`` is a path on the host."""
        return self.type in {"", *_BIND} or not _BIND.isdisjoint(self.options)

    def json(self) -> dict[str, Any]:
        built = super().json()
        if not self.type and isinstance(self.options, list | tuple) and _BIND.isdisjoint(self.options):
            built["options"] = [*self.options, "bind"]
        return built


class Hook(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """An OCI hook. ``path`` is the absolute path of a program on the host; ``timeout`` is in seconds."""

    hook_name: str
    path: str
    args: Sequence[str] = ()
    env: Sequence[str] = ()
    timeout: _Unsigned | None = None


class NetDevice(_Edit, frozen=True, kw_only=True, omit_defaults=True, rename="camel"):
    """A network interface of the host that moves into the container (CDI 1.1.0).

    Args:
        host_interface_name: its name on the host.
        name: its name in the container.
    """

    host_interface_name: str
    name: str


class ContainerEdits:
    """The changes that one device makes to a container. Immutable.

    The constructor validates the edits and raises :class:`InvalidSpecError` with field and rule, so that a unit test finds
    mistakes. The rules are the rules of the CDI specification, and three more:

    - Paths are absolute, because a runtime resolves a relative path from its own working directory.
    - Text is valid Unicode.
    - Text has no NUL.

    Args:
        env: ``{"NAME": "value"}``. If several devices of a container set the same name, the container gets the value of the last device.
            So put the device into the name, such as ``CARD_A1_MODE``, unless the value is the same for all devices.
        device_nodes: paths, or :class:`DeviceNode` for more options.
        mounts: see :class:`Mount`.
        hooks: see :class:`Hook`.
        net_devices: see :class:`NetDevice`.
        additional_gids: supplementary group ids of the process.
        intel_rdt: the object ``intelRdt`` of the CDI specification. CDI 1.1.0 dropped ``enableCMT`` and ``enableMBM``: newer runtimes
            reject a spec with them.
    """

    __slots__ = ("_host_paths", "_json")

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
        if env is not None and not isinstance(env, Mapping):
            raise InvalidSpecError(f"env must be a mapping of names to values, not {kind_of(env)}")
        lists = {"device_nodes": device_nodes, "mounts": mounts, "hooks": hooks, "net_devices": net_devices}
        for field, sequence in (lists | {"additional_gids": additional_gids}).items():
            if sequence and (isinstance(sequence, str | bytes | Mapping) or not isinstance(sequence, Iterable)):
                one = f": put it into a list, `[{sequence!r}]`" if isinstance(sequence, str) else ""
                raise InvalidSpecError(f"{field} must be a list, not {kind_of(sequence)}{one}")
        for name in env or {}:
            if not isinstance(name, str):
                raise InvalidSpecError(f"env name {printable(repr(name))} must be text")
            if "=" in name:
                raise InvalidSpecError(f"env name {name!r} must not contain '='")
            variable: object = (env or {})[name]
            # the text of such an object, e.g. a list or a function, is never the intended value
            if variable is None or isinstance(variable, _NOT_TEXT):
                raise InvalidSpecError(f"env {name} is {kind_of(variable)}: pass text, or omit the variable")
        nodes = [DeviceNode(path=n) if isinstance(n, str) else n for n in device_nodes]
        built: dict[str, Any] = {}
        for key, value in (
            ("env", [f"{k}={v}" for k, v in (env or {}).items()]),
            ("deviceNodes", nodes and _json(nodes, DeviceNode, "device_nodes")),
            ("mounts", mounts and _json(mounts, Mount, "mounts")),
            ("hooks", hooks and _json(hooks, Hook, "hooks")),
            ("netDevices", net_devices and _json(net_devices, NetDevice, "net_devices")),
            ("additionalGids", list(additional_gids)),
        ):
            if value:
                built[key] = value
        if intel_rdt is not None:
            built["intelRdt"] = dict(intel_rdt)
        self._json = built
        built |= _others(built)
        _check_text(built, "")
        check_edits(built)
        if intel_rdt is not None:
            version_to_declare({"containerEdits": built})
        self._host_paths = _checked_paths(nodes, mounts, hooks) if nodes or mounts or hooks else ()

    def json(self) -> dict[str, Any]:
        """Returns the ``containerEdits`` object of a CDI spec."""
        return dict(self._json)

    def host_paths(self) -> Iterator[str]:
        """Yields the paths that must exist on the host before a container can start: device nodes without numbers,
        sources of bind mounts, programs of hooks. For the framework.
        """
        yield from self._host_paths

    def __bool__(self) -> bool:
        return bool(self._json)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ContainerEdits) and self._json == other._json

    def __hash__(self) -> int:
        return hash(msgspec.json.encode(self._json))

    def __repr__(self) -> str:
        return f"ContainerEdits({self._json})"


def _others(built: dict[str, Any]) -> dict[str, Any]:
    """Returns the edits that have no class for authors, in JSON types. Raises :class:`InvalidSpecError` for a value of another type."""
    try:
        others: dict[str, Any] = msgspec.to_builtins(msgspec.convert(built, _Others))
    except (msgspec.ValidationError, TypeError) as e:
        raise InvalidSpecError(str(e)) from None
    return others


def _constructor_call(cls: type[_Edit]) -> str:
    """Returns the constructor call with its required arguments, for error messages."""
    needed = ", ".join(f"{f.name}=..." for f in msgspec.structs.fields(cls) if f.required)
    return f"{cls.__name__}({needed})"


def _json(edits: Sequence[E], cls: type[_Edit], field: str) -> list[dict[str, Any]]:
    out = []
    for i, edit in enumerate(edits):
        if not isinstance(edit, cls):
            raise InvalidSpecError(
                f"{field}[{i}] must be a {cls.__name__}, not {kind_of(edit)}: write {_constructor_call(cls)}"
            )
        out.append(edit.json())
    return out


def _checked_paths(nodes: Sequence[DeviceNode], mounts: Sequence[Mount], hooks: Sequence[Hook]) -> tuple[str, ...]:
    """Returns the paths that must exist on the host.

    Raises :class:`InvalidSpecError` for a relative path on the host or in the container.
    """
    on_host = [(f"device_nodes[{i}]", n.source) for i, n in enumerate(nodes) if not n.major]
    on_host += [(f"mounts[{i}].host_path", m.host_path) for i, m in enumerate(mounts) if m.is_bind]
    on_host += [(f"hooks[{i}].path", h.path) for i, h in enumerate(hooks)]
    in_container = [(f"device_nodes[{i}]", n.path) for i, n in enumerate(nodes)]
    in_container += [(f"mounts[{i}].container_path", m.container_path) for i, m in enumerate(mounts)]
    for field, path in on_host + in_container:
        if not path.startswith("/"):
            raise InvalidSpecError(f"{field} {path!r} must be an absolute path")
    return tuple(path for _, path in on_host)


def _check_text(value: object, path: str) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _check_text(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, inner in enumerate(value):
            _check_text(inner, f"{path}[{i}]")
    elif isinstance(value, str):
        if "\0" in value:
            raise InvalidSpecError(f"{path} {value[:80]!r} must not contain a NUL")
        try:
            value.encode()
        except UnicodeEncodeError:
            raise InvalidSpecError(f"{path} {value[:80]!r} is not valid Unicode") from None
