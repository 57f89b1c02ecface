"""Runs a real API server from a folder of binaries, as envtest does: etcd and kube-apiserver only.

The local cluster's scheduler, controllers and kubelets use this server over HTTPS. Sources: controller-runtime's envtest for
the folder (``KUBEBUILDER_ASSETS``); the help texts of etcd and kube-apiserver for the options.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ..localcluster.cluster import kubeconfig_of
from .api import AsyncApi, remove_all
from .child_watcher import OPEN, Watcher, gated
from .ports import free_port

_CHECK_INTERVAL = 0.05  # seconds between checks
_OUTPUT_CHARS = 3000  # characters of a process's output in an error
# The admission plugins that are switched off. They need a controller manager, which creates service accounts and removes the taint
# of a new node. Without a controller manager, they would prevent every pod from being admitted or scheduled.
_ADMISSION_OFF = "ServiceAccount,TaintNodesByCondition"
# The kinds whose objects are deleted after a test. Workloads are first: their controllers still run, and would replace a deleted pod.
_DELETED_KINDS = (
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("apps/v1", "DaemonSet"),
    ("apps/v1", "ReplicaSet"),
    ("batch/v1", "CronJob"),
    ("batch/v1", "Job"),
    ("v1", "Pod"),
    ("resource.k8s.io/v1", "ResourceClaim"),
    ("resource.k8s.io/v1", "ResourceClaimTemplate"),
    ("resource.k8s.io/v1", "DeviceClass"),
    ("resource.k8s.io/v1", "ResourceSlice"),
    *((f"resource.k8s.io/{version}", "DeviceTaintRule") for version in ("v1", "v1beta2", "v1alpha3")),
    ("v1", "ConfigMap"),
    ("v1", "Secret"),
    ("coordination.k8s.io/v1", "Lease"),
    ("v1", "Event"),
    ("v1", "Node"),
)
_OF_SERVER = {"ConfigMap", "Secret", "Lease"}  # kinds that the API server itself writes in namespaces kube-*


class ControlPlaneError(RuntimeError):
    """Raised if the control plane cannot be started. The text contains the command and the end of its output."""


@dataclass(frozen=True)
class _Server:
    process: subprocess.Popen[bytes]
    command: Sequence[str]
    output: Path

    def __str__(self) -> str:
        return " ".join(self.command)

    def output_tail(self) -> str:
        return self.output.read_text(errors="replace")[-_OUTPUT_CHARS:].strip() or "it wrote nothing"


class ControlPlane:
    """A context manager that runs etcd and kube-apiserver. The file ``kubeconfig`` contains an administrator's credentials.

    Args:
        assets: the folder with the binaries.
        folder: the folder for data, certificates and output.
        feature_gates: in the form of ``--feature-gates``, e.g. ``DRAPartitionableDevices=false``.
        start: seconds until starting a server fails.
        stop: seconds that a process may take to stop after SIGTERM.

    Entering raises :class:`ControlPlaneError`.
    """

    def __init__(
        self, assets: Path, folder: Path, feature_gates: str = "", *, start: float = 60.0, stop: float = 20.0
    ) -> None:
        self.assets = assets
        self.folder = folder
        self.feature_gates = feature_gates
        self.start_timeout = start
        self.stop_timeout = stop
        self.kubeconfig = folder / "kubeconfig"
        self._running: list[_Server] = []
        self._watchers: list[Watcher] = []
        self.ended: list[subprocess.Popen[bytes]] = []
        self._token = secrets.token_hex(16)

    def __enter__(self) -> ControlPlane:
        etcd, api = self._binary("etcd"), self._binary("kube-apiserver")
        self.folder.mkdir(parents=True, exist_ok=True)
        ports: set[int] = set()
        while len(ports) < 3:
            ports.add(free_port())
        client, peer, port = ports
        try:
            self._create_credentials()
            self._start(etcd_command(etcd, self.folder / "etcd", client, peer))
            gates = [f"--feature-gates={self.feature_gates}"] if self.feature_gates else []
            self._start([*apiserver_command(api, self.folder, client, port), *gates])
            self._wait(f"https://127.0.0.1:{port}/readyz")
            self._write_kubeconfig(f"https://127.0.0.1:{port}")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        self._stop()

    @property
    def _certificate(self) -> Path:
        return self.folder / "apiserver.crt"  # kube-apiserver creates it, signed by a CA that is in the same file

    def _binary(self, name: str) -> Path:
        path = self.assets / name
        if not os.access(path, os.X_OK):
            raise ControlPlaneError(
                f"KUBEBUILDER_ASSETS is {self.assets}, but this folder contains no executable {name}"
            )
        return path

    def _create_credentials(self) -> None:
        openssl = shutil.which("openssl")
        if not openssl:
            raise ControlPlaneError("openssl is needed for the key of service accounts: install it")
        command = [openssl, "genrsa", "-out", str(self.folder / "service-accounts.key"), "2048"]
        result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
        if result.returncode:
            raise ControlPlaneError(f"{' '.join(command)}: {result.stderr.strip()}")
        tokens = self.folder / "tokens.csv"
        tokens.touch(mode=0o600)
        tokens.write_text(f"{self._token},admin,admin,system:masters\n")

    def _start(self, command: Sequence[str]) -> None:
        output = self.folder / f"{Path(command[0]).name}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(gated(command), stdout=log, stderr=log, stdin=subprocess.PIPE, cwd=self.folder)  # noqa: S603
        self._running.append(_Server(process, command, output))
        self._watchers.append(Watcher(process.pid, command[1]))
        assert process.stdin
        with contextlib.suppress(BrokenPipeError), process.stdin as gate:  # `_wait` reports a server that has ended
            gate.write(OPEN)

    def _wait(self, url: str) -> None:
        end = time.monotonic() + self.start_timeout
        while why := self._not_ready(url):
            for server in self._running:
                if server.process.poll() is not None:
                    raise ControlPlaneError(
                        f"{server} has ended with {server.process.returncode}: {server.output_tail()}"
                    )
            if time.monotonic() > end:
                server = self._running[-1]
                after = f"{self.start_timeout:g} s"
                raise ControlPlaneError(f"{server} is not ready after {after}: {why}; {server.output_tail()}")
            time.sleep(_CHECK_INTERVAL)

    def _not_ready(self, url: str) -> str:
        """Returns why the server is not ready, or "" if it is."""
        if not self._certificate.is_file():
            return f"there is no {self._certificate} yet"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {self._token}"})  # noqa: S310
        try:
            tls = ssl.create_default_context(cafile=str(self._certificate))
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
            with urllib.request.urlopen(request, timeout=5, context=tls):  # noqa: S310
                return ""
        except urllib.error.HTTPError as e:
            with e:
                return e.read().decode(errors="replace")
        except OSError as e:
            return str(e)

    def _write_kubeconfig(self, server: str) -> None:
        self.kubeconfig.touch(mode=0o600)
        self.kubeconfig.write_text(kubeconfig_of("envtest", server, self._certificate, self._token))

    def _stop(self) -> None:
        """Stops the API server first, and then etcd: the API server needs etcd for an orderly stop."""
        while self._running:
            process = self._running.pop().process
            self.ended.append(process)
            process.terminate()
            try:
                process.wait(self.stop_timeout)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        while self._watchers:
            self._watchers.pop().close()


def etcd_command(binary: Path, data: Path, client: int, peer: int) -> list[str]:
    """Returns the command that runs etcd for one test session: on the loopback address, without syncing data to disk."""
    clients, peers = f"http://127.0.0.1:{client}", f"http://127.0.0.1:{peer}"
    return [
        str(binary),
        f"--data-dir={data}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=default={peers}",
        "--unsafe-no-fsync",
    ]


def apiserver_command(binary: Path, folder: Path, etcd: int, port: int) -> list[str]:
    """Returns the command that runs kube-apiserver on the loopback address, with RBAC and with all stable and beta APIs."""
    key = folder / "service-accounts.key"
    return [
        str(binary),
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",  # otherwise the server looks for a default route, which a sandbox does not have
        f"--secure-port={port}",
        f"--cert-dir={folder}",
        f"--token-auth-file={folder / 'tokens.csv'}",
        "--authorization-mode=RBAC",
        "--service-account-issuer=https://127.0.0.1/",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--service-cluster-ip-range=10.0.0.0/24",
        f"--disable-admission-plugins={_ADMISSION_OFF}",
        "--runtime-config=api/beta=true",
        "--allow-privileged=true",
    ]


async def delete_all_objects(api: AsyncApi) -> None:
    """Deletes the objects of ``_DELETED_KINDS`` that a test left on a server that the next test uses.

    Namespaces stay, because no controller would finalize them. ConfigMaps, Secrets and Leases in the namespaces ``kube-*`` stay, because
    the server needs them.
    """
    for version, kind in _DELETED_KINDS:
        await remove_all(api, kind, version, kept_namespaces="kube-" if kind in _OF_SERVER else None)
