"""``dra cleanup``: removes the files and slices of an uninstalled driver from a node.

Refuses while a plugin of the driver runs, or while a claim holds one of its devices. If the slices cannot be deleted, the files are
removed all the same: the kubelet deletes the slices 30 s after the plugin stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ..base.settings import Settings
from ..base.text import counted
from ..cdi import ClaimSpecs
from ..claims.instance_lock import InstanceLock
from ..claims.store.files import read_rows
from ..errors import ApiError, SettingsError
from ..kube import KubeClient, load_config
from ..kube.errors import NotFoundError
from ..plugin.grpc.sockets import is_live, remove_stale, socket_paths
from .output_models import Removed
from .shell.exit_codes import Exit
from .shell.options import given
from .shell.output import put


def cleanup(args: argparse.Namespace) -> int:
    settings = Settings.load(given(args))
    if not settings.driver_name:
        raise SettingsError("--driver-name (DRIVER_NAME) is required: the command cleans up one driver on one node")
    # The kubelet registers the node under this name, unless --hostname-override or a cloud provider sets another one.
    settings = replace(settings, node_name=settings.node_name or os.uname().nodename.lower())
    if faults := settings.name_faults():  # a name such as ../x would select a folder of another program
        raise SettingsError(*faults)
    sockets = list(_sockets(settings))
    if alive := [*(p for p in sockets if is_live(p)), *_alive(settings)]:
        raise SettingsError(f"{alive[0]} is in use by a running plugin: delete its DaemonSet first")
    held = _held(settings)
    if held and not args.force:
        raise SettingsError(
            f"{counted(len(held), 'claim is', 'claims are')} still prepared ({', '.join(held)}): delete the pods while the driver runs, "
            "or use --force, which frees the devices without calling the driver"
        )
    slices, failure = 0, None
    try:
        slices = asyncio.run(_delete_slices(settings))
    except ApiError as e:
        failure = ApiError(
            f"the ResourceSlices of node {settings.node_name} cannot be deleted: {e}; the files are removed. A running kubelet deletes "
            f"them; otherwise: kubectl delete resourceslices --field-selector spec.driver={settings.driver_name},"
            f"spec.nodeName={settings.node_name}"
        )
    removed = sum(remove_stale(path) for path in sockets)
    specs = ClaimSpecs(settings.cdi_root, settings.driver_name)
    files = specs.uids()
    for uid in files:
        specs.remove(uid)
        specs.remove_note(uid)
    try:
        shutil.rmtree(settings.plugin_dir)
    except FileNotFoundError:
        pass
    except OSError as e:
        raise SettingsError(f"{e.filename or settings.plugin_dir} cannot be removed: {e.strerror}") from None
    done = Removed(slices, removed, len(files), settings.plugin_dir)
    put(
        done,
        args.output,
        lambda done: [
            f"removed {slices} ResourceSlices, {removed} sockets, {len(files)} CDI files and {done.folder} of node {settings.node_name}"
        ],
    )
    if failure:
        raise failure
    return Exit.SUCCESS


def _sockets(settings: Settings) -> Iterator[Path]:
    """Yields the sockets of this driver. A socket's name contains the pod's UID, or a hash of it if the path would be too long."""
    folder = settings.plugin_dir
    uids = [p.name[len("dra-") : -len(".sock")] for p in folder.glob("dra-*.sock")] if folder.is_dir() else []
    seen: set[Path] = set()
    for uid in ["", *uids]:
        paths = socket_paths(settings.registry_dir, folder, settings.driver_name, uid)
        seen |= {paths.registration, paths.dra}
    seen |= set(folder.glob("*.sock")) if folder.is_dir() else set()
    seen |= (
        set(settings.registry_dir.glob(f"{settings.driver_name}-*-reg.sock"))
        if settings.registry_dir.is_dir()
        else set()
    )
    yield from sorted(p for p in seen if p.is_socket())


def _alive(settings: Settings) -> list[Path]:
    """Returns the lock files of running plugins, also of a plugin that has no sockets yet."""
    processes = InstanceLock(settings.plugin_dir / "processes")
    return [p for p in processes.folder.glob("*.lock") if processes.alive(p.stem)]


def _held(settings: Settings) -> list[str]:
    if not settings.records_path.exists():
        return []
    return [r.shown for r in read_rows(settings.records_path)]


async def _delete_slices(settings: Settings) -> int:
    async with KubeClient(load_config(settings.kubeconfig, service_account=settings.service_account)) as client:
        resource = await client.dra("resourceslices")
        fields = f"spec.driver={settings.driver_name},spec.nodeName={settings.node_name}"
        listed = (await client.list(resource, fields=fields)).get("items") or []
        # A server that ignores field selectors would return the slices of other drivers and nodes.
        wanted = (settings.driver_name, settings.node_name)
        found = [s for s in listed if (s["spec"]["driver"], s["spec"].get("nodeName")) == wanted]
        for obj in found:
            with contextlib.suppress(NotFoundError):
                await client.delete(resource, obj["metadata"]["name"], uid=obj["metadata"]["uid"])
        return len(found)
