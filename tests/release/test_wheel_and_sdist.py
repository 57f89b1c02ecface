"""The wheels and sdists of the four packages are reproducible and complete, and they have one version."""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

import dra_kubeletplugin
from tests.release.installation import PROJECTS, ROOT, Environment, build, build_all, built, run

every_package = pytest.mark.parametrize("name", PROJECTS)
METADATA = {name: tomllib.loads((source / "pyproject.toml").read_text()) for name, source in PROJECTS.items()}


def contents(folder: Path, name: str = "") -> dict[str, str]:
    """Returns the digest of each file in a folder whose name begins with the name of a distribution."""
    files = folder.glob(f"{name.replace('-', '_')}*")
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def test_two_builds_are_byte_for_byte_equal(dist: Path, tmp_path: Path) -> None:
    build_all(tmp_path)
    assert len(contents(dist)) == 2 * len(PROJECTS)
    assert contents(tmp_path) == contents(dist)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


@every_package
def test_a_build_from_the_sdist_in_another_environment_is_byte_for_byte_equal(
    name: str, dist: Path, tmp_path: Path
) -> None:
    """The build uses another folder, file modes, times, locale, time zone and hash seed."""
    tree = unpacked(built(dist, name, ".tar.gz"), tmp_path)
    for path in tree.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
        os.utime(path, (1e9, 1e9))
    environment = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "1", "HOME": str(tmp_path)}
    before = os.umask(0o077)
    try:
        build(tmp_path / "dist", tree, **environment)
    finally:
        os.umask(before)
    assert contents(tmp_path / "dist") == contents(dist, name)


def test_the_sdists_install_the_same_files_as_the_wheels(dist: Path, installed: Environment, tmp_path: Path) -> None:
    other = Environment.make(tmp_path / "other", shared_packages=Path(sysconfig.get_path("purelib")))
    other.install(*(built(dist, name, ".tar.gz") for name in PROJECTS))
    names = [
        sorted(str(p.relative_to(e.packages)) for p in e.packages.glob("dra_*/**/*") if p.suffix != ".pyc" and ".dist-info" not in str(p))
        for e in (other, installed)
    ]  # fmt: skip
    assert names[0] == names[1]
    assert run(other.path("dra"), "--version", cwd=tmp_path) == run(installed.path("dra"), "--version", cwd=tmp_path)


@every_package
def test_a_wheel_has_the_files_of_its_package_and_the_licence_and_no_tests(name: str, dist: Path) -> None:
    with zipfile.ZipFile(built(dist, name)) as archive:
        names = archive.namelist()
        (licence,) = (archive.read(n).decode() for n in names if n.endswith("dist-info/licenses/LICENSE"))
    package = PROJECTS[name] / "src" / name.replace("-", "_")
    tree = {  # Other tests may compile the package at the same time, so compiled files are ignored.
        f"{package.name}/{p.relative_to(package)}"
        for p in package.rglob("*")
        if p.parent.name != "__pycache__" and p.is_file()
    }
    assert tree == {n for n in names if ".dist-info/" not in n}
    assert f"{package.name}/py.typed" in tree
    assert not [n for n in names if "/test_" in n and not n.endswith(".tmpl")]
    assert licence == (ROOT / "LICENSE").read_text()


@every_package
def test_the_licence_of_each_package_equals_that_of_the_tree(name: str) -> None:
    """A link to the file of the tree would be broken in an sdist."""
    licence = PROJECTS[name] / "LICENSE"
    assert not licence.is_symlink()
    assert licence.read_text() == (ROOT / "LICENSE").read_text()


def test_the_packages_require_each_other_in_the_version_of_the_tree() -> None:
    pins = {
        f"{name}: {requirement}"
        for name, metadata in METADATA.items()
        for requirement in re.findall(r"'(dra-[a-z]+==[^']+)'", str(metadata["project"]))
    }
    version = dra_kubeletplugin.__version__
    assert pins == {
        f"dra-devkit: dra-kubeletplugin=={version}",
        f"dra-tools: dra-devkit=={version}",
        f"dra-conformance: dra-devkit=={version}",
        f"dra-kubeletplugin: dra-devkit=={version}",
        f"dra-kubeletplugin: dra-tools=={version}",
        f"dra-kubeletplugin: dra-conformance=={version}",
    }


@every_package
def test_the_version_of_each_package_is_that_of_the_framework(name: str) -> None:
    metadata = METADATA[name]
    assert metadata["project"]["dynamic"] == ["version"]
    file = (PROJECTS[name] / metadata["tool"]["hatch"]["version"]["path"]).resolve()
    assert file == ROOT / "src/dra_kubeletplugin/__init__.py"


def test_the_version_is_the_same_in_all_places(dist: Path, installed: Environment) -> None:
    version = dra_kubeletplugin.__version__
    assert {p.name.split("-")[1].removesuffix(".tar.gz") for p in dist.iterdir()} == {version}
    assert run(installed.path("dra"), "--version", cwd=installed.folder) == f"dra {version}\n"
    chart = yaml.safe_load((ROOT / "deploy/helm/dra-driver/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    for values in ROOT.glob("drivers/*/deploy/values.yaml"):
        assert yaml.safe_load(values.read_text())["image"].endswith(f":{version}"), values
