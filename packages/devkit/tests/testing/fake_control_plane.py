"""Fake etcd and kube-apiserver binaries: they accept only options of the real ones, and log each start, signal and stop.

They test how the test kit starts, waits for and stops these programs. They do not show that the real programs accept the options.
"""

from __future__ import annotations

import argparse
import asyncio
import csv
import signal
import socket
import sys
from pathlib import Path
from urllib.parse import urlsplit

from dra_devkit.localcluster.apiserver import ApiServer
from dra_devkit.localcluster.apiserver.auth import Tokens
from tests.helpers.certificates import authority, server_side, signed

ROOT = Path(__file__).parents[4]
# Options in `etcd --help` 3.6 and `kube-apiserver --help` 1.36 that the test kit passes.
ETCD = [
    "data-dir", "listen-client-urls", "advertise-client-urls", "listen-peer-urls", "initial-advertise-peer-urls",
    "initial-cluster",
]  # fmt: skip
API_SERVER = [
    "etcd-servers", "bind-address", "advertise-address", "secure-port", "cert-dir", "token-auth-file", "authorization-mode",
    "service-account-issuer", "service-account-key-file", "service-account-signing-key-file", "service-cluster-ip-range",
    "disable-admission-plugins", "runtime-config", "allow-privileged",
]  # fmt: skip


def install_binaries(folder: Path, **instead: str) -> Path:
    """Creates the folder for KUBEBUILDER_ASSETS. ``instead`` contains shell scripts that replace a fake binary."""
    folder.mkdir(exist_ok=True)
    for name in ("etcd", "kube-apiserver"):
        body = instead.get(
            name.replace("-", "_"),
            f'PYTHONPATH="{ROOT}:{ROOT}/src" exec "{sys.executable}" -m packages.devkit.tests.testing.fake_control_plane {name} "$@"',
        )
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)
    return folder


def read_log(folder: Path) -> list[str]:
    """Returns the events that the fake binaries logged, in order."""
    return (folder / "lives").read_text().splitlines()


def _log(text: str) -> None:
    with Path("lives").open("a") as file:  # in the working directory of the process
        file.write(text + "\n")


def _stop_event() -> asyncio.Event:
    """Returns an event that SIGTERM sets."""
    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    return end


async def etcd(options: argparse.Namespace) -> None:
    assert options.listen_client_urls == options.advertise_client_urls
    assert options.initial_cluster == f"default={options.initial_advertise_peer_urls}"
    Path(options.data_dir).mkdir()
    end = _stop_event()
    url = urlsplit(options.listen_client_urls)
    server = await asyncio.start_server(lambda _, writer: writer.close(), url.hostname, url.port)
    _log("etcd serves")
    await end.wait()
    server.close()
    _log("etcd has ended")


async def api_server(options: argparse.Namespace) -> None:
    url = urlsplit(options.etcd_servers)
    while True:  # the real API server also waits for etcd
        try:
            socket.create_connection((url.hostname or "", url.port or 0)).close()
            break
        except ConnectionRefusedError:
            await asyncio.sleep(0.01)
    folder = Path(options.cert_dir)
    assert "PRIVATE KEY" in Path(options.service_account_key_file).read_text()
    ca = authority(folder)
    pair = signed(folder, ca, "serving")
    (folder / "apiserver.crt").write_text(pair.cert.read_text() + ca.cert.read_text())
    (row,) = csv.reader(Path(options.token_auth_file).read_text().splitlines())
    assert Path(options.token_auth_file).stat().st_mode & 0o077 == 0
    assert row[3] == "system:masters"
    server = ApiServer(f"{options.bind_address}:{options.secure_port}", server_side(pair), tokens=Tokens(row[0]))
    server.injected_faults.down = True  # requests fail until the server is ready
    end = _stop_event()
    await server.start()
    asyncio.get_running_loop().call_later(0.2, setattr, server.injected_faults, "down", False)
    _log("kube-apiserver serves")
    await end.wait()
    await server.close()
    _log("kube-apiserver has ended")


def main() -> None:
    name, *arguments = sys.argv[1:]
    parser = argparse.ArgumentParser(name, allow_abbrev=False)
    for option in ETCD if name == "etcd" else API_SERVER:
        parser.add_argument(f"--{option}", required=True)
    if name == "etcd":
        parser.add_argument("--unsafe-no-fsync", action="store_true")
    else:
        parser.add_argument("--feature-gates")
    options = parser.parse_args(arguments)
    asyncio.run(etcd(options) if name == "etcd" else api_server(options))


if __name__ == "__main__":
    main()
