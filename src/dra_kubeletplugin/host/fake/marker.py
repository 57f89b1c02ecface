"""The marker file that distinguishes a described host from a real sysfs."""

from __future__ import annotations

from pathlib import Path

MARKER = ".described-host"
BOOT_ID = ".boot-id"


def is_described(root: Path) -> bool:
    return (root / MARKER).exists()
