"""What a signal raises, told apart from whatever an author's code may raise."""

from __future__ import annotations


class Interrupted(KeyboardInterrupt):
    """Somebody wants the process to end. Only a command's ending raises it, and nothing but that may catch it: it comes in the
    midst of any code, an author's too, and is no fault of that code."""
