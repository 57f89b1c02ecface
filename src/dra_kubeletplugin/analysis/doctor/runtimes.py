"""Checks whether the node's container runtime resolves CDI devices, and from which directories it reads CDI specs.
Sources: containerd docs/cri/config.md (``enable_cdi``, off by default before 2.0, and ``cdi_spec_dirs``); crio.conf(5)
``cdi_spec_dirs``.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import printable
from .findings import Finding, denied, failure, ok, unknown, warning
from .processes import Process

DEFAULT_FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
_CONTAINERD = (
    "etc/containerd/config.toml", "var/lib/rancher/k3s/agent/etc/containerd/config.toml",
    "var/lib/rancher/rke2/agent/etc/containerd/config.toml", "etc/k0s/containerd.toml",
    "var/snap/microk8s/current/args/containerd.toml",
)  # fmt: skip
_CRIO = ("etc/crio/crio.conf", "etc/crio/crio.conf.d/*.conf")
# Sections of the CRI plugin, by version of the configuration file. containerd 1.x writes version 2, containerd 2.x version 3.
_SECTIONS = {2: ("io.containerd.grpc.v1.cri",), 3: ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")}


@dataclass(frozen=True)
class _Setting:
    enabled: bool
    folders: tuple[Path, ...] = DEFAULT_FOLDERS


def look(root: Path, cdi_root: Path, seen: Sequence[Process]) -> Iterator[Finding]:
    """Checks the configuration files. ``root`` is where the host's file system is mounted; ``cdi_root`` is where drivers write specs."""
    names = {p.name for p in seen}
    configured = [root / name for name in _CONTAINERD if (root / name).is_file()]
    crio = sorted(path for pattern in _CRIO for path in root.glob(pattern) if path.is_file())
    try:
        if configured:
            for path in configured:
                yield from _containerd(path, cdi_root)
        elif crio or "crio" in names:
            yield _finding_of(_of_crio(crio), "CRI-O", cdi_root)
        elif "containerd" in names:
            yield unknown(
                "runtime",
                "containerd runs with its defaults",
                "containerd 2.0 and later has CDI on; for 1.7 set enable_cdi = true",
            )
        else:
            yield unknown(
                "runtime",
                "no configuration of containerd or CRI-O is visible from here",
                "run `dra doctor` on the node, or set --host-root",
            )
    except OSError as e:
        yield denied("runtime", e)


def _containerd(path: Path, cdi_root: Path) -> Iterator[Finding]:
    try:
        with path.open("rb") as f:
            config = tomllib.load(f)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        yield failure("runtime", f"{path} is not valid TOML: {e}", "containerd will not start with it")
        return
    version = config.get("version", 1)
    if not isinstance(version, int):
        yield failure("runtime", f"{path} has version {printable(version)}", "containerd will not start with it")
        return
    plugins = _table(config, "plugins")
    section: Mapping[str, Any] = {}
    for name in _SECTIONS.get(version, ("cri",)):
        section = section or _table(plugins, name)
    if version not in _SECTIONS and not section:
        yield unknown("runtime", f"{path} has version {version}", "check enable_cdi of its CRI plugin")
        return
    folders = section.get("cdi_spec_dirs")
    enabled = section.get("enable_cdi", version == 3)
    setting = _Setting(enabled is True, _folders(folders))
    yield _finding_of(setting, f"containerd ({path})", cdi_root)


def _of_crio(paths: Sequence[Path]) -> _Setting:
    folders: tuple[Path, ...] = DEFAULT_FOLDERS
    for path in paths:
        try:
            runtime = _table(_table(tomllib.loads(path.read_text(errors="replace")), "crio"), "runtime")
        except tomllib.TOMLDecodeError:
            continue
        folders = _folders(runtime.get("cdi_spec_dirs"), folders)
    return _Setting(enabled=True, folders=folders)


def _folders(value: object, otherwise: tuple[Path, ...] = DEFAULT_FOLDERS) -> tuple[Path, ...]:
    return tuple(Path(str(g)) for g in value) if isinstance(value, list) else otherwise


def _table(config: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = config.get(name)
    return found if isinstance(found, Mapping) else {}


def _finding_of(setting: _Setting, name: str, cdi_root: Path) -> Finding:
    if not setting.enabled:
        return failure(
            "runtime",
            f"{name} has CDI off: containers get no devices",
            "set enable_cdi = true in its CRI plugin and restart it",
        )
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
