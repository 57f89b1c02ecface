"""The exception that a signal raises in this process."""

from __future__ import annotations


class Interrupted(KeyboardInterrupt):
    """Raised when a signal asks the process to end. Only the exit handling of a command raises and catches it.

    It can interrupt any code, also a driver's, and does not mean that this code failed.
    """
