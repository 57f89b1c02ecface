"""An overview that changes only when a test sets another one, in place of a live one."""

from __future__ import annotations

from collections.abc import Iterable

from dra_tools import Snapshot, explain
from dra_tools.explanation.explain import Explanation
from dra_tools.usage.rows import Overview, PodRow


class StaticOverview:
    def __init__(self, found: Overview, snapshot: Snapshot | None = None) -> None:
        self.found = found
        self.snapshot = snapshot
        self.reasons = self

    def current(self) -> Overview:
        return self.found

    def show(self, pods: Iterable[PodRow]) -> None: ...

    def rest(self, used: float) -> None: ...

    async def full_explanation(self, pod: PodRow) -> Explanation:
        assert self.snapshot is not None
        return explain(self.snapshot, f"pod/{pod.name}", pod.namespace)
