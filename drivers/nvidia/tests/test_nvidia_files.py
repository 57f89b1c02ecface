"""Tests of what containers get, of the search for the driver's files, of options and of parameters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dra_kubeletplugin import Host, RetryableError
from dra_kubeletplugin.driver.config.parameters import Parameters

from nvidia import edits, root
from nvidia.config import GpuConfig, MigDeviceConfig, VfioDeviceConfig
from nvidia.devices import Place, name_of, partition_name
from nvidia.driver import Nvidia
from nvidia.options import NvidiaOptions
from nvidia.sdk import Instance, NoLibraryError, Profile

LIBRARIES = ("libnvidia-ml.so.1", "libcuda.so.1", "libnvidia-ptxjitcompiler.so.1")
RECORDED = Path(__file__).parents[1] / "recordings/h100.json"


def installed(host: Path, place: str, folder: str, *more: str) -> None:
    """Puts the driver's libraries into a folder of the host, as links to files with the driver's version."""
    for name in (*LIBRARIES, *more):
        file = host / place.lstrip("/") / folder / name.replace(".so.1", ".so.580.159.04")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
        if name != file.name:
            (file.parent / name).symlink_to(file.name)


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        ("/", "usr/lib/x86_64-linux-gnu"),
        ("/", "usr/lib64"),
        ("/run/nvidia/driver", "usr/lib/x86_64-linux-gnu"),
        ("/home/kubernetes/bin/nvidia", "lib64"),
        ("/usr/local/nvidia", "lib64"),
    ],
)
def test_the_driver_is_found_at_each_of_its_places(place: str, folder: str, tmp_path: Path) -> None:
    installed(tmp_path, place, folder)
    found = root.find(tmp_path)
    assert (found.host, found.libraries) == (Path(place), folder)
    assert found.library_folder == tmp_path / place.lstrip("/") / folder
    library = found.library("libcuda.so.1")
    assert library and found.host_file(library) == Path(place) / folder / "libcuda.so.580.159.04"


def test_absolute_links_begin_at_the_root_of_the_host(tmp_path: Path) -> None:
    folder = "usr/lib/x86_64-linux-gnu"
    installed(tmp_path, "/", f"{folder}/nvidia/current", "libc.so.6")
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / folder / "libc.so.6").touch()
    (tmp_path / "usr/lib/nvidia").mkdir()
    (tmp_path / "usr/lib/nvidia/nvidia-smi").touch()
    for link, target in [  # as Debian's packages
        *((f"{folder}/{name}", f"{folder}/nvidia/current/{name}") for name in LIBRARIES),
        ("usr/bin/nvidia-smi", "usr/lib/nvidia/nvidia-smi"),
    ]:
        alternative = f"/etc/alternatives/nvidia--{Path(link).name}"
        (tmp_path / link).symlink_to(alternative)
        (tmp_path / alternative[1:]).symlink_to(f"/{target}")
    found = root.find(tmp_path)
    assert found.nvml == tmp_path / folder / "nvidia/current/libnvidia-ml.so.580.159.04"
    _, mounts = edits.driver_files(found, "env")
    assert {m.container_path: m.host_path for m in mounts} == {
        "/usr/local/nvidia/bin/nvidia-smi": "/usr/lib/nvidia/nvidia-smi",
        **{
            f"/usr/local/nvidia/lib64/{name}": f"/{folder}/nvidia/current/{name.replace('.so.1', '.so.580.159.04')}"
            for name in LIBRARIES
        },
    }


def test_links_that_lead_nowhere_or_in_a_circle_are_no_files(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/nvidia-smi").symlink_to("nvidia-smi")
    (tmp_path / "bin/nvidia-debugdump").symlink_to("../../../etc/passwd")
    own = root.DriverRoot(Path("/"), tmp_path, "lib64")
    assert own.program("nvidia-smi") is None
    assert own.program("nvidia-debugdump") is None


def test_a_folder_with_the_name_of_the_library_is_not_the_library(tmp_path: Path) -> None:
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").mkdir(parents=True)
    installed(tmp_path, "/usr/local/nvidia", "lib64")
    assert root.find(tmp_path).host == Path("/usr/local/nvidia")
    with pytest.raises(NoLibraryError, match="in no library folder below / of the host"):
        root.find(tmp_path, "/")


def test_the_drivers_own_folder_is_mounted_as_a_whole(tmp_path: Path) -> None:
    installed(tmp_path, "/usr/local/nvidia", "lib64", "libnvidia-nvvm.so.4")
    env, mounts = edits.driver_files(root.find(tmp_path), "env")
    assert env == {"NVIDIA_VISIBLE_DEVICES": "void", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    (mount,) = mounts
    assert (mount.host_path, mount.container_path) == ("/usr/local/nvidia/lib64",) * 2
    assert "noexec" not in mount.options


def test_libraries_in_a_distributions_folder_are_mounted_one_by_one(tmp_path: Path) -> None:
    folder = "usr/lib/x86_64-linux-gnu"
    installed(tmp_path, "/", folder, "libc.so.6")
    _, mounts = edits.driver_files(root.find(tmp_path), "env")
    assert {m.container_path: m.host_path for m in mounts} == {
        f"/usr/local/nvidia/lib64/{name}": f"/{folder}/{name.replace('.so.1', '.so.580.159.04')}" for name in LIBRARIES
    }


def test_by_soname_no_variable_is_set(tmp_path: Path) -> None:
    installed(tmp_path, "/usr/local/nvidia", "lib64")
    env, mounts = edits.driver_files(root.find(tmp_path), "soname")
    assert env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    wanted = {f"{folder}/{name}" for folder in ("/usr/lib", "/usr/lib64") for name in LIBRARIES}
    assert {m.container_path for m in mounts} == wanted


def test_nodes_that_the_host_lacks_are_left_out(tmp_path: Path) -> None:
    assert edits.gpu_nodes(tmp_path, 3) == ["/dev/nvidiactl", "/dev/nvidia3", "/dev/nvidia-uvm"]
    (tmp_path / "nvidia-modeset").touch()
    assert edits.gpu_nodes(tmp_path, 3)[-1] == "/dev/nvidia-modeset"


def test_an_instance_without_capabilities_is_refused(tmp_path: Path) -> None:
    instance, host = Instance(19, 0, 1, (0,), "MIG-1"), Host(proc=tmp_path)
    (tmp_path / "devices").write_text("Character devices:\n  1 mem\n")
    with pytest.raises(RetryableError, match="has no nvidia-caps: NVIDIA's driver is not loaded"):
        edits.instance_nodes(host, 0, instance)
    (tmp_path / "devices").write_text("Character devices:\n241 nvidia-caps\n242 nvidia-caps-imex-channels\n")
    with pytest.raises(RetryableError, match="the MIG instance has no capability"):
        edits.instance_nodes(host, 0, instance)


def test_names_come_from_the_pci_address_and_the_place() -> None:
    profile = Profile(20, "1g.10gb+me", 1, 1, (0,), 1, 9984, 16, 1, 1, 0, 1, 1)
    assert name_of("00000:17:00.0".removeprefix("0")) == "gpu-0000-17-00-0"
    assert partition_name("0000:17:00.0", Place(profile, 6)) == "gpu-0000-17-00-0-mig-1g10gb-me-20-6"


@pytest.mark.parametrize("options", [{"nvidia_ignore_xids": ("31", "x")}, {"nvidia_driver_root": "opt/nvidia"}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        NvidiaOptions(**options)


MPS = {"strategy": "MPS", "mpsConfig": {"defaultActiveThreadPercentage": 50, "defaultPinnedDeviceMemoryLimit": "4Gi"}}
LIMITS = {"0": "2Gi", "GPU-1": "3Gi"}


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [
        (GpuConfig, {"sharing": {"strategy": "TimeSlicing", "timeSlicingConfig": {"interval": "Short"}}}),
        (GpuConfig, {"sharing": MPS}),
        (GpuConfig, {"sharing": {"strategy": "MPS", "mpsConfig": {"defaultPerDevicePinnedMemoryLimit": LIMITS}}}),
        (MigDeviceConfig, {"sharing": MPS}),
        (MigDeviceConfig, {"sharing": {"strategy": "TimeSlicing"}}),
        (VfioDeviceConfig, {"iommu": {"backendPolicy": "PreferIommuFD", "enableAPIDevice": True}}),
    ],
)
def test_parameters_have_the_fields_of_nvidias_driver(kind: Any, parameters: dict[str, Any]) -> None:
    entry = {"apiVersion": "resource.nvidia.com/v1beta1", "kind": kind.KIND} | parameters
    opaque = {"driver": Nvidia.name, "parameters": entry}
    config, _ = Parameters([kind], Nvidia.name).resolve([{"source": "FromClaim", "opaque": opaque}], "gpu")
    assert isinstance(config, kind)
    assert _without_none(config.json()) == entry


def _without_none(value: Any) -> Any:
    return {k: _without_none(v) for k, v in value.items() if v is not None} if isinstance(value, dict) else value


def test_the_recording_has_no_real_serial_number() -> None:
    assert "1652922000417" in RECORDED.read_text()  # the made-up one
