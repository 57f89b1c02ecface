"""Checks whether the node's container runtime resolves CDI devices, and from which directories it reads CDI specs.

It reads the files that the runtime's process reads: the file in its command line, and the files that this file imports.
Sources: containerd docs/cri/config.md (``enable_cdi``, off by default before 2.0, and ``cdi_spec_dirs``), cmd/containerd/server/config
(imports); crio.conf(5) ``cdi_spec_dirs``.
"""

from __future__ import annotations

import contextlib
import mmap
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dra_kubeletplugin.base.files import read_file
from dra_kubeletplugin.errors import printable

from .findings import Finding, denied, failure, ok, unknown, warning
from .processes import Process

DEFAULT_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_DEFAULT_CONFIG = "/etc/containerd/config.toml"
# Where distributions keep the file, for a machine whose processes are not visible.
_CONTAINERD = (
    _DEFAULT_CONFIG,
    "/var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "/var/lib/rancher/rke2/agent/etc/containerd/config.toml",
    "/etc/k0s/containerd.toml",
    "/var/snap/microk8s/current/args/containerd.toml",
)
_CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*.conf")
# Sections of the CRI plugin, by version of the configuration file. containerd 1.x writes version 2, containerd 2.x version 3 or later.
_SECTIONS = {
    1: ("cri",),
    2: ("io.containerd.grpc.v1.cri",),
    3: ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"),
}
_SECTIONS[4] = _SECTIONS[3]
_PACKAGES = b"github.com/containerd/containerd/"  # in the binary of each containerd; 2.x has packages below v2/
_MOST_IMPORTS = 64
_ENABLE_CDI = "set enable_cdi = true in its CRI plugin and restart it"


@dataclass(frozen=True)
class _Setting:
    """``enabled`` is None if the configuration does not set it and the version of containerd is not known."""

    enabled: bool | None
    folders: tuple[Path, ...] = DEFAULT_FOLDERS


class _ConfigError(Exception):
    """containerd cannot use a configuration file."""


def look(root: Path, cdi_root: Path, seen: Sequence[Process]) -> Iterator[Finding]:
    """Checks the configuration files. ``root`` is where the host's file system is mounted; ``cdi_root`` is where drivers write specs."""
    containerds = [p for p in seen if p.name == "containerd"]
    crios = [p for p in seen if p.name == "crio"]
    configured = [] if containerds or crios else [Path(name) for name in _CONTAINERD if (root / name[1:]).is_file()]
    crio = sorted(path for pattern in _CRIO for path in root.glob(pattern) if path.is_file())
    for process in containerds:
        yield from _safely(_containerd(_View(root, process), cdi_root))
    for path in configured:
        yield from _safely(_containerd(_View(root, None, path), cdi_root))
    if crios or (crio and not containerds and not configured):
        yield from _safely(iter([_finding_of(_of_crio(crio), "CRI-O", cdi_root)]))
    elif not containerds and not configured:
        yield unknown(
            "runtime",
            "no configuration of containerd or CRI-O is visible from here",
            "run `dra doctor` on the node, or set --host-root",
        )


def _safely(found: Iterator[Finding]) -> Iterator[Finding]:
    try:
        yield from found
    except OSError as e:
        yield denied("runtime", e)


class _View:
    """The files of one containerd, as its process sees them. Without a process, ``config`` is the file to read."""

    def __init__(self, root: Path, process: Process | None, config: Path | None = None) -> None:
        given = process and next(filter(None, map(process.option, ("-c", "--config", "-config", "--c"))), None)
        self.config = config or Path(given or _DEFAULT_CONFIG)
        self.is_required = bool(given or config)
        self._proc = root / "proc" / str(process.pid) if process else None
        self._root = root
        if self._proc is not None:
            with contextlib.suppress(OSError):  # the process may have another root, such as k3s in a container
                (self._proc / "root/proc").stat()
                self._root = self._proc / "root"
        name = f", process {process.pid}" if process else ""
        self.shown = f"containerd ({self.config}{name})"

    def at(self, path: Path) -> Path:
        """Returns where a path of the process is visible here."""
        if not path.is_absolute():
            return (self._proc / "cwd" if self._proc else self._root) / path
        return self._root / str(path).lstrip("/")

    def matching(self, pattern: Path) -> Iterator[Path]:
        """Yields the paths of the process that match a pattern."""
        base = self.at(Path(pattern.anchor))
        for found in sorted(base.glob(str(pattern.relative_to(pattern.anchor)))):
            yield pattern.anchor / found.relative_to(base)

    def major(self) -> int | None:
        """Returns 1 or 2, the major version of the process's binary; None if it is not known."""
        with contextlib.suppress(OSError, ValueError):
            if self._proc is not None:
                path = self._proc / "exe"
                with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                    if content.find(_PACKAGES + b"v2") >= 0:
                        return 2
                    return 1 if content.find(_PACKAGES) >= 0 else None
        return None

    def files(self) -> Iterator[tuple[Path, Mapping[str, Any]]]:
        """Yields the configuration file and the files that it imports, in the order in which containerd reads them.

        Raises:
            _ConfigError: containerd does not start with one of the files.
        """
        pending, done = [self.config], set[Path]()
        if not self.is_required and not self.at(self.config).exists():
            return
        while pending and len(done) < _MOST_IMPORTS:
            path = pending.pop(0)
            if path in done:
                continue
            done.add(path)
            config = _load(self.at(path), path)
            yield path, config
            for name in config.get("imports") or ():
                imported = path.parent / str(name)  # an absolute name stays as it is
                pending += self.matching(imported) if "*" in str(name) else [imported]


