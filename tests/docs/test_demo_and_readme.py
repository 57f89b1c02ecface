"""The demo, the command line, README and the generated stubs work as newcomers read them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from dra_devkit.localcluster.runtime import runc

ROOT = Path(__file__).parents[2]


def run(*args: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), **environment}
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, cwd=cwd, env=env, timeout=90, check=False
    )


def test_the_demo_shows_all_steps_and_leaves_no_state() -> None:
    done = run("drivers/pci/demo.py", PCI_UNSAFE="1")
    assert done.returncode == 0, done.stdout + done.stderr
    for words in (
        "pcieRoot=",
        "allocated: node-1/",
        "CDI spec",
        "CDI files: none",
        "records: none",
        "devices held: none",
        "claims: none",
        "All done",
    ):
        assert words in done.stdout
    assert ("No real container runs" if runc.missing() else "seen from inside the container") in done.stdout


def test_the_demo_reports_a_described_host_and_shows_vfio_on_it() -> None:
    done = run("drivers/pci/demo.py", "drivers/pci/hosts/two-sockets.yaml")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "The demo uses a described host" in done.stdout
    assert "/dev/vfio/vfio" in done.stdout
    assert "CDI files: none" in done.stdout


@pytest.mark.runc
def test_the_demo_runs_a_real_container_if_runc_is_installed() -> None:
    done = run("drivers/pci/demo.py")
    assert "_MODE=info" in done.stdout.partition("seen from inside the container")[2], done.stdout + done.stderr


@pytest.mark.index
def test_committed_stubs_are_equal_to_the_output_of_the_generator(tmp_path: Path) -> None:
    python = Path(os.environ.get("PROTO_PYTHON") or ROOT / ".venv-proto/bin/python")
    if not python.exists():
        subprocess.run(["make", "-s", "proto-env"], cwd=ROOT, check=True, timeout=300, capture_output=True)
    path = f"{python.parent}:{os.environ['PATH']}"
    command = [str(python), "proto/generate.py", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=110, capture_output=True, env={**os.environ, "PATH": path})
    committed = ROOT / "src/dra_kubeletplugin/_proto"
    fresh = sorted((tmp_path / "dra_kubeletplugin/_proto").iterdir())
    assert {p.name for p in fresh} == {p.name for p in committed.iterdir() if "_pb2" in p.name}
    for file in fresh:
        assert (committed / file.name).read_text() == file.read_text(), f"{file.name}: run `make proto`"


# --- README -------------------------------------------------------------------------------------------


def snippets(page: str = "README.md") -> list[str]:
    import re

    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md"])
async def test_the_first_driver_of_a_page_works_unchanged(page: str, tmp_path: Path) -> None:
    from dra_devkit.testing import node_with
    from dra_kubeletplugin.driver import load_driver

    file = tmp_path / "driver.py"
    file.write_text(snippets(page)[0])
    functions = [
        {
            "address": f"0000:1{i}:00.0",
            "vendor": 0x10EE,
            "device": 0x5000,
            "class": 0x120000,
            "driver": "xclmgmt",
            "classes": {"fpga": {f"fpga{i}": {"dev": f"240:{i}"}}},
        }
        for i in range(2)
    ]
    async with node_with(load_driver(str(file)), host={"functions": functions}) as node:
        pod = await node.run_pod(count=2)
        assert [d["path"] for d in node.oci(pod)["linux"]["devices"]] == ["/dev/fpga0", "/dev/fpga1"]
        await node.delete_pod()
        assert not any((await node.leftovers()).values())


def test_every_snippet_of_the_readme_is_python() -> None:
    assert len(snippets()) == 3
    for snippet in snippets():
        compile(snippet, "README.md", "exec")


def test_the_test_in_the_readme_of_the_devkit_passes_in_a_new_package(tmp_path: Path) -> None:
    readme = (ROOT / "packages/devkit/README.md").read_text()
    assert "dra new acme-fpga --kind chardev && cd acme-fpga" in readme
    made = run(
        "-m",
        "dra_kubeletplugin",
        "new",
        "acme-fpga",
        "--kind",
        "chardev",
        "--driver-name",
        "fpga.acme.com",
        "-C",
        str(tmp_path),
    )
    assert made.returncode == 0, made.stderr
    [test] = snippets("packages/devkit/README.md")
    (tmp_path / "acme-fpga/tests/test_readme.py").write_text(test)
    options = ("-q", "-p", "no:cacheprovider", "-p", "dra_devkit.pytest_plugin")
    done = run("-m", "pytest", *options, "tests/test_readme.py", cwd=tmp_path / "acme-fpga")
    assert done.returncode == 0, done.stdout


def test_the_readme_states_the_number_of_recorded_cases() -> None:
    count = sum(len(p.read_text().splitlines()) for p in (ROOT / "tests/vectors/data").glob("*.jsonl"))
    assert f"{count // 10 * 10:,} recorded cases" in (ROOT / "README.md").read_text().replace("\n", " ").replace(
        "  ", " "
    )
