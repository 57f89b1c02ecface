"""Runs a command on a machine that looks like a node: with the files, sockets and processes of a kubelet, containerd and CRI-O.

``python -m tests.tools.foreign_machine make test``. Tests must have the same result as without them. It needs root, keeps files that
exist, and removes at the end what it created.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_KUBECONFIG = """apiVersion: v1
kind: Config
clusters: [{name: foreign, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: foreign, context: {cluster: foreign, user: foreign, namespace: foreign}}]
users: [{name: foreign, user: {token: foreign}}]
current-context: foreign
"""
_SPEC = '{"cdiVersion": "0.6.0", "kind": "foreign.example.com/gpu", "devices": [{"name": "0", "containerEdits": {"env": ["A=1"]}}]}'
_CONTAINERD = 'version = 2\n[plugins."io.containerd.grpc.v1.cri"]\nenable_cdi = false\n'
_CRIO = '[crio.runtime]\ncdi_spec_dirs = ["/foreign"]\n'
FILES = {
    "etc/containerd/config.toml": _CONTAINERD,
    "var/lib/rancher/k3s/agent/etc/containerd/config.toml": _CONTAINERD,
    "etc/crio/crio.conf": "not TOML",
    "etc/crio/crio.conf.d/foreign.conf": _CRIO,
    "etc/cdi/foreign.json": _SPEC,
    "etc/cdi/broken.json": "{",
    "var/run/cdi/foreign.json": _SPEC,
    "var/run/cdi/conflict.json": _SPEC,
    "var/run/cdi/broken.yaml": "kind: [",
    "var/run/cdi/k8s.gpu.example.com-claim_foreign.json": "{}",
    "var/lib/kubelet/plugins/gpu.example.com/claims/00000000-0000-4000-8000-000000000000.json": "not a record",
    "var/lib/kubelet/plugins/foreign.example.com/claims/_node.json": "not a record",
    "etc/kubernetes/kubelet.conf": _KUBECONFIG,
    "etc/kubernetes/admin.conf": _KUBECONFIG,
    "root/.kube/config": _KUBECONFIG,
    "var/run/secrets/kubernetes.io/serviceaccount/token": "foreign",
    "var/run/secrets/kubernetes.io/serviceaccount/ca.crt": "not a certificate",
}
LIVE_SOCKETS = ("var/lib/kubelet/plugins_registry/foreign-reg.sock", "run/containerd/containerd.sock")
DEAD_SOCKETS = ("var/lib/kubelet/plugins_registry/dead-reg.sock", "var/lib/kubelet/plugins/gpu.example.com/dra.sock")
PROCESSES = (("kubelet", "--root-dir", "/foreign"), ("containerd", "--config", "/etc/containerd/foreign.toml"))
VARIABLES = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": "1", "NODE_NAME": "foreign"}


@contextlib.contextmanager
def foreign_machine(root: Path) -> Iterator[None]:
    """Creates the files and sockets below ``root``, and starts the processes."""
    with contextlib.ExitStack() as stack:
        for name, text in FILES.items():
            with contextlib.suppress(FileExistsError), _new(stack, root / name).open("x") as file:
                file.write(text)
                stack.callback((root / name).unlink, missing_ok=True)
        for name in (*LIVE_SOCKETS, *DEAD_SOCKETS):
            if not (path := _new(stack, root / name)).exists():
                listener = stack.enter_context(socket.socket(socket.AF_UNIX))
                listener.bind(str(path))
                stack.callback(path.unlink, missing_ok=True)
                if name in LIVE_SOCKETS:
                    listener.listen()
                else:
                    listener.close()
        programs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, *arguments in PROCESSES:
            # It ends with this process, which has the other end of its input.
            (programs / name).write_text("#!/bin/sh\nread line\n")
            (programs / name).chmod(0o755)
            process = stack.enter_context(
                subprocess.Popen([programs / name, *arguments], stdin=subprocess.PIPE, process_group=0)
            )
            stack.callback(process.kill)
        yield


def _new(stack: contextlib.ExitStack, path: Path) -> Path:
    """Creates the missing parents of a path. At the end they are removed, unless another program uses them."""
    for folder in reversed(path.parents):
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
            stack.callback(_remove, folder)
    return path


def _remove(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def main(command: Sequence[str]) -> int:
    def stop(number: int, _: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
    with foreign_machine(Path("/")):
        return subprocess.run(command, env={**os.environ, **VARIABLES}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
