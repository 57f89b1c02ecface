"""The size and contents that an image adds to its Python base, measured on the files that `pip` installs, with byte code."""

from __future__ import annotations

import re
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from dra_devkit.packaging.scaffold import writer
from dra_devkit.packaging.scaffold.names import Names
from tests.release.installation import ROOT, Environment, built, dependencies_of, run

LIMIT = 60e6  # bytes that an image may add
STANDARD_LIBRARY = 12e6  # bytes of the standard library's byte code, which the base lacks, measured with Python 3.13
PCI_IDS = 2e6  # bytes of the list of PCI names


def size(folder: Path) -> int:
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


@pytest.fixture
def framework(dist: Path, tmp_path: Path) -> Environment:
    """Installs the wheel of the framework without its dependencies, as the Dockerfile does."""
    environment = Environment.make(tmp_path / "environment")
    environment.install(built(dist, "dra-kubeletplugin"))
    return environment


def test_the_image_adds_at_most_sixty_megabytes_and_ten_packages_of_others(framework: Environment) -> None:
    run(framework.path("python"), "-m", "compileall", "-q", str(framework.packages), cwd=framework.folder)
    (own,) = Distribution.discover(path=[str(framework.packages)])
    others = {d.name: d for d in dependencies_of(own)}
    assert {"grpcio", "protobuf"} < set(others)
    assert len(others) <= 10, "a security reviewer reads what runs as root on each node"
    files = [Path(str(d.locate_file(f))) for d in others.values() for f in d.files or []]
    shared_bytes = sum(f.stat().st_size for f in files if f.is_file() and f.suffix != ".pyc")
    code = sum(
        f.stat().st_size for f in files if f.suffix == ".py" and f.is_file()
    )  # Compiled code is at most as large as its source.
    assert size(framework.folder) + shared_bytes + code + STANDARD_LIBRARY + PCI_IDS < LIMIT


def test_the_environment_of_an_image_has_no_pip_and_no_tests(framework: Environment) -> None:
    found = [p.name for p in framework.packages.rglob("*") if p.name == "pip" or p.match("test_*.py")]
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
