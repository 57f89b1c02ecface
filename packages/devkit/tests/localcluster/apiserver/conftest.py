from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.helpers.api_server import ApiCaller, running_api_server


@pytest.fixture
async def curl() -> AsyncIterator[ApiCaller]:
    """Sends requests to a new API server, which serves all versions of all kinds."""
    async with running_api_server() as curl:
        yield curl
