"""Fixtures of the tests of manifests."""

from __future__ import annotations

import pytest

from packages.devkit.tests.packaging.manifests.rendering import Renderings


@pytest.fixture(scope="session")
def renderings(tmp_path_factory: pytest.TempPathFactory) -> Renderings:
    return Renderings(tmp_path_factory)
