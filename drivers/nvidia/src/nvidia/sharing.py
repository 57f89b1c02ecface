"""Sets how the programs of a claim share a GPU, with NVIDIA's own programs, because NVML has no calls for it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from dra_kubeletplugin import PermanentError, RetryableError

from .nvml import LIBRARY
from .root import DriverRoot

SMI = "nvidia-smi"
TIME_SLICES = {"Default": 0, "Short": 1, "Medium": 2, "Long": 3}
TIMEOUT = 20.0


def set_time_slice(root: DriverRoot, uuid: str, interval: str) -> None:
    """Sets how long a program computes before the next program gets the GPU.

    Raises:
        PermanentError: the driver's folder has no nvidia-smi.
        RetryableError: nvidia-smi failed; a GPU of an old architecture refuses every value.
    """
    program = root.program(SMI)
    if program is None:
        raise PermanentError(f"{SMI} is not below {root.host}: it is needed to set the time slice of a GPU")
    command = [str(program), "compute-policy", "-i", uuid, "--set-timeslice", str(TIME_SLICES[interval])]
    try:
        done = subprocess.run(
            command, env=environment(root), capture_output=True, text=True, timeout=TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise RetryableError(f"{SMI} did not set the time slice of {uuid} within {TIMEOUT:g} s") from None
    except OSError as e:
        raise RetryableError(f"{program} cannot be started: {e.strerror}") from None
    if done.returncode:
        lines = (done.stdout + done.stderr).strip().splitlines() or [f"exit code {done.returncode}"]
        raise RetryableError(f"{SMI} did not set the time slice of {uuid}: {lines[-1]}")


def environment(root: DriverRoot, *libraries: str) -> dict[str, str]:
    """Returns the environment for the driver's programs.

    A folder of the host's distribution cannot be in the search path, because it has the host's C library. Then the
    libraries are loaded by their paths.
    """
    names = libraries or (LIBRARY,)
    if root.is_own_folder:
        found = {"LD_LIBRARY_PATH": str(root.library_folder)}
    else:
        found = {"LD_PRELOAD": " ".join(str(file) for name in names if (file := root.library(name)))}
    folders = sorted({str(p.parent) for p in (root.program(SMI),) if p})
    path = os.pathsep.join([*folders, os.environ.get("PATH", "")])
    return {"PATH": path, "HOME": str(Path.home()), **found}
