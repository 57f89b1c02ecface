"""The versions and hashes that image/ pins meet the requirements of pyproject.toml."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dra_devkit.packaging.scaffold import writer
from dra_devkit.packaging.scaffold.names import Names
from tests.release.installation import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REQUIREMENTS = {
    "requirements.txt": PROJECT["project"]["dependencies"],
    "build-requirements.txt": PROJECT["dependency-groups"]["image"],
}
DRIVERS = {
    path.parent: tomllib.loads(path.read_text())["project"]["dependencies"]
    for path in ROOT.glob("drivers/*/pyproject.toml")
}
NEW = {str(path): text for path, text in writer.package_files(Names("sdk", "acme", "acme.example.com"))}


def pins(path: Path) -> dict[str, Requirement]:
    """Returns the pins of a file by package name."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    found = [
        Requirement(line.partition(" --hash")[0].strip())
        for line in lines
        if line and not line.lstrip().startswith("#")
    ]
    return {canonicalize_name(r.name): r for r in found}


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_each_requirement_is_met_by_a_pin(name: str) -> None:
    pinned = pins(ROOT / "image" / name)
    for requirement in map(Requirement, REQUIREMENTS[name]):
        (pin,) = pinned[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} is not met by {pin}: make lock"


@pytest.mark.parametrize("name", REQUIREMENTS)
def test_each_pin_is_one_version_with_hashes(name: str) -> None:
    text = (ROOT / "image" / name).read_text()
    for pin in pins(ROOT / "image" / name).values():
        assert [s.operator for s in pin.specifier] == ["=="], pin
        assert re.search(rf"^{re.escape(pin.name)}=={re.escape(next(iter(pin.specifier)).version)}.*\\\n +--hash=sha256:[0-9a-f]{{64}}", text, re.MULTILINE), pin  # fmt: skip


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda path: path.name)
def test_each_other_requirement_of_a_driver_is_met_by_its_own_pin(driver: Path) -> None:
    own = [r for r in map(Requirement, DRIVERS[driver]) if r.name != "dra-kubeletplugin"]
    pinned = pins(driver / "image/requirements.txt") if own else {}
    assert {canonicalize_name(r.name) for r in own} == set(pinned)
    for requirement in own:
        (pin,) = pinned[canonicalize_name(requirement.name)].specifier
        assert requirement.specifier.contains(pin.version), f"{requirement} is not met by {pin}: make lock"


@pytest.mark.parametrize("driver", DRIVERS, ids=lambda path: path.name)
def test_the_image_of_each_driver_has_at_most_ten_packages_of_others(driver: Path) -> None:
    own = driver / "image/requirements.txt"
    pinned = set(pins(ROOT / "image/requirements.txt")) | set(pins(own) if own.is_file() else ())
    assert len(pinned) <= 10


def test_the_image_contains_no_build_tools() -> None:
    """Packages that both the build and the driver need are not build tools."""
    assert {"hatchling", "cyclonedx-bom", "debsbom", "pip", "setuptools"}.isdisjoint(
        pins(ROOT / "image/requirements.txt")
    )


def test_a_new_package_is_built_and_pinned_like_this_tree() -> None:
    assert tomllib.loads(NEW["pyproject.toml"])["dependency-groups"] == PROJECT["dependency-groups"]
    makefile = (ROOT / "Makefile").read_text()
    for line in NEW["Makefile"].replace(" $(WHEELS)", "").splitlines():
        if re.search(r"\$\(UV\)|\$\(COMPILE\)|^IMAGES|^LOCKED|uv>=", line) and not line.startswith("lock:"):
            # The line of a package also prints a remedy on failure.
            assert re.sub(r" \|\| \{ echo .*\}$", "", line) in makefile
