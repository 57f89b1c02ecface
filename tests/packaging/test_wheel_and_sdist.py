"""What is released: built twice it is the same, it has all it needs and nothing else, and its version is said once."""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

import yaml

import dra_kubeletplugin

from .installing import ROOT, Environment, build, run


def test_two_builds_are_the_same_bytes(dist: Path, tmp_path: Path) -> None:
    build(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == {p.name: p.read_bytes() for p in dist.iterdir()}


def test_the_wheel_of_the_sdist_is_the_wheel_of_the_tree(dist: Path, wheel: Path, tmp_path: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    build(tmp_path / "dist", tmp_path / sdist.name.removesuffix(".tar.gz"))
    assert (tmp_path / "dist" / wheel.name).read_bytes() == wheel.read_bytes()


def test_the_wheel_has_types_templates_and_manifests_and_no_tests(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    package = ROOT / "src/dra_kubeletplugin"
    tree = {
        f"dra_kubeletplugin/{p.relative_to(package)}" for p in package.rglob("*") if p.is_file() and p.suffix != ".pyc"
    }
    assert tree == {n for n in names if ".dist-info/" not in n}
    assert "dra_kubeletplugin/py.typed" in tree
    assert not [n for n in names if "/test_" in n and not n.endswith(".tmpl")]


def test_the_version_is_said_once(wheel: Path, installed: Environment) -> None:
    version = dra_kubeletplugin.__version__
    assert wheel.name == f"dra_kubeletplugin-{version}-py3-none-any.whl"
    assert run(installed.path("dra"), "--version", cwd=installed.folder) == f"dra {version}\n"
    chart = yaml.safe_load((ROOT / "deploy/helm/dra-driver/Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version
    for values in ROOT.glob("drivers/*/deploy/values.yaml"):
        assert yaml.safe_load(values.read_text())["image"].endswith(f":{version}"), values
