"""Prevents a failure that is retried for ever from filling the log."""

from __future__ import annotations

import hashlib
import math
import time

from ..bounded_dict import BoundedDict

_MAX_SUBJECTS = 10_000
_MAX_TEXTS = 50  # texts of one subject


class LogOnce:
    """Remembers which texts were logged about each subject, such as a claim. Its memory is bounded.

    Args:
        again_after: seconds after which a text counts as new again.
    """

    def __init__(self, again_after: float = math.inf) -> None:
        self.again_after = again_after
        # When each text was logged. Digests, because texts may be long.
        self._logged = BoundedDict[str, dict[bytes, float]](_MAX_SUBJECTS)

    def is_new(self, subject: str, text: str = "") -> bool:
        """Whether the text must be logged now. It then counts as logged."""
        texts, now = self._logged.get(subject, {}), time.monotonic()
        digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
        if now - texts.get(digest, -math.inf) < self.again_after:
            return False
        if len(texts) >= _MAX_TEXTS:
            texts.clear()
        texts[digest] = now
        self._logged.put(subject, texts)
        return True

    def forget(self, subject: str) -> None:
        """Forgets the subject's texts, because its failures have ended."""
        self._logged.pop(subject, None)
