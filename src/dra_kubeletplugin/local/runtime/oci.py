"""One real container, where podman and runc are installed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PODMAN_OPTIONS = (
    "--rm", "--runtime", "runc", "--network=none", "--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024",
)  # fmt: skip


@dataclass(frozen=True)
class Podman:
    """Runs one container for real; :meth:`find` says whether that is possible here."""

    path: str

    @classmethod
    def find(cls) -> tuple[Podman | None, str]:
        """Podman, or why it cannot be used."""
        path = shutil.which("podman")
        if not path or not shutil.which("runc"):
            return None, "podman and runc are not installed (Debian: apt-get install podman runc busybox-static)"
        if os.geteuid() != 0:
            return None, "podman with devices needs root here"
        if not Path("/bin/busybox").is_file():
            return None, "busybox-static is not installed, and it serves as the container's root"
        return cls(path), ""

    @staticmethod
    def make_rootfs(folder: Path) -> Path:
        """A root folder with a static busybox and links for its tools."""
        binaries = folder / "bin"
        binaries.mkdir(parents=True, exist_ok=True)
        shutil.copy2("/bin/busybox", binaries / "busybox")
        for tool in ("sh", "env", "ls", "cat", "sleep", "echo", "mount", "grep", "sort", "true"):
            link = binaries / tool
            if not link.exists():
                link.symlink_to("busybox")
        for name in ("dev", "proc", "sys", "tmp", "etc"):
            (folder / name).mkdir(exist_ok=True)
        return folder

    async def run(
        self, rootfs: Path, cdi_ids: Sequence[str], command: Sequence[str], timeout: float = 60
    ) -> tuple[int, str]:
        """Runs ``command`` with the devices to its end; answers exit code and output.

        Raises ``TimeoutError``.
        """
        devices = [arg for name in cdi_ids for arg in ("--device", name)]
        argv = [self.path, "run", *PODMAN_OPTIONS, *devices, "--rootfs", str(rootfs), *command]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
        )
        try:
            async with asyncio.timeout(timeout):
                out, _ = await process.communicate()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
            raise
        return process.returncode or 0, out.decode(errors="replace")


__all__ = ["Podman"]
