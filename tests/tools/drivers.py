"""What packages of `drivers/` have word for word from the templates of `dra new`: `make drivers` writes it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import yaml

from dra_kubeletplugin.packaging.scaffold.names import Names
from dra_kubeletplugin.packaging.scaffold.writer import common_files

ROOT = Path(__file__).parents[2]
PACKAGES = sorted(p.parent for p in ROOT.glob("drivers/*/pyproject.toml"))
OWN = {"README.md", "pyproject.toml", "deploy/values.yaml", "examples/pod.yaml"}
"""What a template begins, and each driver goes on with."""
CI = PurePosixPath(".github/workflows/ci.yaml")
"""Nobody would run it: this tree's is `.ci/run`."""
_RULES = "PYTHON ?="  # in a Makefile what is above it is the driver's own


def template(package: Path) -> dict[PurePosixPath, str]:
    """What `dra new` would write for a driver of this name, whatever its kind."""
    driver = yaml.safe_load((package / "deploy/values.yaml").read_text())["driverName"]
    return dict(common_files(Names("", package.name.replace("_", "-"), driver)))


def same(package: Path) -> Iterator[tuple[Path, str]]:
    """Each file that is as the template has it, and what should be in it."""
    for path, text in template(package).items():
        if str(path) in OWN or path == CI:
            continue
        if path.name == "Makefile":
            own = (package / path).read_text().partition(_RULES)[0]
            text = own + _RULES + text.partition(_RULES)[2]
        yield package / path, text


def main() -> int:
    for package in PACKAGES:
        for path, text in same(package):
            if not path.is_file() or path.read_text() != text:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
