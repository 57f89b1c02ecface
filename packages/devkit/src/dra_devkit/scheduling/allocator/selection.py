"""Decides whether a request accepts a device.

Checks the selectors of the class and of the request, the node, the capacity and the taints.
"""

from __future__ import annotations

from collections.abc import Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .. import cel
from . import capacity
from .faults import SelectorFault
from .pools import Candidate
from .results import PickedRequest
from .taints import tolerates

_BLOCKING_EFFECTS = {"NoSchedule", "NoExecute"}


def accepts(claim: str, request: PickedRequest, candidate: Candidate) -> bool:
    """Returns whether a request accepts a device.

    Raises :class:`SelectorFault` if a selector cannot be evaluated. The pod then fits on no node, although other devices may match.
    """
    of_class = request.device_class["spec"].get("selectors") or []
    return (
        _match(f"class {request.device_class['metadata']['name']}", of_class, candidate)
        and _match(f"claim {claim}", request.spec.get("selectors") or [], candidate)
        and candidate.for_node
        and _large_enough(request, candidate)
    )


def _large_enough(request: PickedRequest, candidate: Candidate) -> bool:
    if candidate.multiple:
        return capacity.consumed(candidate.device, request.spec.get("capacity")) is not None
    return capacity.fits(candidate.device, request.spec.get("capacity"))


def _match(owner: str, selectors: Sequence[ReadOnlyJSON], candidate: Candidate) -> bool:
    for i, selector in enumerate(selectors):
        expression = selector["cel"]["expression"]
        found = candidate.matches.get(expression)
        if found is None:
            found = candidate.matches[expression] = _evaluate(f"{owner}: selector #{i}", expression, candidate)
        if not found:
            return False
    return True


def _evaluate(where: str, expression: str, candidate: Candidate) -> bool:
    try:
        # Lists can always be allowed here: an API server without list support has already rejected selectors that need lists.
        compiled = cel.compile_selector(expression, list_attributes=True)
    except cel.CompileError as e:
        raise SelectorFault(f"{where}: CEL compile error: {e}") from None
    try:
        return compiled.matches(candidate.cel_device)
    except cel.CelError as e:
        raise SelectorFault(f"{where}: CEL runtime error: {e}") from None


def tolerated(device: ReadOnlyJSON, spec: ReadOnlyJSON) -> bool:
    """Returns whether the request tolerates every taint that keeps new claims away."""
    return all(
        any(tolerates(t, taint) for t in spec.get("tolerations") or [])
        for taint in device.get("taints") or []
        if taint["effect"] in _BLOCKING_EFFECTS
    )
