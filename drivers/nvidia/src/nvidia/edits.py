"""What containers get of a GPU: device nodes, mounts and variables. Nothing needs a hook of NVIDIA's runtime."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dra_kubeletplugin import AllocatedDevice, DeviceNode, Host, Mount, RetryableError

from .root import DriverRoot
from .sdk import Gpu, Instance

LibraryPath = Literal["env", "soname"]
IN_CONTAINER = "/usr/local/nvidia"
SHARED_NODES = ("nvidiactl", "nvidia-uvm")
OPTIONAL_NODES = ("nvidia-uvm-tools", "nvidia-modeset")
OPTIONS = ["ro", "nosuid", "nodev", "rbind"]  # with noexec, the linker could not map the libraries
PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
# Libraries in a distribution's folder are mounted one by one. CUDA compiles programs without code for the GPU (PTX).
SONAMES = (
    "libcuda.so.1",
    "libcudadebugger.so.1",
    "libnvidia-ml.so.1",
    "libnvidia-ptxjitcompiler.so.1",
    "libnvidia-nvvm.so.4",
    "libnvidia-opencl.so.1",
    "libnvidia-encode.so.1",
    "libnvidia-opticalflow.so.1",
    "libnvcuvid.so.1",
)
LINKER_FOLDERS = ("/usr/lib", "/usr/lib64")  # searched without a cache: by Debian and Ubuntu, by RHEL
CAPS = "nvidia-caps"


@dataclass(frozen=True)
class Ready:
    """A device whose hardware is ready for containers.

    Attributes:
        uuid: of the GPU or of the MIG instance.
        nodes: device nodes besides those of the GPU.
    """

    device: AllocatedDevice
    gpu: Gpu
    uuid: str
    nodes: list[DeviceNode] = field(default_factory=list)


def driver_files(root: DriverRoot, path: LibraryPath) -> tuple[dict[str, str], list[Mount]]:
    """Returns variables and mounts for the driver's libraries and programs, which every container with a GPU gets.

    Args:
        path: ``env`` sets LD_LIBRARY_PATH, which replaces the image's own value. ``soname`` mounts each library into
            the linker's folders, which needs no variable.
    """
    env = {"NVIDIA_VISIBLE_DEVICES": "void"}  # NVIDIA's own runtime, where it is installed, adds nothing then
    folder = f"{IN_CONTAINER}/lib64"
    if path == "env":
        env["LD_LIBRARY_PATH"] = folder
    if path == "env" and root.is_own_folder:
        mounts = [_mount(root.host / root.libraries, folder)]
    else:
        folders = [folder] if path == "env" else LINKER_FOLDERS
        libraries = {name: file for name in SONAMES if (file := root.library(name))}
        mounts = [_mount(root.host_file(f), f"{at}/{name}") for name, f in libraries.items() for at in folders]
    programs = {name: file for name in PROGRAMS if (file := root.program(name))}
    mounts += [_mount(root.host_file(f), f"{IN_CONTAINER}/bin/{name}") for name, f in programs.items()]
    return env, mounts


def gpu_nodes(dev: Path, minor: int) -> list[str]:
    """Returns the device nodes of a GPU. ``dev`` is the host's ``/dev`` as this process sees it."""
    optional = [name for name in OPTIONAL_NODES if (dev / name).exists()]
    return [f"/dev/{name}" for name in (SHARED_NODES[0], f"nvidia{minor}", SHARED_NODES[1], *optional)]


def instance_nodes(host: Host, minor: int, instance: Instance) -> list[DeviceNode]:
    """Returns the capability nodes of a MIG instance. The host need not have them, so they have their numbers.

    Args:
        minor: of the GPU.
    """
    major = host.major(CAPS)
    if major is None:
        raise RetryableError(f"{host.proc}/devices has no {CAPS}: NVIDIA's driver is not loaded")
    folder = host.proc / f"driver/nvidia/capabilities/gpu{minor}/mig/gi{instance.gpu_instance}"
    files = [folder / "access", folder / f"ci{instance.compute_instances[0]}" / "access"]
    return [
        DeviceNode(path=f"/dev/{CAPS}/nvidia-cap{m}", type="c", major=major, minor=m, file_mode=0o444)
        for m in map(_minor, files)
    ]


def _mount(host: Path, container: str) -> Mount:
    return Mount(host_path=str(host), container_path=container, options=OPTIONS)


def _minor(access: Path) -> int:
    try:
        return int(dict(line.split(":") for line in access.read_text().splitlines())["DeviceFileMinor"])
    except FileNotFoundError:
        raise RetryableError(f"{access} does not exist: the MIG instance has no capability") from None
