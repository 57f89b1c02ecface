"""Derived attributes of requests (KEP-6080): values that expressions calculate for each device, for constraints only."""

from __future__ import annotations

from dra_kubeletplugin.base.json_types import ReadOnlyJSON

from .. import cel
from .constraints import attribute_of
from .faults import SelectorFault
from .pools import Candidate
from .results import PickedRequest


def value_of(request: PickedRequest, candidate: Candidate, name: str) -> ReadOnlyJSON | None:
    """Returns the attribute of a device with the fully qualified name ``name``, as constraints compare it for a request.

    A derived attribute of the request shadows the attribute of the device. Raises :class:`SelectorFault` if it cannot be evaluated. The
    pod then fits on no node, although other devices may have a value.
    """
    for one in request.spec.get("derivedAttributes") or ():
        if one["name"] == name:
            return _evaluate(request, candidate, one)
    return attribute_of(candidate, name)


def _evaluate(request: PickedRequest, candidate: Candidate, derived: ReadOnlyJSON) -> ReadOnlyJSON:
    expression = derived["expression"]
    found = candidate.derived.get(expression)
    if found is None:
        where = f"request {request.full_name}: derived attribute {derived['name']}"
        try:
            # As for selectors, an API server without list support has already rejected expressions that need lists.
            found = cel.compile_derived(expression, list_attributes=True).attribute(candidate.cel_device)
        except cel.CompileError as e:
            raise SelectorFault(f"{where}: CEL compile error: {e}") from None
        except cel.CelError as e:
            raise SelectorFault(f"{where}: CEL runtime error on device {candidate.id}: {e}") from None
        candidate.derived[expression] = found
    return found
