"""Sets up a pod's volumes and mounts: emptyDir, configMap, secret, downwardAPI, projected, hostPath."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.errors import ApiError
from dra_kubeletplugin.kube import KubeClient, Resource
from dra_kubeletplugin.kube.resource import CONFIG_MAPS, SECRETS

from ..runtime.interface import SERVICE_ACCOUNT, ApiAccess, ContainerRuntime, Mount
from .config_objects import MissingError, data_of
from .fields import FieldUnknown, allocatable_of, field_value, resource_value

# The name prefix of the service account volume that a real API server adds to pods. The local API server does not add it, but a manifest
# that was copied from a cluster may contain its volume mount.
_API_ACCESS = "kube-api-access-"
_TOKEN = 24 * 3600  # seconds; a real kubelet renews tokens, this one does not
_SERVICE_ACCOUNTS = Resource("", "v1", "serviceaccounts", namespaced=True)


class MountError(Exception):
    """A volume cannot be set up. The text is the same as a real kubelet's."""


class Volumes:
    """The volumes of one pod, below ``folder``."""

    def __init__(self, client: KubeClient, folder: Path, runtime: ContainerRuntime) -> None:
        self.client = client
        self.folder = folder / "volumes"
        self.runtime = runtime

    def wanted(self, pod: ReadOnlyJSON) -> list[ReadOnlyJSON]:
        """Returns the pod's volumes, and the volume with its service account's token.

        A real API server adds that volume to every pod. Here only a pod with ``automountServiceAccountToken: true`` gets it.
        """
        volumes = list(pod["spec"].get("volumes") or [])
        if pod["spec"].get("automountServiceAccountToken") and self.runtime.api is not None:
            volumes.append({"name": _API_ACCESS, "apiAccess": {}})
        return volumes

    async def make(self, pod: ReadOnlyJSON, volume: ReadOnlyJSON) -> Mount:
        """Creates a volume. Returns a mount without the path in the container, which :func:`mounts_of` sets.

        Raises:
            MountError: the volume cannot be created, or its type is not supported.
        """
        try:
            return await self._made(pod, volume)
        except (FieldUnknown, MissingError, OSError) as e:
            raise MountError(f'MountVolume.SetUp failed for volume "{volume["name"]}" : {e}') from None

    async def _made(self, pod: ReadOnlyJSON, volume: ReadOnlyJSON) -> Mount:
        types = [key for key in volume if key != "name" and volume[key] is not None]
        if types == ["hostPath"]:
            found = self.runtime.node_path(volume["hostPath"]["path"])
            _check_type(volume["hostPath"], found or Path(volume["hostPath"]["path"]))
            if found is not None:
                return Mount(found, "", read_only=_is_dev(volume["hostPath"]["path"]), of_node=True)
            return Mount(Path(volume["hostPath"]["path"]), "", from_host=True)
        place = self.folder / volume["name"]
        place.mkdir(parents=True, exist_ok=True)
        match types:
            case [] | ["emptyDir"]:
                if str((volume.get("emptyDir") or {}).get("medium") or "").startswith("HugePages"):
                    raise MissingError("the medium HugePages is not implemented by the local cluster")
                return Mount(place, "")
            case ["apiAccess"]:
                assert self.runtime.api is not None
                await self._write_token(pod, self.runtime.api, place)
            case ["projected"]:
                for source in volume["projected"].get("sources") or []:
                    [kind] = [k for k in source if source[k] is not None] or [""]
                    await self._fill(pod, kind, source.get(kind) or {}, place)
            case [kind]:
                await self._fill(pod, kind, volume[kind], place)
        return Mount(place, "", read_only=True)

    async def _fill(self, pod: ReadOnlyJSON, kind: str, source: ReadOnlyJSON, place: Path) -> None:
        namespace = pod["metadata"]["namespace"]
        match kind:
            case "configMap" | "secret":
                resource = CONFIG_MAPS if kind == "configMap" else SECRETS
                name, optional = source.get("secretName") or source.get("name", ""), bool(source.get("optional"))
                found = await data_of(self.client, resource, name, namespace, optional=optional, binary=True)
                _write(place, found, source.get("items"), optional=optional)
            case "downwardAPI":
                for item in source.get("items") or []:
                    if ref := item.get("fieldRef"):
                        text = field_value(pod, ref["fieldPath"])
                    else:
                        ref = item["resourceFieldRef"]
                        every = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or [])]
                        containers = [c for c in every if c["name"] == ref.get("containerName")]
                        allocatable = await allocatable_of(self.client, pod)
                        text = resource_value(containers[0] if containers else {}, ref, allocatable)
                    _write(place, {item["path"]: text.encode()}, None)
            case _:
                raise MissingError(f"volumes of type {kind} are not implemented by the local cluster")

    async def _write_token(self, pod: ReadOnlyJSON, api: ApiAccess, place: Path) -> None:
        meta, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        path = _SERVICE_ACCOUNTS.path(meta["namespace"], account, "token")
        try:
            response = await self.client.call(
                "POST", path, {"spec": {"boundObjectRef": bound, "expirationSeconds": _TOKEN}}
            )
        except ApiError as e:
            raise MissingError(f"failed to fetch token: {e}") from None
        files = {"token": str(response["status"]["token"]), "ca.crt": api.ca, "namespace": str(meta["namespace"])}
        _write(place, {name: text.encode() for name, text in files.items()}, None)

    def remove(self) -> None:
        shutil.rmtree(self.folder.parent, ignore_errors=True)


