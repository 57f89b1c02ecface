"""Runs ``dra dev`` as a process, and its subcommands."""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dra_kubeletplugin import cli

ROOT = Path(__file__).parents[2]
GPU = "drivers/gpu_example"


@dataclass
class DevProcess:
    """A running ``dra dev``."""

    process: subprocess.Popen[str]
    folder: Path
    output: str = ""
    state: Path = field(default_factory=Path)

    @property
    def kubeconfig(self) -> str:
        return str(self.state / "kubeconfig")

    def verb(self, *args: str) -> Any:
        """Runs a verb and returns its JSON output, or the text of its error."""
        output, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(err):
            code = cli.main(["dev", args[0], "--state-dir", str(self.state), "-o", "json", *args[1:]])
        assert (code == 0) is (err.getvalue() == "")
        return json.loads(output.getvalue()) if code == 0 else err.getvalue()

    def kubectl(self, *args: str, check: bool = True, stdin: str | None = None) -> str:
        # A separate discovery cache: an earlier cluster may have used the same port with other resources.
        argv = ["kubectl", "--kubeconfig", self.kubeconfig, "--cache-dir", str(self.folder / "cache"), *args]
        process = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=60, check=False)
        assert not check or process.returncode == 0, process.stderr
        return process.stdout + ("" if check else process.stderr)

    def devices(self, node: str = "node-1") -> dict[str, Any]:
        """Returns the published devices of a node by name."""
        slices = json.loads(self.kubectl("get", "resourceslices", "-o", "json"))["items"]
        return {
            d["name"]: d for s in slices if s["spec"].get("nodeName") == node for d in s["spec"].get("devices") or []
        }

    def driver(self, place: str = "node-1") -> Any:
        return next(d for d in self.verb("status")["drivers"] if d["place"] == place)

    def log(self) -> str:
        return (self.folder / "log").read_text()


def run_dev_command(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "dra_kubeletplugin.cli", "dev", *args]
    clean = {k: v for k, v in os.environ.items() if k != "KUBECONFIG"} | env
    return subprocess.run(argv, capture_output=True, text=True, cwd=ROOT, env=clean, timeout=110, check=False)


@contextlib.contextmanager
def run_dev(folder: Path, *args: str, **env: str) -> Iterator[DevProcess]:
    """Starts ``dra dev``, waits until it is ready, and stops it at the end of the context."""
    argv = [sys.executable, "-m", "dra_kubeletplugin.cli", "dev", *args]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            argv,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"} | env,
        )
        dev = DevProcess(process, folder)
        assert process.stdout
        try:
            while "Ctrl-C stops the cluster" not in dev.output:
                line = process.stdout.readline()
                assert line, dev.output + dev.log()
                dev.output += line
            dev.state = Path(dev.output.partition("KUBECONFIG=")[2].split()[0]).parent
            yield dev
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            process.stdout.close()
            process.wait(60)
