"""Ports that are named before anybody listens there, by several test sessions on one machine."""

from __future__ import annotations

import random
import subprocess
import sys

from dra_kubeletplugin.testing import ports
from dra_kubeletplugin.testing.ports import free_port

SAME_DICE = "import random; random.seed(7); from dra_kubeletplugin.testing.ports import free_port; print(free_port())"


def test_another_session_is_never_reported_the_same_port_before_somebody_listens_there() -> None:
    before = random.getstate()
    try:
        random.seed(7)
        mine = free_port()
    finally:
        random.setstate(before)
    theirs = subprocess.run([sys.executable, "-c", SAME_DICE], capture_output=True, text=True, check=True)
    assert int(theirs.stdout) != mine


def test_marks_of_ports_are_few_however_many_are_requested() -> None:
    told = [free_port() for _ in range(3 * ports._MAX_MARKS)]
    assert len(ports._marks) == ports._MAX_MARKS
    assert len({*told[-ports._MAX_MARKS :]}) == ports._MAX_MARKS
