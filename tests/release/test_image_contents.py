"""The size and contents that an image adds to its Python base, measured on the files that `pip` installs, with byte code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from dra_kubeletplugin.packaging.scaffold import writer
from dra_kubeletplugin.packaging.scaffold.names import Names
from tests.release.installation import ROOT, Environment, run

LIMIT = 90e6  # bytes that an image may add
STANDARD_LIBRARY = 12e6  # bytes of the standard library's byte code, which the base lacks, measured with Python 3.13
PCI_IDS = 2e6  # bytes of the list of PCI names


def dependencies_of(dist: Distribution) -> Iterator[Distribution]:
    """Yields the distributions that are installed with a distribution, without extras and without itself."""
    for text in dist.requires or []:
        requirement = Requirement(text)
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            found = distribution(requirement.name)
            yield found
            yield from dependencies_of(found)


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def test_the_image_adds_at_most_ninety_megabytes(installed: Environment) -> None:
    run(installed.path("python"), "-m", "compileall", "-q", str(installed.packages), cwd=installed.folder)
    (own,) = Distribution.discover(name="dra-kubeletplugin", path=[str(installed.packages)])
    others = {d.name: d for d in dependencies_of(own)}
    assert "kubernetes" not in others
    files = [Path(str(d.locate_file(f))) for d in others.values() for f in d.files or []]
    shared_bytes = sum(f.stat().st_size for f in files if f.is_file() and f.suffix != ".pyc")
    code = sum(
        f.stat().st_size for f in files if f.suffix == ".py" and f.is_file()
    )  # Compiled code is at most as large as its source.
    assert size(installed.folder) + shared_bytes + code + STANDARD_LIBRARY + PCI_IDS < LIMIT


def test_the_environment_of_an_image_has_no_pip_and_no_tests(installed: Environment) -> None:
    found = [p.name for p in installed.packages.rglob("*") if p.name == "pip" or p.match("test_*.py")]
    assert found == []


@pytest.mark.parametrize("dockerfile", ["this tree", "a new driver"])
def test_the_dockerfile_keeps_build_tools_in_its_first_stage(dockerfile: str) -> None:
    names = Names("sdk", "acme", "acme.example.com")
    new = {str(path): text for path, text in writer.package_files(names)}
    text = (ROOT / "Dockerfile").read_text() if dockerfile == "this tree" else new["Dockerfile"]
    first, last = re.split(r"^FROM ", text, flags=re.MULTILINE)[1:]
    assert "--without-pip" in first
    assert not re.search(r"\b(pip|uv) |apt-get", last)
    from_an_index = [
        line for line in first.replace("\\\n", "").splitlines() if " install " in line and "apt-get" not in line
    ]
    assert from_an_index
    assert all("--require-hashes" in step or "--no-index" in step for step in re.split("&&|;|\n", "\n".join(from_an_index)) if " install " in step)  # fmt: skip
    assert text.count("FROM ${BASE}") == 2, "both stages use one base, which a release sets by digest"
