"""Each package installs from an index into an empty environment, and works there without the packages that it does not require."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
from pathlib import Path

import pytest

from dra_devkit.localcluster.cluster import LocalCluster
from tests.helpers.objects import claim, claim_spec, device_class, pod, slice_of, template
from tests.release.installation import PROJECTS, Environment, clean_environment, run

pytestmark = [pytest.mark.index, pytest.mark.timeout(900)]
REQUIRED = {
    "dra-kubeletplugin": {"dra-kubeletplugin"},
    "dra-devkit": {"dra-kubeletplugin", "dra-devkit"},
    "dra-tools": {"dra-kubeletplugin", "dra-devkit", "dra-tools"},
    "dra-conformance": {"dra-kubeletplugin", "dra-devkit", "dra-conformance"},
    "dra-kubeletplugin[devkit,tools,conformance]": set(PROJECTS),
}
"""Our packages that pip installs, by what a user asks for."""
DRIVER = """
from dra_kubeletplugin import ContainerEdits, Device, Driver, run


class Cards(Driver):
    name = "cards.example.com"

    def devices(self):
        return [Device("card-0"), Device("card-1")]

    def prepare(self, claim):
        return [d.prepared(ContainerEdits(env={"CARD": d.name})) for d in claim.devices]


if __name__ == "__main__":
    run(Cards)
"""


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    (file := tmp_path / "cards.py").write_text(DRIVER)
    return file


def installed_from(url: str, folder: Path, *requirements: str) -> Environment:
    environment = Environment.make(folder / "environment")
    environment.install_from_index(" ".join(requirements), url)
    return environment


def own_packages(environment: Environment) -> set[str]:
    script = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
    return set(json.loads(run(environment.path("python"), "-c", script, cwd=environment.folder))) & set(PROJECTS)


def failure(environment: Environment, *words: str) -> tuple[int, str]:
    """Runs `dra`, and returns its exit code and its error output."""
    argv = [environment.path("dra"), *words]
    done = subprocess.run(
        argv, cwd=environment.folder, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stderr


async def test_the_framework_alone_runs_a_driver_and_names_the_packages_of_other_commands(
    index_url: str, driver: Path, tmp_path: Path
) -> None:
    environment = installed_from(index_url, tmp_path, "dra-kubeletplugin")
    assert own_packages(environment) == REQUIRED["dra-kubeletplugin"]
    with pytest.raises(AssertionError, match="No module named 'dra_devkit'"):
        run(environment.path("python"), "-c", "import dra_devkit", cwd=tmp_path)
    for command, package in (("explain", "dra-tools"), ("dev", "dra-devkit"), ("conformance", "dra-conformance")):
        assert failure(environment, command) == (2, f"dra: dra {command} is in {package}: pip install {package}\n")
    async with LocalCluster() as cluster:
        await cluster.apply(device_class(driver="cards.example.com"), template(), pod("user", templates=["t"]))
        node = cluster.node
        settings = {"NODE_NAME": node.name, "KUBELET_ROOT": str(node.kubelet_root), "CDI_ROOT": str(node.cdi_root)}
        with (log := tmp_path / "log").open("w") as output:
            process = await asyncio.create_subprocess_exec(
                environment.path("dra"), "run", str(driver),
                cwd=tmp_path, env=clean_environment() | cluster.access | settings, stdout=output, stderr=output,
            )  # fmt: skip
        try:
            await cluster.wait_running("user")
        finally:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0, log.read_text()


def test_the_devkit_alone_runs_dra_dev_and_the_tests_of_a_new_driver(index_url: str, tmp_path: Path) -> None:
    environment = installed_from(index_url, tmp_path, "dra-devkit", "pytest")
    assert own_packages(environment) == REQUIRED["dra-devkit"]
    run(environment.path("dra"), "new", "acme-fpga", "--kind", "sdk", cwd=tmp_path)
    package = tmp_path / "acme-fpga"
    assert " passed" in run(environment.path("python"), "-m", "pytest", "-q", cwd=package)
    with (log := tmp_path / "log").open("w") as errors:
        process = subprocess.Popen(
            [environment.path("dra"), "dev", "src/acme_fpga/driver.py", "--host", "hosts/two-cards.yaml"], cwd=package,
            env=clean_environment() | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, stderr=errors, text=True,
        )  # fmt: skip
    assert process.stdout
    output = ""
    try:
        while "Ctrl-C stops the cluster" not in output:
            line = process.stdout.readline()
            assert line, output + log.read_text()
            output += line
        assert "acme-fpga.example.com: 2 devices" in output
    finally:
        process.send_signal(signal.SIGINT)
        process.stdout.close()
        process.wait(60)


def test_the_tools_alone_explain_a_pod_of_files(index_url: str, tmp_path: Path) -> None:
    environment = installed_from(index_url, tmp_path, "dra-tools")
    assert own_packages(environment) == REQUIRED["dra-tools"]
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-1", "labels": {}}}
    waits = claim("two", claim_spec(count=3)) | {"metadata": {"name": "two", "namespace": "default", "uid": "u"}}
    train = pod("train", claims=["two"]) | {"metadata": {"name": "train", "namespace": "default", "uid": "v"}}
    items = [node, device_class(), slice_of("node-1", ["d0", "d1"]), waits, train]
    (tmp_path / "all.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    argv = [environment.path("dra"), "explain", "pod/train", "-f", "all.json"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, check=False, timeout=60
    )
    assert "fewer than 3 devices for request device" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_the_conformance_suite_alone_checks_a_driver(index_url: str, driver: Path, tmp_path: Path) -> None:
    environment = installed_from(index_url, tmp_path, "dra-conformance")
    assert own_packages(environment) == REQUIRED["dra-conformance"]
    run(
        environment.path("dra"), "conformance", "run", "REG-001", "PRE-001", "UNP-001", "--json", "report.json",
        "--driver-cmd", f"{environment.path('dra')} run {driver}", cwd=tmp_path,
    )  # fmt: skip
    report = json.loads((tmp_path / "report.json").read_text())
    assert [(o["check"]["id"], o["status"]) for o in report["outcomes"]] == [
        (i, "passed") for i in ("REG-001", "PRE-001", "UNP-001")
    ]


def test_the_extras_of_the_framework_install_all_packages_with_their_commands(index_url: str, tmp_path: Path) -> None:
    together = "dra-kubeletplugin[devkit,tools,conformance]"
    environment = installed_from(index_url, tmp_path, together)
    assert own_packages(environment) == REQUIRED[together]
    shown = run(environment.path("dra"), "--help", cwd=tmp_path)
    for command in ("run", "dev", "new", "explain", "top", "conformance"):
        assert re.search(rf"^  {command}\b", shown, re.MULTILINE), shown
