"""Checks the kubelet's directories and the plugins of any vendor that listen in them.
Source: the plugin registration of the kubelet (pluginregistration/v1), unix(7).
"""

from __future__ import annotations

import os
import socket
import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from dra_devkit.localcluster.kubelet.plugins import short_path
from dra_kubeletplugin._proto import registration_v1_pb2 as pb
from dra_kubeletplugin._proto import registration_v1_pb2_grpc as pb_grpc

from . import processes
from .findings import Finding, denied, failure, ok, unknown, warning
from .processes import Process

ROOTS = (
    "/var/lib/kubelet",
    "/var/lib/k0s/kubelet",
    "/var/snap/microk8s/common/var/lib/kubelet",
    "/var/lib/rancher/k3s/agent/kubelet",
)
_TIMEOUT = 2.0  # seconds to wait for one response; the kubelet itself waits one second


def look(root: Path, kubelet_root: Path, seen: list[Process]) -> Iterator[Finding]:
    """Checks the kubelet's process and directories."""
    kubelets = [p for p in seen if p.name in {"kubelet", "kubelite"} or p.arguments[:1] == ("kubelet",)]
    here = []
    for kubelet in kubelets:
        root_dir = kubelet.option("--root-dir") or "/var/lib/kubelet"
        if kubelet.name != "kubelet" or Path(root_dir) == kubelet_root:
            here.append(kubelet)
        else:
            yield failure(
                "kubelet",
                f"runs with --root-dir {root_dir}, but {kubelet_root} was checked",
                f"use --kubelet-root {root_dir} (KUBELET_ROOT)",
            )
    try:
        missing = [name for name in ("plugins", "plugins_registry") if not (kubelet_root / name).is_dir()]
    except OSError as e:
        yield denied("kubelet", e)
        return
    if missing:
        others = [r for r in ROOTS if (root / r[1:] / "plugins_registry").is_dir()]
        todo = (
            f"try --kubelet-root {others[0]}"
            if others
            else "run `dra doctor` on the node, or in a pod that mounts the kubelet's root directory"
        )
        yield failure("kubelet", f"{kubelet_root} has no folder {' and no folder '.join(missing)}", todo)
    elif here:
        yield ok("kubelet", f"runs as process {here[0].pid}, with its folders at {kubelet_root}")
    elif not kubelets:
        yield unknown("kubelet", f"its folders are at {kubelet_root}; no kubelet process is visible from here")


@dataclass
class Registered:
    """The drivers that :func:`drivers` found. ``complete`` is False if the registry, or one of its sockets, could not be used."""

    names: Counter[str] = field(default_factory=Counter)  # with the number of instances
    complete: bool = False


def drivers(root: Path, kubelet_root: Path, registered: Registered | None = None) -> Iterator[Finding]:
    """Reports every plugin that registers with the kubelet: its socket, process, driver and services.

    Args:
        registered: gets the names of the drivers.
    """
    registered = registered or Registered()
    registry = kubelet_root / "plugins_registry"
    if not registry.is_dir():
        return
    try:
        sockets = [p for p in sorted(registry.iterdir()) if p.is_socket() and not p.name.startswith(".")]
    except OSError as e:
        yield denied("sockets", e)
        return
    registered.complete = True
    for path in sockets:
        try:
            owner = _owner(root, path)
            if owner is None:
                yield failure(
                    "sockets", f"no process listens at {path}", f"its driver was killed or uninstalled: rm {path}"
                )
                continue
            info = _info(path)
        except OSError as e:
            registered.complete = False
            yield (
                denied("sockets", e)
                if isinstance(e, PermissionError)
                else failure("sockets", f"{path}: {e.strerror or e}")
            )
            continue
        except grpc.RpcError as e:
            registered.complete = False
            why = e.details() if isinstance(e, grpc.Call) else str(e)
            yield failure(
                "sockets",
                f"{path}, of {owner}, does not respond to GetInfo: {why}",
                "restart that driver; the kubelet cannot use it",
            )
            continue
        registered.names[info.name] += 1
        yield from _driver(root, path, owner, info)
    for name, count in registered.names.items():
        if count > 2:
            yield warning(
                "sockets",
                f"{count} instances of {name} are registered",
                "a rolling update needs at most two: check the driver's pods",
            )
    if not sockets:
        yield warning(
            "sockets",
            f"no driver registers in {registry}",
            "check the driver's pod on this node with `kubectl get pods -o wide`",
        )


def _driver(root: Path, path: Path, owner: str, info: pb.PluginInfo) -> Iterator[Finding]:
    services = ", ".join(info.supported_versions) or "no service"
    shown = f"{info.name} ({info.type}, {services}), {owner}"
    endpoint = Path(info.endpoint or path)
    try:
        serves = endpoint == path or _owner(root, endpoint) is not None
    except PermissionError as e:
        yield denied("sockets", e)
        return
    except OSError:
        serves = False
    if not serves:
        yield failure("sockets", f"{shown}: no process listens at its endpoint {endpoint}", "restart that driver")
    elif info.type == "DRAPlugin" and not any(s.endswith(".DRAPlugin") for s in info.supported_versions):
        yield failure(
            "sockets",
            f"{shown}: it offers no DRA service",
            "update the driver: it must offer v1.DRAPlugin or v1beta1.DRAPlugin",
        )
    else:
        yield ok("sockets", shown)


def _owner(root: Path, path: Path) -> str | None:
    """Returns a description of the process that listens on a socket; None if no process does.

    Raises:
        OSError: this user may not connect.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        s.settimeout(_TIMEOUT)
        try:
            s.connect(os.fsencode(short_path(path)))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        except TimeoutError:
            return "a process that accepts no connection"
        pid, uid, _ = struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    if not pid:
        return f"a process of another pod, uid {uid}"
    try:
        return f"process {pid} {processes.at(root, pid).name}, uid {uid}"
    except OSError:
        return f"process {pid}, uid {uid}"


def _info(path: Path) -> pb.PluginInfo:
    """Calls GetInfo of a plugin.

    Raises:
        grpc.RpcError: the plugin did not respond.
    """
    with grpc.insecure_channel(f"unix:{short_path(path)}") as channel:
        info: pb.PluginInfo = pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest(), timeout=_TIMEOUT)
        return info
