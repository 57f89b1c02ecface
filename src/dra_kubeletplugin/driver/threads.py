"""Threads in which plain methods of a driver block: made when needed, few or none at rest, and no hindrance to the process's end."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

Job = Callable[[], None]  # must not raise
_REST = 10.0  # seconds that a thread without work stays, for a vendor's library with state for each thread


class Threads:
    """At most ``limit`` daemon threads; a job beyond that waits in a queue, from which it can be taken back."""

    def __init__(self, limit: int, name: str) -> None:
        self.limit = limit
        self.name = name
        self._change = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._alive = 0
        self._resting = 0

    def submit(self, job: Job) -> None:
        """Runs ``job`` in a thread, at once where one is free or may be made."""
        with self._change:
            self._jobs.append(job)
            if self._resting >= len(self._jobs):
                self._change.notify()
                return
            if self._alive >= self.limit:
                return
            self._alive += 1
        # A daemon: the interpreter would wait for ever for a library that hangs.
        thread = threading.Thread(target=self._work, name=self.name, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the machine has no thread left: one of ours that ends its job takes this one
            with self._change:
                self._alive -= 1

    def withdraw(self, job: Job) -> bool:
        """Takes a job out of the queue; False where it has begun."""
        with self._change:
            try:
                self._jobs.remove(job)
            except ValueError:
                return False
            return True

    def _work(self) -> None:
        while True:
            with self._change:
                while not self._jobs:
                    self._resting += 1
                    woken = self._change.wait(_REST)
                    self._resting -= 1
                    if not woken and not self._jobs:
                        self._alive -= 1
                        return
                job = self._jobs.popleft()
            job()
            del job  # what it holds must not live on in a thread at rest
