"""`make drivers`: rewrites the files of `drivers/` that are copies of the templates of `dra new`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import yaml

from dra_devkit.packaging.scaffold.names import Names
from dra_devkit.packaging.scaffold.writer import common_files

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.parent for p in ROOT.glob("drivers/*/pyproject.toml"))
CUSTOMIZED = {"README.md", "pyproject.toml", "deploy/values.yaml", "examples/pod.yaml", "e2e.toml", "conformance.toml"}
"""Files that a template starts and each driver extends."""
WORKFLOWS = PurePosixPath(".github")
"""Workflows that drivers in this tree do not need, because `.ci/run` and the workflows of this tree test them."""
_RULES = "PYTHON ?="  # The lines above this text in a Makefile belong to the driver.


def template(package: Path) -> dict[PurePosixPath, str]:
    """Returns the files that `dra new` writes for a driver with this name, for every kind."""
    driver = yaml.safe_load((package / "deploy/values.yaml").read_text())["driverName"]
    return dict(common_files(Names("", package.name.replace("_", "-"), driver)))


def expected_files(package: Path) -> Iterator[tuple[Path, str]]:
    """Yields each file that must equal its template, and the expected content."""
    for path, text in template(package).items():
        if str(path) in CUSTOMIZED or path.is_relative_to(WORKFLOWS):
            continue
        if path.name == "Makefile":
            own_lines = (package / path).read_text().partition(_RULES)[0]
            text = own_lines + _RULES + text.partition(_RULES)[2]
        yield package / path, text


def main() -> int:
    for package in PACKAGES:
        for path, text in expected_files(package):
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
