"""Python imports this module at the start of each process that a test starts with `--pauses steps`. See tests/tools/pauses.py."""

import os
import random

if seed := os.environ.get("PAUSES_SEED"):
    from pausing import pause_at_steps  # this folder is in sys.path

    pause_at_steps(random.Random(f"{seed} {os.getpid()}"))
