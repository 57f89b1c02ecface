"""The tests of a driver on a cluster stop before they change anything if their input is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest


def write_kubeconfig(folder: Path, cluster: str) -> None:
    (folder / "kubeconfig").write_text(
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}], "
        f"users: [{{name: u, user: {{}}}}], clusters: [{{name: c, cluster: {{{cluster}}}}}]}}"
    )


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    module = ["-p", "dra_conformance.e2e.options", "--pyargs", "dra_conformance.e2e.steps", "--driver-dir", str(folder)]
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


def test_a_cluster_without_dynamic_resource_allocation_is_refused(tmp_path: Path) -> None:
    """Such an API server responds with text to each path below /apis/resource.k8s.io."""

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = {"/version": {"gitVersion": "v1.33.1"}, "/api/v1/nodes": {"items": []}}.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode() if found else b"404 page not found\n")

    (tmp_path / "e2e.toml").write_text("expect = []\n")
    with HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        write_kubeconfig(tmp_path, f"server: http://127.0.0.1:{server.server_port}")
        done = run(tmp_path)
        server.shutdown()
    assert done.returncode == pytest.ExitCode.USAGE_ERROR, done.stdout + done.stderr
    assert "does not serve resource.k8s.io/v1" in done.stderr


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
