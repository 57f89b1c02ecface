"""Turns off the log of gRPC's C library in this process. Otherwise, the library logs the connections that servers close in REG-008.

Import this module before grpc. Drivers do not inherit the setting.
"""

from __future__ import annotations

import os

_NAME = "GRPC_VERBOSITY"
_IS_SET_HERE = _NAME not in os.environ
os.environ.setdefault(_NAME, "NONE")


def inherited() -> dict[str, str]:
    """Returns this process's environment without the setting of this module."""
    return {k: v for k, v in os.environ.items() if not (k == _NAME and _IS_SET_HERE)}
