"""Ports that are reserved before a server listens on them, by several test sessions on one machine."""

from __future__ import annotations

import random
import subprocess
import sys

from dra_devkit.testing.ports import free_port

SAME_SEED = "import random; random.seed(7); from dra_devkit.testing.ports import free_port; print(free_port())"


def test_two_sessions_with_the_same_seed_get_different_ports() -> None:
    before = random.getstate()
    try:
        random.seed(7)
        own_port = free_port()
    finally:
        random.setstate(before)
    other_session = subprocess.run([sys.executable, "-c", SAME_SEED], capture_output=True, text=True, check=True)
    assert int(other_session.stdout) != own_port
