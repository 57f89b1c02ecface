"""MPS: a daemon for each claim, through which the claim's programs use its GPUs at the same time, with limits.

A CUDA program reaches one daemon only, so all devices of a claim that use MPS have the same daemon and the same
parameters. When a daemon ends, CUDA programs continue without MPS and without limits, so its devices become unhealthy.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dra_kubeletplugin import AllocatedDevice, Claim, Mount, PermanentError, RetryableError

from .config import MEBIBYTE, GpuConfig, MigDeviceConfig, MpsConfig
from .nvml import LIBRARY
from .root import DriverRoot
from .sharing import environment

CONTROL = "nvidia-cuda-mps-control"
IN_CONTAINER = "/tmp/nvidia-mps"  # CUDA's default place
COMMAND_TIMEOUT = 10.0


@dataclass(frozen=True)
class Client:
    """A device that programs use through MPS."""

    device: AllocatedDevice
    uuid: str


def config_of(device: AllocatedDevice) -> MpsConfig | None:
    """Returns the parameters of a device that is used through MPS; None for other devices."""
    config = device.config
    sharing = config.sharing if isinstance(config, GpuConfig | MigDeviceConfig) else None
    return (sharing.mps_config or MpsConfig()) if sharing and sharing.strategy == "MPS" else None


def start(
    claim: Claim, clients: Sequence[Client], root: DriverRoot, folder: Path, undo: Callable[..., None]
) -> tuple[dict[str, str], list[Mount]]:
    """Starts the daemon of a claim and sets its limits.

    Args:
        folder: of the claim's daemon; the sockets and the daemon's logs are in it.
        undo: the driver's method that removes the folder.

    Returns:
        Variables and mounts for the containers.

    Raises:
        PermanentError: the devices have different parameters, a limit names another device, or the program is missing.
        RetryableError: the daemon does not start.
    """
    config = config_of(clients[0].device)
    assert config
    if any(config_of(c.device) != config for c in clients):
        raise PermanentError("a CUDA program reaches one MPS daemon only: use the same mpsConfig for all requests")
    program = root.program(CONTROL)
    if program is None:
        raise PermanentError(f"{CONTROL} is not below {root.host}: it is needed for MPS")
    commands = limits(config, [c.uuid for c in clients])
    variables = {
        **environment(root, "libcuda.so.1", LIBRARY),
        "CUDA_MPS_PIPE_DIRECTORY": str(folder),
        "CUDA_MPS_LOG_DIRECTORY": str(folder / "log"),
        "CUDA_VISIBLE_DEVICES": ",".join(c.uuid for c in clients),
    }
    claim.on_undo(undo, folder=str(folder))  # the option may be another one at the claim's end
    (folder / "log").mkdir(parents=True, exist_ok=True)
    folder.chmod(0o755)  # programs of any user connect to the daemon
    claim.start_process(
        "mps",
        [program, "-f"],  # in the foreground
        env=variables,
        ready=lambda: _command(program, variables, "get_server_list") == "",
        stop=["/bin/sh", "-c", f"echo quit | exec {shlex.quote(str(program))}"],
        devices=[c.device for c in clients],
    )
    for command in commands:  # before the first program of the claim: a running server keeps its limits
        if error := _command(program, variables, command):
            raise RetryableError(f"the MPS daemon refused {command!r}: {error}")
    mount = Mount(
        host_path=str(folder), container_path=IN_CONTAINER, options=["ro", "nosuid", "nodev", "noexec", "rbind"]
    )
    return {"CUDA_MPS_PIPE_DIRECTORY": IN_CONTAINER}, [mount]


def limits(config: MpsConfig, uuids: Sequence[str]) -> list[str]:
    """Returns the daemon's commands for the limits of its programs.

    Args:
        uuids: the devices, in the order in which the daemon numbers them.
    """
    amounts = dict.fromkeys(uuids, config.default_pinned_device_memory_limit)
    for key, amount in (config.default_per_device_pinned_memory_limit or {}).items():
        uuid = uuids[int(key)] if key.isdecimal() and int(key) < len(uuids) else key
        if uuid not in amounts:
            raise PermanentError(f"defaultPerDevicePinnedMemoryLimit: the claim has no device {key!r}")
        amounts[uuid] = amount
    threads = config.default_active_thread_percentage
    return [
        *([f"set_default_active_thread_percentage {threads}"] if threads else []),
        *(
            f"set_default_device_pinned_mem_limit {i} {int(amount) // MEBIBYTE}M"
            for i, amount in enumerate(amounts.values())
            if amount is not None
        ),
    ]


def remove(folder: Path) -> None:
    """Removes the folder of an ended daemon. Idempotent."""
    shutil.rmtree(folder, ignore_errors=True)


def _command(program: Path, variables: dict[str, str], command: str) -> str:
    """Sends a command to the daemon. Returns the error, or an empty string."""
    try:
        done = subprocess.run(
            [str(program)],
            input=f"{command}\n",
            env=variables,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no response within {COMMAND_TIMEOUT:g} s"
    except OSError as e:
        return str(e.strerror)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip() or f"exit code {done.returncode}"
