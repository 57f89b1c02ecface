"""docs/tutorial.md: it is followed word for word, on a machine where this wheel is the index; and README's first minute."""

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
from tests.release.installation import ROOT, Environment, as_elsewhere, run

PAGE = ROOT / "docs/tutorial.md"
STEPS = re.findall(r"^```(\w+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
INSTALLED = {"python3 -m venv tools", "tools/bin/pip install dra-kubeletplugin"}
"""Done by the fixture: an index that has this wheel is not at hand."""
STAYS, ENGINE = "make dev", "make image"
CHANGED = "src/acme_fpga/driver.py"
"""The file that the page's change is about."""


class Reader:
    """Types the commands of the page, in the order of the page, and makes its change."""

    def __init__(self, folder: Path, installed: Environment) -> None:
        self.folder = folder
        self._installed = installed
        self._environment: dict[str, str] = {}
        self._cluster: subprocess.Popen[str] | None = None

    def types(self, command: str) -> str:
        """Returns what the command prints."""
        if command in INSTALLED:
            return ""
        if command.startswith("cd "):
            self._enter(command.removeprefix("cd "))
            return ""
        if command == STAYS:
            return self._start(command)
        if command.startswith(ENGINE):  # there is no engine here
            said = self._run(f"make -n {command.removeprefix('make ')}")
            assert "docker build -t registry.acme.com/fpga:0.1.0 ." in said
            return said
        return self._run(command)

    def changes(self, diff: str) -> None:
        file = self.folder / CHANGED
        removed, added = ("".join(re.findall(rf"^\{sign}(.*\n)", diff, re.MULTILINE)) for sign in "-+")
        text = file.read_text()
        assert text.count(removed) == 1, f"{CHANGED} has no such lines:\n{removed}"
        file.write_text(text.replace(removed, added))

    def _run(self, command: str) -> str:
        return run("bash", "-c", command, cwd=self.folder, timeout=150, **self._environment)

    def _enter(self, name: str) -> None:
        """Enters the package, with the environment that its Makefile would install."""
        self.folder /= name
        # As `pip install -e` makes it: a change of the driver counts at once, and the cluster reloads it.
        (self._installed.packages / "package.pth").write_text(f"{self.folder}/src\n")
        (self.folder / ".venv").symlink_to(self._installed.folder)
        (self.folder / ".venv/.installed").touch()
        for tool in ("ruff", "mypy"):
            (self.folder / ".venv/bin" / tool).symlink_to(Path(sys.executable).parent / tool)
        self._environment["MYPYPATH"] = "src"

    def _start(self, command: str) -> str:
        """Starts the cluster, which runs until the end of the page, and takes its kubeconfig for the other shell."""
        log = self.folder.parent / "log"
        with log.open("w") as errors:
            self._cluster = process = subprocess.Popen(
                command.split(), cwd=self.folder, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
                env=as_elsewhere() | {"PYTHONUNBUFFERED": "1"},
            )  # fmt: skip
        assert process.stdout
        said = ""
        while "Ctrl-C stops the cluster" not in said:
            line = process.stdout.readline()
            assert line, said + log.read_text()
            said += line
        self._environment["KUBECONFIG"] = said.partition("KUBECONFIG=")[2].split()[0]
        return said

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
def test_the_tutorial_works_word_for_word_and_prints_what_it_shows(reader: Reader) -> None:
    ran: list[tuple[str, str, str]] = []
    for language, block in STEPS:
        if language == "diff":
            reader.changes(block)
            continue
        assert language == "console", f"nobody runs a block of {language!r}"
        for command, output in commands_of(block):
            if "kubectl" in command and not shutil.which("kubectl"):
                continue
            said = reader.types(command)
            if os.environ.get("UPDATE_PAGES"):
                ran.append((command, output, said))
            elif command not in INSTALLED:
                assert output_pattern(output).fullmatch(said), (
                    f"$ {command}\nsays:\n{said}\nand the page shows:\n{output}"
                )
    assert {command for _, block in STEPS if block.startswith("$ ") for command, _ in commands_of(block)} > INSTALLED
    if ran:
        PAGE.write_text(updated(PAGE.read_text(), [step for step in ran if step[0] not in INSTALLED]))


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
    texts = re.findall(r'<text [^>]*\by="([\d.]+)"[^>]*>(.*?)</text>', (ROOT / "docs/demo.svg").read_text())
    lines: dict[str, str] = {}
    for y, text in texts:
        lines[y] = lines.get(y, "") + " " + html.unescape(text).replace("\xa0", " ")
    assert list(milestones("\n".join(lines.values()))) == demo, "run `make picture`"
