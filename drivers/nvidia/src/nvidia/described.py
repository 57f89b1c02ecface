"""Makes an imitated machine of a described host: NVML from a recording, and the files of NVIDIA's driver."""

from __future__ import annotations

from pathlib import Path

from dra_kubeletplugin import Host

from .hardware_state import HardwareState
from .nvml import Nvml
from .recorded import RecordedBindings
from .root import DriverRoot

GPU = (0x10DE, 0x2330)  # vendor and device of the recorded GPU
# nvidia-smi logs its arguments. The MPS daemon has a file in place of its socket, and logs commands and environment.
# With a command in the file `kill`, this command kills the plugin.
SCRIPT = """#!/bin/sh
case $0 in *nvidia-smi) echo "$@" >>"$0.log"; exit;; esac
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit
if [ "$1" = -f ]; then
  env | grep ^CUDA_ >environment
  trap 'rm -f control' TERM
  echo $$ >control
  while [ -e control ]; do sleep 0.05; done
  exit
fi
[ -e control ] || { echo "Cannot find MPS control daemon process"; exit 1; }
while read -r line; do
  [ "$line" != "$(cat "$(dirname "$0")/../kill" 2>/dev/null)" ] || { rm "$(dirname "$0")/../kill"; kill -KILL $PPID; }
  echo "$line" >>commands
  [ "$line" != quit ] || rm -f control
done
"""
FILES = (
    "lib64/libcuda.so.1",
    "lib64/libnvidia-ml.so.1",
    "lib64/libnvidia-ptxjitcompiler.so.1",
    "bin/nvidia-smi",
    "bin/nvidia-cuda-mps-control",
)


def open_library(host: Host) -> tuple[Nvml, DriverRoot]:
    """Returns the imitation of NVML and of the driver's files for the GPUs of a described host.

    The state of the GPUs and these files are in the described host, because they belong to the machine.
    """

    def addresses() -> list[str]:
        vendor, device = GPU
        return [fn.address for fn in host.pci(vendor=vendor, device=device, driver="nvidia")]

    hardware = hardware_state(host)
    driver_root = _driver_files(host.sysfs / ".nvidia-driver")
    return Nvml(RecordedBindings(addresses, hardware, host.proc)), driver_root


def hardware_state(host: Host) -> HardwareState:
    """Returns the state of the imitated GPUs of a described host."""
    return HardwareState(host.sysfs / ".gpus.json", host.boot_id())


def _driver_files(folder: Path) -> DriverRoot:
    """Creates empty files with the names of the driver's libraries, and programs that log their arguments."""
    for name in FILES:
        file = folder / name
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(SCRIPT if name.startswith("bin/") else "")
            file.chmod(0o755)
    return DriverRoot(folder, folder, "lib64")
