"""The real kubectl against a local cluster."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import PIPE
from dataclasses import dataclass

from dra_devkit.localcluster.cluster import LocalCluster


@dataclass
class Kubectl:
    cluster: LocalCluster

    def argv(self, *args: str) -> list[str]:
        # The default cache may contain data of an earlier cluster on the same port.
        config = self.cluster.kubeconfig
        return ["kubectl", "--kubeconfig", str(config), "--cache-dir", str(config.parent / "cache"), *args]

    async def run(self, *args: str, stdin_data: bytes = b"") -> tuple[int | None, str, str]:
        """Returns the exit code, the output and the error output."""
        process = await asyncio.create_subprocess_exec(*self.argv(*args), stdin=PIPE, stdout=PIPE, stderr=PIPE)
        async with asyncio.timeout(60):
            out, error = await process.communicate(stdin_data)
        return process.returncode, out.decode(), error.decode()

    async def __call__(self, *args: str, stdin: str = "", fails: bool = False) -> str:
        """Returns the output, or the error output of a command that must fail."""
        code, out, error = await self.run(*args, stdin_data=stdin.encode())
        assert (code != 0) is fails, (args, out, error)
        return error if fails else out
