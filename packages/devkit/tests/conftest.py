"""Fixtures for the tests of the devkit."""

from __future__ import annotations

import pytest

from packages.devkit.tests.command_runner import Dra


@pytest.fixture
def dra(capsys: pytest.CaptureFixture[str]) -> Dra:
    return Dra(capsys)
