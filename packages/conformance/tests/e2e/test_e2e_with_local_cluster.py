"""The tests of a driver on a cluster pass for the example driver in its own pods, and each broken driver fails the test that it must fail."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.dev_process import DevProcess, run_dev
from tests.helpers.shared_folders import shared_folder
from tests.helpers.waiting import block_until
from tests.release import images

from . import broken_drivers

pytestmark = [
    pytest.mark.image,
    pytest.mark.runc,
    pytest.mark.kubectl,
    pytest.mark.full,
    pytest.mark.timeout(1500),
]
IMAGE = "localhost/dra-test/gpu-example:e2e"
GATES = ("--feature-gates", "DRADeviceTaintRules=true", "--runtime-config", "resource.k8s.io/v1beta2=true")


@dataclass
class E2e:
    """A running cluster, whose nodes have the image ``IMAGE``."""

    dev: DevProcess

    def command(self, *args: str) -> list[str]:
        own = [
            "--driver-dir",
            str(broken_drivers.DRIVER),
            "--pod-image",
            "busybox",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:asyncio",
        ]
        module = [
            "-p",
            "dra_conformance.e2e.options",
            "--pyargs",
            "dra_conformance.e2e.steps",
            "-c",
            os.devnull,
            "--noconftest",
        ]
        return [sys.executable, "-m", "pytest", "-rs", "-v", "--tb=short", *module, *own, *args]

    def start(self, *args: str) -> subprocess.Popen[str]:
        env = os.environ | {"KUBECONFIG": self.dev.kubeconfig}
        return subprocess.Popen(
            self.command(*args),
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.dev.folder,
        )

    def run(self, *args: str) -> tuple[int, str]:
        process = self.start(*args)
        output, _ = process.communicate(timeout=900)
        return process.returncode, output

    def left(self) -> list[str]:
        """Returns the objects of the tests and of the driver that are still in the cluster."""
        kinds = "namespaces,resourceslices,deviceclasses,daemonsets,pods,resourceclaims,clusterroles,validatingadmissionpolicies"
        found = json.loads(self.dev.kubectl("get", kinds, "-A", "-o", "json"))["items"]
        named = [f"{o['kind']} {o['metadata']['name']}" for o in found]
        return [n for n in named if re.search(r"e2e|gpu|^ResourceSlice", n)]


def build_image(folder: Path) -> None:
    """Builds the image of the example driver with the broken drivers, and writes it into the folder ``oci``."""
    images.make_base(folder)
    tag = images.tag("gpu-example")
    try:
        images.build(broken_drivers.ROOT, tag, "--build-arg", "DRIVER=drivers/gpu_example")
        (context := folder / "broken").mkdir()
        broken_drivers.write_sources(context)
        (context / "Dockerfile").write_text(f"FROM {tag}\nCOPY *.py /broken/\n")
        images.build(context, tag)
        save = ["podman", "save", "--format", "oci-dir", "-o", str(folder / "oci"), tag]
        subprocess.run(save, check=True, capture_output=True)
    finally:
        images.remove(tag)


@pytest.fixture(scope="module")
def e2e(tmp_path_factory: pytest.TempPathFactory) -> Iterator[E2e]:
    if reason := images.missing():
        pytest.skip(reason)
    saved = shared_folder(tmp_path_factory, "e2e-image", build_image) / "oci"
    folder = tmp_path_factory.mktemp("e2e")
    with run_dev(folder, "--containers", "--nodes", "2", *GATES, "--image", f"{IMAGE}={saved}") as dev:
        yield E2e(dev)


def test_the_example_driver_passes_and_nothing_is_left(e2e: E2e, tmp_path: Path) -> None:
    (values := tmp_path / "values.yaml").write_text("pods: {all: {env: [{name: E2E, value: '1'}]}}\n")
    code, output = e2e.run("--image", IMAGE, "--values", str(values))
    assert code == 0, output
    assert "skipped" not in output.splitlines()[-1]
    assert re.search(r"cluster: Kubernetes v1\.36\S+ at https://", output)
    assert re.search(r"runtimes: runc://\S+", output)
    assert re.search(r"gates on: .*DRADeviceTaintRules", output)
    assert e2e.left() == []


@pytest.mark.parametrize(
    ("driver_file", "change", "test", "message"),
    [
        ("", broken_drivers.without_cdi_files, r"test_example\[pod.yaml\] FAILED", "unresolvable CDI devices"),
        (
            "/broken/wrong_device.py",
            broken_drivers.unchanged,
            r"test_example\[pod.yaml\] FAILED",
            "has device node-[12]/gpu-0, but no line",
        ),
        (
            "/broken/leak.py",
            broken_drivers.unchanged,
            r"test_example\[pod.yaml\] ERROR",
            "these files still name deleted claims",
        ),
        ("/broken/never_ready.py", broken_drivers.unchanged, "complete ERROR", "the vendor's library reports no cards"),
        (
            "",
            broken_drivers.with_an_open_policy,
            "own_node_and_driver_only FAILED",
            "may write slices of another node, of another driver, of no node",
        ),
        (
            "",
            broken_drivers.with_an_open_role,
            r"may_not_list\[secrets\] FAILED",
            "the plugin may list /api/v1/secrets",
        ),
    ],
    ids=["no CDI file", "wrong device", "leak at delete", "never ready", "policy too open", "role too open"],
)
def test_a_broken_driver_fails(
    e2e: E2e, driver_file: str, change: Callable[[list[Any]], None], test: str, message: str, tmp_path: Path
) -> None:
    broken_drivers.write_manifests(manifests := tmp_path / "manifests.yaml", IMAGE, change, driver_file)
    code, output = e2e.run("--manifests", str(manifests), "--wait", "45", "-x", "-k", "example or complete or may")
    assert code == 1, output
    assert re.search(test, output) and re.search(message, output), output
    assert e2e.left() == []


def test_patterns_of_attributes_that_no_device_has_fail(e2e: E2e, tmp_path: Path) -> None:
    package = tmp_path / "gpu_example"
    shutil.copytree(broken_drivers.DRIVER, package, ignore=shutil.ignore_patterns(".*", "build"))
    (package / "e2e.toml").write_text('expect = ["env GPU_DEVICE_*={attr[uuidd]}"]\n')
    own = ("--driver-dir", str(package), "--image", IMAGE)
    code, output = e2e.run(*own, "-x", "-k", "different_devices")
    assert code == 1, output
    assert re.search(
        "no pattern of `expect` is for device node-[12]/gpu-[0-9], which has the attributes .*uuid", output
    ), output


def test_ctrl_c_leaves_nothing_behind(e2e: E2e) -> None:
    """As GitHub cancels a job: SIGINT, and SIGTERM while the clean-up runs."""
    process = e2e.start("--image", IMAGE)
    block_until(lambda: "survivor" in e2e.dev.kubectl("get", "pods", "-n", "dra-e2e"), limit=300)
    process.send_signal(signal.SIGINT)
    block_until(lambda: "Running" not in e2e.dev.kubectl("get", "pods", "-n", "dra-e2e"), limit=300)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 2, output
    assert e2e.left() == []
