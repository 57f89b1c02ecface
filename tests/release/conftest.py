"""Fixtures with the built wheel, and with an environment outside this tree in which the wheel is installed."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from tests.helpers.shared_folders import shared_folder
from tests.release import images
from tests.release.installation import Environment, build


@pytest.hookimpl(tryfirst=True)  # before pytest selects tests by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Increases the time limit of builds and installations, and marks them for ``make test-all``."""
    folder = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(folder):
            if not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(600))
            if isinstance(item, pytest.Function) and "dist" in item.fixturenames:
                item.add_marker("full")


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a folder with the wheel and the sdist of this tree."""
    return shared_folder(tmp_path_factory, "dist", build)


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    (found,) = dist.glob("*.whl")
    return found


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the name of an image that replaces python:3.13-slim."""
    shared_folder(tmp_path_factory, "base", images.make_base)
    return images.BASE


@pytest.fixture
def installed(wheel: Path, tmp_path: Path) -> Environment:
    """Installs the wheel in a separate environment. Its dependencies come from the environment of the tests, not from an index."""
    environment = Environment.make(tmp_path / "environment", shared_packages=Path(sysconfig.get_path("purelib")))
    environment.install(wheel)
    return environment
