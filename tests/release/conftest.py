"""Fixtures with the built wheels, and with an environment outside this tree in which the wheels are installed."""

from __future__ import annotations

import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.shared_folders import shared_folder
from tests.release import images, index
from tests.release.installation import PROJECTS, Environment, build_all, built


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
    """Returns a folder with the wheels and the sdists of this tree."""
    return shared_folder(tmp_path_factory, "dist", build_all)


@pytest.fixture(scope="session")
def index_url(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Serves the wheels of this tree as a package index."""
    folder = tmp_path_factory.mktemp("index")
    for name in PROJECTS:
        index.fill(folder, built(dist, name))
    with index.served(folder) as url:
        yield url


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Returns the name of an image that replaces python:3.13-slim."""
    shared_folder(tmp_path_factory, "base", images.make_base)
    return images.BASE


@pytest.fixture
def installed(dist: Path, tmp_path: Path) -> Environment:
    """Installs the wheels in a separate environment. Dependencies come from the environment of the tests, not from an index."""
    environment = Environment.make(tmp_path / "environment", shared_packages=Path(sysconfig.get_path("purelib")))
    environment.install(*(built(dist, name) for name in PROJECTS))
    return environment
