"""The places of this repository: its four packages, and the tests of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Package:
    """A distribution: its sources, and the folder with its tests. ``name`` is its folder below ``packages``, or ``framework``."""

    name: str
    source: Path
    tests: Path


def _beside(name: str) -> Package:
    folder = ROOT / "packages" / name
    return Package(name, folder / "src" / f"dra_{name}", folder / "tests")


PACKAGES: Mapping[str, Package] = {
    p.name: p
    for p in (
        Package("framework", ROOT / "src/dra_kubeletplugin", ROOT / "tests"),
        *map(_beside, ("devkit", "tools", "conformance")),
    )
}
SOURCES = tuple(p.source for p in PACKAGES.values())


def modules() -> list[Path]:
    """Returns every module of the four packages, without generated ones."""
    return [m for source in SOURCES for m in sorted(source.rglob("*.py")) if "_proto" not in m.parts]


def package_of(path: Path) -> Package:
    """Returns the package to which a file of this tree belongs. Raises ``StopIteration`` for another file."""
    return next(p for p in PACKAGES.values() if path.is_relative_to(p.source) or path.is_relative_to(p.tests))
