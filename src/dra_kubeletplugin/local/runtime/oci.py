"""Containers: an OCI spec with CDI devices injected, and, where podman and runc are installed, a real container."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cdi_cache import CdiCache, InjectError

JSON = dict[str, Any]


@dataclass
class Started:
    """A container as a runtime would start it."""

    name: str
    spec: JSON


class Runtime:
    """Makes OCI specs and keeps them in ``state``; runs nothing.

    Raises :class:`InjectError`, as containerd does, where a CDI device cannot be found.
    """

    def __init__(self, state: Path, cdi_dirs: Sequence[Path], dev: Path = Path("/dev")) -> None:
        self.state = state
        self.dev = dev  # where device nodes are looked up; of a described host its own
        self.cdi_dirs = cdi_dirs
        self.started: dict[tuple[str, str], Started] = {}

    def spec(self, container: Mapping[str, Any], cdi_ids: Sequence[str]) -> JSON:
        """The container's OCI spec after injection."""
        env = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"]
        env += [f"{e['name']}={e.get('value', '')}" for e in container.get("env") or []]
        base = {
            "ociVersion": "1.1.0",
            "process": {
                "user": {"uid": 0, "gid": 0},
                "args": [*(container.get("command") or ["/bin/sh"]), *(container.get("args") or [])],
                "env": env,
                "cwd": container.get("workingDir", "/"),
            },
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {},
        }
        return CdiCache(self.cdi_dirs).inject(base, cdi_ids, self.dev)

    async def start(self, pod: Mapping[str, Any], container: Mapping[str, Any], cdi_ids: Sequence[str]) -> Started:
        spec = self.spec(container, cdi_ids)
        uid, name = pod["metadata"]["uid"], container["name"]
        folder = self.state / uid
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.json").write_text(json.dumps(spec, indent=2) + "\n")
        started = Started(name, spec)
        self.started[uid, name] = started
        return started

    async def stop(self, uid: str) -> None:
        """Stops all containers of a pod and forgets them."""
        for key in [k for k in self.started if k[0] == uid]:
            del self.started[key]
        shutil.rmtree(self.state / uid, ignore_errors=True)


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


__all__ = ["InjectError", "Podman", "Runtime", "Started"]
