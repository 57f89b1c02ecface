"""The time that the API server sets where an object has none."""

from __future__ import annotations

import functools
import time
from datetime import UTC, datetime


def now() -> str:
    """Returns the present time in Kubernetes' format, in whole seconds."""
    return _written(int(time.time()))


@functools.lru_cache(maxsize=1)
def _written(second: int) -> str:
    return datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
