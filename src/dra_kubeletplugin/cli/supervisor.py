"""``dra supervisor``: runs the process supervisor of a driver."""

from __future__ import annotations

import argparse
import os
import sys
from typing import NoReturn


def supervisor(args: argparse.Namespace) -> NoReturn:
    """Replaces this process by the supervisor, which needs none of the modules of the command line in memory."""
    module = "dra_kubeletplugin.base.processes.supervisor"
    os.execv(sys.executable, [sys.executable, "-m", module, str(args.socket)])  # noqa: S606 - no shell is needed
