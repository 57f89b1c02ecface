"""Finds container images in directories of this machine, by name. Never pulls an image.

The directory contains a root file system, or an OCI image layout (``index.json`` and ``blobs``), which is unpacked once.
Source: https://github.com/opencontainers/image-spec, image-layout.md, manifest.md, layer.md, config.md.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import tarfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from dra_kubeletplugin.base.json_types import JSON

from .interface import ContainerError, ImagePullError

ANY = "*"
_BUSYBOX = Path("/bin/busybox")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class ImageError(ValueError):
    """A directory is not a valid image. The text contains the reason and the path."""


@dataclass(frozen=True)
class Image:
    """A container image: its root directory, and the defaults for the process."""

    root: Path
    entrypoint: Sequence[str] = ()
    cmd: Sequence[str] = ()
    env: Sequence[str] = ()
    working_dir: str = ""
    user: str = ""
    stop_signal: str = ""

    def arguments(self, command: Sequence[str], args: Sequence[str]) -> list[str]:
        """Returns the command line to execute. If the pod sets ``command``, the image's entry point and arguments are ignored.

        Raises:
            ContainerError: there is nothing to execute.
        """
        if command:
            out = [*command, *args]
        else:
            out = [*self.entrypoint, *(args or self.cmd)]
        if not out:
            raise ContainerError(
                "failed to generate container spec: no command specified: a root folder has no entry point, so the pod needs `command`"
            )
        return out

    def user_of(self, user: int | None, group: int | None) -> tuple[int, int]:
        """Returns the numeric user and group. Looks up the image's user and group in its ``/etc/passwd`` and ``/etc/group``.

        Raises:
            ContainerError: these files do not contain a name.
        """
        named, _, named_group = self.user.partition(":")
        if user is not None:
            row = _row(self.root / "etc/passwd", str(user), 2)
            return user, group if group is not None else int(row[3]) if row else 0
        uid, gid = 0, 0
        if named:
            row = _row(self.root / "etc/passwd", named, 2 if named.isdigit() else 0)
            if row is None and not named.isdigit():
                raise ContainerError(f"failed to generate container spec: no users found: {named}")
            uid, gid = (int(row[2]), int(row[3])) if row else (int(named), 0)
        if named_group:
            row = _row(self.root / "etc/group", named_group, 2 if named_group.isdigit() else 0)
            if row is None and not named_group.isdigit():
                raise ContainerError(f"failed to generate container spec: no groups found: {named_group}")
            gid = int(row[2]) if row else int(named_group)
        return uid, gid if group is None else group


def _row(path: Path, value: str, column: int) -> list[str] | None:
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return None
    rows = (line.split(":") for line in lines)
    return next(
        (r for r in rows if len(r) > 3 - (path.name == "group") and r[column] == value and r[2].isdigit()), None
    )


class Images:
    """Finds images by the names that pods use.

    Args:
        folders: directories by image name, with or without a tag. The name ``*`` is for all other images.
        cache: the directory for unpacked layers.
    """

    def __init__(self, folders: Mapping[str, Path], cache: Path) -> None:
        self.folders = {ANY if name == ANY else _full(name): path for name, path in folders.items()}
        self.cache = cache
        self._unpacked: dict[Path, Image] = {}
        self._unpacking = threading.Lock()  # several threads may look for images at the same time

    def find(self, name: str) -> Image:
        """Returns an image. Blocks while layers are unpacked.

        Raises:
            ImagePullError: the image is missing or cannot be read.
        """
        full = _full(name)
        bare = _without_tag(full)
        folder = self.folders.get(full) or self.folders.get(bare) or self.folders.get(ANY)
        has_busybox = folder is None and bare == _full("busybox") and _BUSYBOX.is_file()
        if folder is None and not has_busybox:
            raise ImagePullError(
                f'image "{name}" is not on this machine, and the local cluster pulls no images: set its root folder or OCI layout with '
                f'`dra dev --image {name}=FOLDER`, or a folder for all images with --image "*=FOLDER"'
            )
        try:
            if folder is None:
                with self._unpacking:
                    return self._busybox()
            if not (folder / "index.json").is_file():
                return Image(folder)
            with self._unpacking:
                if folder not in self._unpacked:
                    self._unpacked[folder] = _unpack(folder, self.cache)
                return self._unpacked[folder]
        except (ImageError, OSError, subprocess.SubprocessError, tarfile.TarError) as e:
            raise ImagePullError(f'image "{name}": {e}') from None

    def _busybox(self) -> Image:
        root = self.cache / "busybox"
        if not root.is_dir():
            make_busybox(root)
        return Image(root, cmd=("sh",))


def make_busybox(root: Path) -> Path:
    """Creates a root directory with this machine's static busybox, and a link for each tool of busybox."""
    fresh = root.with_name(f".{root.name}")
    shutil.rmtree(fresh, ignore_errors=True)
    binaries = fresh / "bin"
    binaries.mkdir(parents=True)
    shutil.copy2(_BUSYBOX, binaries / "busybox")
    listed = subprocess.run([_BUSYBOX, "--list"], capture_output=True, text=True, check=True)  # noqa: S603
    for tool in set(listed.stdout.split()) - {"busybox"}:
        (binaries / tool).symlink_to("busybox")
    for name in ("dev", "proc", "sys", "tmp", "etc", "root", "var", "usr"):
        (fresh / name).mkdir()
    (fresh / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")
    (fresh / "etc/group").write_text("root:x:0:\nnobody:x:65534:\n")
    # Sets the modes, because the umask of this process may be stricter.
    for path in (fresh, *(p for p in fresh.rglob("*") if not p.is_symlink())):
        path.chmod(0o755 if path.is_dir() or path.name == "busybox" else 0o644)
    (fresh / "tmp").chmod(0o1777)
    fresh.rename(root)
    return root


def parse_option(text: str) -> tuple[str, Path]:
    """Parses ``NAME=FOLDER``.

    Raises:
        ImageError: the text has another form, or the directory is missing.
    """
    name, found, folder = text.partition("=")
    path = Path(folder)
    if not (name and found and folder):
        raise ImageError(f"--image {text!r} is not NAME=FOLDER, for example busybox=/srv/busybox-root")
    if not path.is_dir():
        raise ImageError(f"--image {text}: {folder} is not a folder")
    return name, path.absolute()


def _full(name: str) -> str:
    """Returns the full name of an image without a digest, with a container runtime's rules.

    For example, ``busybox`` becomes ``docker.io/library/busybox``.
    """
    name = name.partition("@")[0]
    first, slash, rest = name.partition("/")
    if not slash:
        return f"docker.io/library/{name}"
    if first == "docker.io" and "/" not in rest:
        return f"docker.io/library/{rest}"
    if not ("." in first or ":" in first or first == "localhost"):
        return f"docker.io/{name}"
    return name


def _without_tag(full: str) -> str:
    head, slash, last = full.rpartition("/")
    return head + slash + last.partition(":")[0]


# --- OCI layouts ------------------------------------------------------------------------------------------


def _unpack(layout: Path, cache: Path) -> Image:
    manifest = _manifest(layout, _read(layout / "index.json"))
    descriptor = manifest.get("config") or {}
    config = _read(_blob(layout, descriptor)).get("config") or {}
    root = cache / str(descriptor["digest"]).replace(":", "-")
    if not root.is_dir():
        fresh = cache / f".{root.name}"
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        for layer in manifest.get("layers") or []:
            _apply_layer(_blob(layout, layer), fresh)
        fresh.chmod(0o755)
        fresh.rename(root)
    return Image(
        root,
        entrypoint=config.get("Entrypoint") or (),
        cmd=config.get("Cmd") or (),
        env=config.get("Env") or (),
        working_dir=config.get("WorkingDir") or "",
        user=config.get("User") or "",
        stop_signal=config.get("StopSignal") or "",
    )


def _manifest(layout: Path, found: JSON) -> JSON:
    """Returns the manifest for this machine. Follows nested indexes."""
    while "manifests" in found:
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        fitting = [
            m
            for m in found["manifests"]
            if (p := m.get("platform")) is None or (p.get("architecture") == architecture and p.get("os") == "linux")
        ]
        if not fitting:
            raise ImageError(f"{layout} has no image for linux/{architecture}")
        found = _read(_blob(layout, fitting[0]))
    return found


def _read(path: Path) -> JSON:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as e:
        raise ImageError(f"{path} cannot be read as JSON: {e}") from None
    if not isinstance(found, dict):
        raise ImageError(f"{path} is not a JSON object")
    return found


def _blob(layout: Path, descriptor: Mapping[str, Any]) -> Path:
    digest = str(descriptor.get("digest"))
    if not _DIGEST.fullmatch(digest):
        raise ImageError(f"{layout}: {digest!r} is not a sha256 digest")
    return layout / "blobs/sha256" / digest.removeprefix("sha256:")


def _apply_layer(blob: Path, root: Path) -> None:
    """Unpacks one layer over the layers below it. Skips device nodes, because the container runtime creates them."""
    with tarfile.open(blob, "r:*") as layer:
        layer.extraction_filter = getattr(tarfile, "tar_filter", None)  # Python 3.11.4 and later
        for member in layer:
            path = PurePosixPath(member.name.lstrip("/"))
            if path.name == _OPAQUE:
                for below in _inside(root, path.parent).glob("*"):
                    _remove(below)
            elif path.name.startswith(_WHITEOUT):
                _remove(_inside(root, path.parent) / path.name.removeprefix(_WHITEOUT))
            elif not (member.ischr() or member.isblk() or str(path) == "."):
                target = _inside(root, path.parent) / path.name
                if not member.isdir() or (target.is_symlink() or not target.is_dir()):
                    _remove(target)
                member.name = str(path)
                layer.extract(member, root, numeric_owner=True)


def _inside(root: Path, folder: PurePosixPath) -> Path:
    """Returns ``folder`` below ``root``.

    Raises:
        ImageError: a link in the path leads out of ``root``.
    """
    found = (root / folder).resolve()
    if not found.is_relative_to(root.resolve()):
        raise ImageError(f"a layer writes to {folder}, which leads out of the image")
    return found


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
