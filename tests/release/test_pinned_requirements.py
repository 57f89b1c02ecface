"""image/: versions and hashes of what an image takes from an index are those that pyproject.toml asks for."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from dra_kubeletplugin.packaging.scaffold import writer
from dra_kubeletplugin.packaging.scaffold.names import Names
from tests.release.installation import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ASKED = {
    "requirements.txt": PROJECT["project"]["dependencies"],
    "build-requirements.txt": PROJECT["dependency-groups"]["image"],
}
NEW = {str(path): text for path, text in writer.package_files(Names("sdk", "acme", "acme.example.com"))}


def pins(path: Path) -> dict[str, Requirement]:
    """By their names."""
    lines = path.read_text().replace("\\\n", " ").splitlines()
    found = [
        Requirement(line.partition(" --hash")[0].strip())
        for line in lines
        if line and not line.lstrip().startswith("#")
    ]
    return {canonicalize_name(r.name): r for r in found}


@pytest.mark.parametrize("name", ASKED)
def test_each_requirement_is_met_by_a_pin(name: str) -> None:
    have = pins(ROOT / "image" / name)
    for wanted in map(Requirement, ASKED[name]):
        (pin,) = have[canonicalize_name(wanted.name)].specifier
        assert wanted.specifier.contains(pin.version), f"{wanted} is not met by {pin}: make lock"


@pytest.mark.parametrize("name", ASKED)
def test_each_pin_is_one_version_with_hashes(name: str) -> None:
    text = (ROOT / "image" / name).read_text()
    for pin in pins(ROOT / "image" / name).values():
        assert [s.operator for s in pin.specifier] == ["=="], pin
        assert re.search(rf"^{re.escape(pin.name)}=={re.escape(next(iter(pin.specifier)).version)}.*\\\n +--hash=sha256:[0-9a-f]{{64}}", text, re.MULTILINE), pin  # fmt: skip


def test_an_image_has_nothing_of_what_builds_it() -> None:
    """But what both need."""
    assert {"hatchling", "cyclonedx-bom", "debsbom", "pip", "setuptools"}.isdisjoint(
        pins(ROOT / "image/requirements.txt")
    )


def test_a_new_package_is_built_and_pinned_as_this_tree_is() -> None:
    assert tomllib.loads(NEW["pyproject.toml"])["dependency-groups"] == PROJECT["dependency-groups"]
    ours = (ROOT / "Makefile").read_text()
    for line in NEW["Makefile"].replace(" $(WHEELS)", "").splitlines():
        if re.search(r"\$\(UV\)|\$\(COMPILE\)|^IMAGES|^LOCKED|uv>=", line) and not line.startswith("lock:"):
            # A package's line also says what to do if it fails.
            assert re.sub(r" \|\| \{ echo .*\}$", "", line) in ours
