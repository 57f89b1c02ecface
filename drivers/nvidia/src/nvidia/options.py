"""Options of this driver; ``dra run --help`` and the README list them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from .edits import LibraryPath

MigMode = Literal["off", "static", "dynamic"]


@dataclass(frozen=True)
class NvidiaOptions:
    nvidia_driver_root: Annotated[
        str,
        "folder on the host with the libraries and programs of NVIDIA's driver; if empty, the first of /, "
        "/run/nvidia/driver, /home/kubernetes/bin/nvidia and /usr/local/nvidia that has them",
    ] = ""
    nvidia_host_root: Annotated[Path, "where the plugin sees the root folder of the host"] = Path("/")
    nvidia_mig: Annotated[
        MigMode,
        "off: no partitions; static: the MIG instances that exist; dynamic: all possible MIG instances, which the "
        "driver creates for claims. A GPU without MIG instances is always published as a whole",
    ] = "static"
    nvidia_ignore_xids: Annotated[
        tuple[str, ...], "further numbers of XID errors of programs, which say nothing about the GPU, e.g. 94,95"
    ] = ()
    nvidia_passthrough: Annotated[bool, "also publishes each GPU for passthrough with VFIO"] = False
    nvidia_library_path: Annotated[
        LibraryPath,
        "how containers find the driver's libraries: env sets LD_LIBRARY_PATH in place of the image's value; soname "
        "mounts them into /usr/lib and /usr/lib64",
    ] = "env"
    nvidia_mps_folder: Annotated[
        str,
        "folder for MPS daemons, with the same path on the host and for the plugin. Every user must be able to enter "
        "it, because MPS runs as the user of the program; if empty, the plugin's folder, which only root can enter",
    ] = ""

    def __post_init__(self) -> None:
        if wrong := [x for x in self.nvidia_ignore_xids if not x.isdecimal()]:
            raise ValueError(f"nvidia_ignore_xids: {wrong[0]!r} is not the number of an XID error")
        for option in ("nvidia_driver_root", "nvidia_mps_folder"):
            if (path := getattr(self, option)) and not path.startswith("/"):
                raise ValueError(f"{option}: {path!r} is not an absolute path")
