"""The tests of a driver on a cluster stop before they change anything if their input is missing."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest


def write_kubeconfig(folder: Path, cluster: str) -> None:
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
        f"users: [{{name: u, user: {{}}}}], clusters: [{{name: c, cluster: {{{cluster}}}}}]}}"
    )


def run(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    module = [
        "-p",
        "dra_conformance.e2e.options",
        "--pyargs",
        "dra_conformance.e2e.steps",
        "--driver-dir",
        str(folder),
        *args,
    ]
    argv = [sys.executable, "-m", "pytest", "-c", os.devnull, "--noconftest", "-p", "no:cacheprovider", *module]
    env = os.environ | {"KUBECONFIG": str(folder / "kubeconfig")}
    return subprocess.run(argv, capture_output=True, text=True, env=env, check=False, timeout=100)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("expect = [", "Invalid value"),
        ("", "missing required field `expect`"),
        ("expect = 'env A={name}'", "Expected `array`, got `str` - at `$.expect`"),
        ("expect = []\nskip_example = ['a.yaml']", "unknown field `skip_example`"),
    ],
)
def test_a_wrong_e2e_toml_is_refused_with_the_place(tmp_path: Path, text: str, fault: str) -> None:
    (tmp_path / "e2e.toml").write_text(text)
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert f"{tmp_path}/e2e.toml: " in done.stderr and fault in done.stderr


@contextlib.contextmanager
def api_server(folder: Path, **documents: Any) -> Iterator[None]:
    """Runs an API server with these documents by the end of their path. As Kubernetes, it responds with text to an unknown path."""
    found = {"version": {"gitVersion": "v1.33.1"}, "nodes": {"items": []}, **documents}

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            document = found.get(self.path.rpartition("/")[2])
            self.send_response(200 if document else 404)
            self.end_headers()
            self.wfile.write(json.dumps(document).encode() if document else b"404 page not found\n")

    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_kubeconfig(folder, f"server: http://127.0.0.1:{server.server_port}")
        yield
        server.shutdown()


def test_a_cluster_without_dynamic_resource_allocation_is_refused(tmp_path: Path) -> None:
    (tmp_path / "e2e.toml").write_text("expect = []\n")
    with api_server(tmp_path):
        done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "does not serve resource.k8s.io/v1" in done.stderr


@pytest.mark.kubectl
def test_manifests_without_a_device_class_are_refused_with_the_place(tmp_path: Path) -> None:
    (tmp_path / "e2e.toml").write_text("expect = []\n")
    env = [{"name": "DRIVER_NAME", "value": "d.example.com"}]
    spec = {"serviceAccountName": "d", "containers": [{"env": env}]}
    daemon_set = {
        "kind": "DaemonSet",
        "metadata": {"name": "d", "namespace": "d"},
        "spec": {"template": {"spec": spec}},
    }
    (manifests := tmp_path / "manifests.yaml").write_text(json.dumps(daemon_set))
    with api_server(tmp_path, v1={"resources": []}):
        done = run(tmp_path, "--manifests", str(manifests), "--image", "d", "--wait", "1", "-x", "-k", "complete")
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    assert "no DeviceClass is in the manifests: set deviceClasses" in done.stdout


def test_a_driver_without_e2e_toml_is_refused_with_an_example(tmp_path: Path) -> None:
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"{tmp_path}/e2e.toml is missing: write in it what a container gets" in done.stderr
    assert "expect = ['env NPU_*={name}']" in done.stderr


@pytest.mark.parametrize(
    "kubeconfig", ["", "server: https://127.0.0.1:1"], ids=["none", "a cluster that does not respond"]
)
def test_without_a_cluster_the_next_step_is_named(tmp_path: Path, kubeconfig: str) -> None:
    (tmp_path / "e2e.toml").write_text("expect = []\n")
    if kubeconfig:
        write_kubeconfig(tmp_path, kubeconfig)
    done = run(tmp_path)
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "there is no cluster to test on, set KUBECONFIG:" in done.stderr