def _load(path: Path, shown: Path) -> Mapping[str, Any]:
    try:
        return tomllib.loads(read_file(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise _ConfigError(f"{shown} is not valid TOML: {e}") from None
    except ValueError as e:
        raise _ConfigError(f"{shown} cannot be read: {e}") from None


def _containerd(view: _View, cdi_root: Path) -> Iterator[Finding]:
    section: dict[str, Any] = {}
    major, version, disabled = view.major(), 0, set[str]()
    try:
        for path, config in view.files():
            version = config.get("version", version or 1)
            if not isinstance(version, int):
                raise _ConfigError(f"{path} has version {printable(version)}")
            if version not in _SECTIONS:
                yield unknown("runtime", f"{path} has version {version}", "check enable_cdi of its CRI plugin")
                return
            major = 2 if version >= 3 else major
            plugins = _table(config, "plugins")
            found: Mapping[str, Any] = next((t for name in _SECTIONS[version] if (t := _table(plugins, name))), {})
            # An import replaces the whole section in 1.x, and single fields in 2.x.
            section = {**(section if major == 2 or not found else {}), **found}
            disabled |= {str(name) for name in config.get("disabled_plugins") or ()}
    except _ConfigError as e:
        yield failure("runtime", str(e), "containerd will not start with it")
        return
    if disabled & {"cri", *(name for names in _SECTIONS.values() for name in names)}:
        yield unknown("runtime", f"{view.shown} has its CRI plugin off, so it is not the kubelet's runtime")
        return
    default = True if major == 2 else False if major == 1 else None
    enabled = section.get("enable_cdi", default)
    setting = _Setting(enabled if enabled is None else enabled is True, _folders(section.get("cdi_spec_dirs")))
    yield _finding_of(setting, view.shown, cdi_root)


def _of_crio(paths: Iterable[Path]) -> _Setting:
    folders: tuple[Path, ...] = DEFAULT_FOLDERS
    for path in paths:
        try:
            runtime = _table(_table(_load(path, path), "crio"), "runtime")
        except _ConfigError:
            continue
        folders = _folders(runtime.get("cdi_spec_dirs"), folders)
    return _Setting(enabled=True, folders=folders)


def _folders(value: object, otherwise: tuple[Path, ...] = DEFAULT_FOLDERS) -> tuple[Path, ...]:
    return tuple(Path(str(g)) for g in value) if isinstance(value, list) else otherwise


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _finding_of(setting: _Setting, name: str, cdi_root: Path) -> Finding:
    if setting.enabled is None:
        text = f"{name} does not set enable_cdi: containerd 1.7 has CDI off by default, and containerd 2.0 and later has it on"
        return unknown("runtime", text, f"for containerd 1.7, {_ENABLE_CDI}")
    if not setting.enabled:
        return failure("runtime", f"{name} has CDI off: containers get no devices", _ENABLE_CDI)
    listed = ", ".join(map(str, setting.folders)) or "no folder"
    if _plain(cdi_root) not in {_plain(f) for f in setting.folders}:
        return warning(
            "runtime",
            f"{name} reads CDI specs in {listed}, but drivers write to {cdi_root}",
            f"use --cdi-root {setting.folders[-1]} (CDI_ROOT)"
            if setting.folders
            else f"add {cdi_root} to its cdi_spec_dirs",
        )
    return ok("runtime", f"{name} reads CDI specs in {listed}")


def _plain(path: Path) -> str:
    """Returns a path for comparison. ``/var/run`` is normally a link to ``/run``."""
    return str(path).replace("/var/run/", "/run/")
