"""The commands of docs/tutorial.md work exactly as written with these wheels, and README opens with the demo's output."""

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

from tests.helpers.pages import commands_of, output_pattern, updated
from tests.release.installation import ROOT, Environment, clean_environment, run

PAGE = ROOT / "docs/tutorial.md"
STEPS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
INSTALLED = {"python3 -m venv tools", "tools/bin/pip install dra-devkit"}
"""Commands that the fixture replaces, because no index contains these wheels."""
STARTS_CLUSTER, ENGINE = "make dev", "make image"
CHANGED = "src/acme_fpga/driver.py"
"""The file that the tutorial changes."""


class Reader:
    """Runs the commands of the page in order, and applies its change to the driver."""

    def __init__(self, folder: Path, installed: Environment) -> None:
        self.folder = folder
        self._installed = installed
        self._environment: dict[str, str] = {}
        self._cluster: subprocess.Popen[str] | None = None

    def run_command(self, command: str) -> str:
        """Runs a command and returns its output."""
        if command in INSTALLED:
            return ""
        if command.startswith("cd "):
            self._enter(command.removeprefix("cd "))
            return ""
        if command == STARTS_CLUSTER:
            return self._start(command)
        if command.startswith(ENGINE):  # The test machine has no container engine.
            output = self._run(f"make -n {command.removeprefix('make ')}")
            assert "docker build -t registry.acme.com/fpga:0.1.0 ." in output
            return output
        return self._run(command)

    def apply_diff(self, diff: str) -> None:
        file = self.folder / CHANGED
        removed, added = ("".join(re.findall(rf"^\{sign}(.*\n)", diff, re.MULTILINE)) for sign in "-+")
        text = file.read_text()
        assert text.count(removed) == 1, f"{CHANGED} has no such lines:\n{removed}"
        file.write_text(text.replace(removed, added))

    def _run(self, command: str) -> str:
        return run("bash", "-c", command, cwd=self.folder, timeout=150, **self._environment)

    def _enter(self, name: str) -> None:
        """Enters the package and links the environment that its Makefile would install."""
        self.folder /= name
        # Like `pip install -e`: a change of the driver is effective immediately, and the cluster reloads the driver.
        (self._installed.packages / "package.pth").write_text(f"{self.folder}/src\n")
        (self.folder / ".venv").symlink_to(self._installed.folder)
        (self.folder / ".venv/.installed").touch()
        for tool in ("ruff", "mypy"):
            (self.folder / ".venv/bin" / tool).symlink_to(Path(sys.executable).parent / tool)
        self._environment["MYPYPATH"] = "src"

    def _start(self, command: str) -> str:
        """Starts the cluster, which runs until the end of the page, and uses its kubeconfig for later commands."""
        log = self.folder.parent / "log"
        with log.open("w") as errors:
            self._cluster = process = subprocess.Popen(
                command.split(), cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env=clean_environment() | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        assert process.stdout
        output = ""
        while "Ctrl-C stops the cluster" not in output:
            line = process.stdout.readline()
            assert line, output + log.read_text()
            output += line
        self._environment["KUBECONFIG"] = output.partition("KUBECONFIG=")[2].split()[0]
        return output

    def close(self) -> None:
        if self._cluster and self._cluster.stdout:
            os.killpg(self._cluster.pid, signal.SIGINT)
            self._cluster.stdout.close()
            self._cluster.wait(200)


@pytest.fixture
def reader(installed: Environment, tmp_path: Path) -> Iterator[Reader]:
    home = tmp_path / "home"
    home.mkdir()
    (home / "tools").symlink_to(installed.folder)
    reader = Reader(home, installed)
    try:
        yield reader
    finally:
        reader.close()


@pytest.mark.timeout(600)
def test_the_tutorial_works_as_written_and_prints_the_shown_output(reader: Reader) -> None:
    ran: list[tuple[str, str, str]] = []
    for language, block in STEPS:
        if language == "diff":
            reader.apply_diff(block)
            continue
        assert language == "console", f"the test cannot run a block of {language!r}"
        for command, expected in commands_of(block):
            if "kubectl" in command and not shutil.which("kubectl"):
                continue
            output = reader.run_command(command)
            if os.environ.get("UPDATE_PAGES"):
                ran.append((command, expected, output))
            elif command not in INSTALLED:
                assert output_pattern(expected).fullmatch(output), (
                    f"$ {command}\nprints:\n{output}\nbut the page shows:\n{expected}"
                )
    assert {command for _, block in STEPS if block.startswith("$ ") for command, _ in commands_of(block)} > INSTALLED
    if ran:
        PAGE.write_text(updated(PAGE.read_text(), [step for step in ran if step[0] not in INSTALLED]))


# --- the demo's output --------------------------------------------------------------------------------


def milestones(text: str) -> Iterator[str]:
    """Yields the lines that every run of the demo prints on any machine."""
    for line in text.splitlines():
        if re.match(r" *(\d\. |\S+ created from |(CDI files|records|devices held|claims): )", line):
            yield " ".join(line.split())


@pytest.fixture(scope="module")
def demo() -> list[str]:
    found = list(milestones(run(sys.executable, "drivers/pci/demo.py", cwd=ROOT, PYTHONPATH=str(ROOT / "src"))))
    assert len(found) == 12
    return found


def test_readme_opens_with_the_output_of_the_demo(demo: list[str]) -> None:
    opening = (ROOT / "README.md").read_text().partition("\n## ")[0]
    block = re.search(r"```console\n\$ make demo\n(.*?)```", opening, re.DOTALL)
    assert block
    assert list(milestones(block[1])) == demo


def test_the_picture_shows_the_output_of_the_demo(demo: list[str]) -> None:
    """In the picture, the texts of one line of the terminal have the same height."""
    texts = re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>(.*?)</text>', (ROOT / "docs/demo.svg").read_text())
    lines: dict[str, str] = {}
    for y, text in texts:
        lines[y] = lines.get(y, "") + " " + html.unescape(text).replace("\xa0", " ")
    assert list(milestones("\n".join(lines.values()))) == demo, "run `make picture`"
