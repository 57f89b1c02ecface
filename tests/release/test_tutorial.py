"""docs/tutorial.md: its commands are run, in order, on a machine where this wheel is the index; and README's first minute."""

from __future__ import annotations

import html
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.release.installation import ROOT, Environment, as_elsewhere, run

TUTORIAL = (ROOT / "docs/tutorial.md").read_text()
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)```", TUTORIAL, re.DOTALL) for line in block.splitlines()]
LOOKS = re.findall(r"^\$ (kubectl .*)$", TUTORIAL, re.MULTILINE)
INSTALLED = {"python3 -m venv tools", "tools/bin/pip install dra-kubeletplugin"}
"""Done by the fixture: an index that has this wheel is not at hand."""
STAYS, ENGINE, CLUSTER = "make dev", "make image", "kubectl apply"


@pytest.mark.timeout(600)
def test_the_tutorial_s_commands_work_as_they_stand(installed: Environment, tmp_path: Path) -> None:
    here = tmp_path / "home"
    here.mkdir()
    (here / "tools").symlink_to(installed.folder)
    assert set(COMMANDS) > INSTALLED
    assert len(LOOKS) == TUTORIAL.count("\n$ ")
    ran = 0
    for command in (c for c in COMMANDS if c not in INSTALLED):
        if command.startswith("cd "):
            here /= command.removeprefix("cd ")
            installed.install(here)
            (here / ".venv").symlink_to(installed.folder)
            (here / ".venv/.installed").touch()
        elif command == STAYS:
            assert "fpga.acme.com: 2 devices" in _while_up(command, here)
        elif command.startswith(CLUSTER):
            if shutil.which("kubectl"):
                run("kubectl", "kustomize", command.rpartition(" ")[2], cwd=here)
        elif command.startswith(ENGINE):
            assert "docker build -t registry.acme.com/fpga:0.1.0 ." in run("make", "-n", *command.split()[1:], cwd=here)
        else:
            run(*command.split(), cwd=here)
        ran += 1
    assert ran == len(COMMANDS) - len(INSTALLED)
    inspected = re.findall(r"`.venv/bin/(dra inspect [^`]+)`", TUTORIAL)
    assert len(inspected) == 1
    assert "card-a100" in run(installed.path("dra"), *inspected[0].split()[1:], cwd=here)


def _while_up(command: str, folder: Path) -> str:
    """Also runs there what is to be typed in another shell."""
    log = folder.parent / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command.split(),
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env=as_elsewhere(),
        )
    assert process.stdout
    said = ""
    try:
        while "Ctrl-C stops the cluster" not in said:
            line = process.stdout.readline()
            assert line, said + log.read_text()
            said += line
        kubeconfig = said.partition("KUBECONFIG=")[2].split()[0]
        for line in LOOKS if shutil.which("kubectl") else ():
            assert run(*line.split(), cwd=folder, KUBECONFIG=kubeconfig)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        process.stdout.close()
        process.wait(200)
    return said


# --- the first minute ---------------------------------------------------------------------------------


def milestones(text: str) -> Iterator[str]:
    """What every run of the demo says, on whatever machine."""
    for line in text.splitlines():
        if re.match(r" *(\d\. |\S+ created from |(CDI files|records|devices held|claims): )", line):
            yield " ".join(line.split())


@pytest.fixture(scope="module")
def demo() -> list[str]:
    found = list(milestones(run(sys.executable, "drivers/pci/demo.py", cwd=ROOT, PYTHONPATH=str(ROOT / "src"))))
    assert len(found) == 12
    return found


def test_readme_opens_with_what_the_demo_prints(demo: list[str]) -> None:
    opening = (ROOT / "README.md").read_text().partition("\n## ")[0]
    block = re.search(r"```console\n\$ make demo\n(.*?)```", opening, re.DOTALL)
    assert block
    assert list(milestones(block[1])) == demo


def test_the_picture_shows_what_the_demo_prints(demo: list[str]) -> None:
    """Lines of the terminal are texts at one height."""
    texts = re.findall(
        r'<text class="demo-r\d+"[^>]* y="([\d.]+)"[^>]*>(.*?)</text>', (ROOT / "docs/demo.svg").read_text()
    )
    lines: dict[str, str] = {}
    for y, text in texts:
        lines[y] = lines.get(y, "") + " " + html.unescape(text).replace("\xa0", " ")
    assert list(milestones("\n".join(lines.values()))) == demo, "run `make picture`"