_HOST_KINDS: Mapping[str, tuple[Callable[[Path], bool], str]] = {
    "Directory": (Path.is_dir, "directory"),
    "File": (Path.is_file, "file"),
    "Socket": (Path.is_socket, "socket file"),
    "CharDevice": (Path.is_char_device, "character device"),
    "BlockDevice": (Path.is_block_device, "block device"),
}


def _is_dev(path: str) -> bool:
    return PurePosixPath(path).parts[:2] == ("/", "dev")


def _check_type(source: ReadOnlyJSON, path: Path) -> None:
    """Checks the type of a host path. Never creates a file or directory, not even for ``DirectoryOrCreate``.

    Raises:
        MissingError: the path does not have the requested type.
    """
    kind = str(source.get("type") or "")
    known = _HOST_KINDS.get(kind.removesuffix("OrCreate"))
    may_be_missing = kind.endswith("OrCreate") and not path.exists()
    if known is not None and not may_be_missing and not known[0](path):
        raise MissingError(f"hostPath type check failed: {source['path']} is not a {known[1]}")


def _write(place: Path, content: Mapping[str, bytes], items: Any, *, optional: bool = False) -> None:
    if items:
        missing = [i["key"] for i in items if i["key"] not in content]
        if missing and not optional:
            raise MissingError(f"references non-existent config key: {missing[0]}")
        content = {i["path"]: content[i["key"]] for i in items if i["key"] in content}
    for name, data in content.items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts:
            raise MissingError(f"invalid path {name!r}")
        target = place / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def mounts_of(container: ReadOnlyJSON, volumes: Mapping[str, Mount]) -> list[Mount]:
    """Returns the mounts of a container.

    Raises:
        MountError: the pod has no such volume, or a ``subPath`` leads out of its volume.
    """
    out = []
    for entry in container.get("volumeMounts") or []:
        volume = volumes.get(entry["name"])
        if volume is None:
            if entry["name"].startswith(_API_ACCESS):
                continue
            raise MountError(f'no volume "{entry["name"]}" in the pod')
        if entry.get("subPathExpr"):
            raise MountError("subPathExpr is not implemented by the local cluster")
        sub = PurePosixPath(entry.get("subPath") or "")
        if sub.is_absolute() or ".." in sub.parts:
            raise MountError(f"subPath {str(sub)!r} must stay in the volume")
        read_only = volume.read_only or bool(entry.get("readOnly"))
        host = volume.host / sub
        if not volume.from_host and not host.exists():
            host.mkdir(parents=True, exist_ok=True)
        out.append(Mount(host, entry["mountPath"], read_only, volume.from_host, volume.of_node))
    token = volumes.get(_API_ACCESS)
    if token is not None and all(m.container != SERVICE_ACCOUNT for m in out):
        out.append(Mount(token.host, SERVICE_ACCOUNT, read_only=True))
    return out
