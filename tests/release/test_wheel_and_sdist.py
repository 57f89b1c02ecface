"""Wheel and sdist are reproducible and complete, and they declare the version in one place."""

from __future__ import annotations

import hashlib
import os
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest
import yaml

import dra_kubeletplugin
from tests.release.installation import ROOT, Environment, build, run


@pytest.fixture
def sdist(dist: Path) -> Path:
    (found,) = dist.glob("*.tar.gz")
    return found


def contents(folder: Path) -> dict[str, str]:
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.iterdir()}


def test_two_builds_are_byte_for_byte_equal(dist: Path, tmp_path: Path) -> None:
    build(tmp_path)
    assert contents(tmp_path) == contents(dist)


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    return folder / sdist.name.removesuffix(".tar.gz")


def test_a_build_from_the_sdist_in_another_environment_is_byte_for_byte_equal(sdist: Path, tmp_path: Path) -> None:
    """The build uses another folder, file modes, times, locale, time zone and hash seed."""
    tree = unpacked(sdist, tmp_path)
    for path in tree.rglob("*"):
        path.chmod(0o700 if path.is_dir() or path.stat().st_mode & 0o100 else 0o600)
        os.utime(path, (1e9, 1e9))
    environment = {"TZ": "Pacific/Auckland", "LC_ALL": "C", "PYTHONHASHSEED": "1", "HOME": str(tmp_path)}
    before = os.umask(0o077)
    try:
        build(tmp_path / "dist", tree, **environment)
    finally:
        os.umask(before)
    assert contents(tmp_path / "dist") == contents(sdist.parent)


def test_an_sdist_installs_the_same_files_as_its_wheel(sdist: Path, installed: Environment, tmp_path: Path) -> None:
    other = Environment.make(tmp_path / "other", shared_packages=Path(sysconfig.get_path("purelib")))
    other.install(sdist)
    names = [sorted(str(p.relative_to(e.packages)) for p in e.packages.glob("dra_kubeletplugin/**/*") if p.suffix != ".pyc") for e in (other, installed)]  # fmt: skip
    assert names[0] == names[1]
    assert run(other.path("dra"), "--version", cwd=tmp_path) == run(installed.path("dra"), "--version", cwd=tmp_path)


def test_the_wheel_has_types_templates_and_manifests_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = ROOT / "src/dra_kubeletplugin"
    tree = {  # Other tests may compile the package at the same time, so compiled files are ignored.
        f"dra_kubeletplugin/{p.relative_to(package)}"
        for p in package.rglob("*")
        if p.parent.name != "__pycache__" and p.is_file()
    }
    assert tree == {n for n in names if ".dist-info/" not in n}
    assert "dra_kubeletplugin/py.typed" in tree
    assert not [n for n in names if "/test_" in n and not n.endswith(".tmpl")]


def test_the_version_is_the_same_in_all_places(wheel: Path, installed: Environment) -> None:
    version = dra_kubeletplugin.__version__
    assert wheel.name == f"dra_kubeletplugin-{version}-py3-none-any.whl"
    assert run(installed.path("dra"), "--version", cwd=installed.folder) == f"dra {version}\n"
    chart = yaml.safe_load((ROOT / "deploy/helm/dra-driver/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    for values in ROOT.glob("drivers/*/deploy/values.yaml"):
        assert yaml.safe_load(values.read_text())["image"].endswith(f":{version}"), values
