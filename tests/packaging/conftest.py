"""The wheel, and an environment outside this tree in which it is installed."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from . import images
from .installing import Environment, build


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Building, installing and judging types take their time on a busy machine."""
    for item in items:
        if Path(__file__).parent in item.path.parents and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist of this tree."""
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The name of an image that stands for python:3.13-slim."""
    images.make_base(tmp_path_factory.mktemp("base"))
    return images.BASE


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Environment:
    """The wheel in an environment of its own; what it depends on is lent by that of the tests, so that no index is asked."""
    environment = Environment.make(tmp_path / "environment", lent=Path(sysconfig.get_path("purelib")))
    environment.install(wheel)
    return environment
