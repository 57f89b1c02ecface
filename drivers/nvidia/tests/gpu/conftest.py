"""Options and the report of the GPU tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--change-settings", action="store_true", help="also runs tests that change settings of the GPU")
    parser.addoption("--report", default="", metavar="FILE", help="writes what the GPU tests found out as JSON")


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Any:
    """What the tests find out, by name. It is written to the file of ``--report`` at the end."""
    found: dict[str, Any] = {}
    yield found
    if file := request.config.getoption("--report", default=""):
        Path(file).write_text(json.dumps(found, indent=1, default=str) + "\n")


@pytest.fixture
def change_settings(request: pytest.FixtureRequest) -> None:
    if not request.config.getoption("--change-settings", default=False):
        pytest.skip("changes settings of the GPU: needs --change-settings")
