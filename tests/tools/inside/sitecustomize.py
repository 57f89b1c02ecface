"""Python loads this at the start of each process that a test starts under `make pauses --pauses steps`: see tests/tools/pauses.py."""

import os
import random

if seed := os.environ.get("PAUSES_SEED"):
    from pausing import pause_at_steps  # this folder is on the path

    pause_at_steps(random.Random(f"{seed} {os.getpid()}"))
