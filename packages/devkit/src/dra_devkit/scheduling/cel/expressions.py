"""Compiles expressions over API objects: admission policies, webhooks' match conditions, and rules of custom resources."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .checker import Checker
from .declarations import FUNCTIONS, Overload, parse_type
from .evaluator import plan
from .frame import Frame, run_to_end
from .lexer import Source, bounded_depth
from .library_authorizer import AUTHORIZER_FUNCTIONS
from .parser import Parser
from .types import is_dyn
from .values import CelError, CompileError, Type, type_of

# Cost limits, in cost units.
CALL_LIMIT = 1_000_000  # for one expression
BUDGET = 10_000_000  # for all expressions of one policy together, or of one object
# For all match conditions of one policy or webhook together. The other expressions of the policy have a separate budget.
MATCH_CONDITIONS_BUDGET = 2_500_000
_SPENT = "validation failed due to running out of cost budget, no further validation rules will be run"
Objects = Mapping[str, Mapping[str, Type]]

_TEXT, _TEXTS = parse_type("string"), parse_type("list(string)")
_TEXT_MAP = parse_type("map(string, string)")
DYN = parse_type("dyn")
_RESOURCE = parse_type("kubernetes.GroupVersionResource")
_KIND = parse_type("kubernetes.GroupVersionKind")
ADMISSION_OBJECTS: Objects = {
    "kubernetes.AdmissionRequest": {
        **dict.fromkeys(("kind", "requestKind"), _KIND),
        **dict.fromkeys(("resource", "requestResource"), _RESOURCE),
        **dict.fromkeys(("subResource", "requestSubResource", "name", "namespace", "operation"), _TEXT),
        "userInfo": parse_type("kubernetes.UserInfo"),
        "dryRun": parse_type("bool"),
        "options": DYN,
    },
    "kubernetes.GroupVersionKind": dict.fromkeys(("group", "version", "kind"), _TEXT),
    "kubernetes.GroupVersionResource": dict.fromkeys(("group", "version", "resource"), _TEXT),
    "kubernetes.UserInfo": {
        "username": _TEXT,
        "uid": _TEXT,
        "groups": _TEXTS,
        "extra": parse_type("map(string, list(string))"),
    },
    "kubernetes.Namespace": {
        "metadata": parse_type("kubernetes.NamespaceMetadata"),
        "spec": parse_type("kubernetes.NamespaceSpec"),
        "status": parse_type("kubernetes.NamespaceStatus"),
    },
    "kubernetes.NamespaceMetadata": {
        **dict.fromkeys(("name", "generateName", "namespace", "UID", "resourceVersion"), _TEXT),
        **dict.fromkeys(("labels", "annotations"), _TEXT_MAP),
        **dict.fromkeys(("creationTimestamp", "deletionTimestamp"), parse_type("google.protobuf.Timestamp")),
        **dict.fromkeys(("generation", "deletionGracePeriodSeconds"), parse_type("int")),
        "finalizers": _TEXTS,
    },
    "kubernetes.NamespaceSpec": {"finalizers": _TEXTS},
    "kubernetes.NamespaceStatus": {"phase": _TEXT},
    "kubernetes.authorization.Authorizer": {"requestResource": parse_type("kubernetes.authorization.ResourceCheck")},
}
ADMISSION_VARIABLES: Mapping[str, Type] = {
    "object": DYN,
    "oldObject": DYN,
    "request": parse_type("kubernetes.AdmissionRequest"),
    "namespaceObject": parse_type("kubernetes.Namespace"),
    "authorizer": parse_type("kubernetes.authorization.Authorizer"),
}


@dataclass(frozen=True)
class CelEnvironment:
    """The environment of expressions: variables, the fields of object types, and functions."""

    variables: Mapping[str, Type]
    objects: Objects = field(default_factory=dict)
    functions: Mapping[str, list[Overload]] = field(default_factory=lambda: {**FUNCTIONS, **AUTHORIZER_FUNCTIONS})


@dataclass
class Budget:
    """The cost that the expressions of one policy, which share a limit, may still use."""

    remaining: int = BUDGET


class Expression:
    """A compiled expression whose value has type ``wanted``; any type if ``wanted`` is None.

    Raises :class:`CompileError` with Kubernetes' text.
    """

    def __init__(self, text: str, environment: CelEnvironment, wanted: Type | None = None) -> None:
        self.text = text
        source = Source(text)
        self._wanted = wanted
        with bounded_depth():
            tree = Parser(source).parse()
            self.type = Checker(source, environment.variables, environment.objects, environment.functions).check(tree)
            if wanted is not None and self.type != wanted and not is_dyn(self.type):
                raise CompileError(f"must evaluate to {wanted}")
            self._plan = plan(tree)

    def evaluate(self, values: Mapping[str, Any], budget: Budget) -> Any:
        """Evaluates the expression.

        Raises :class:`CelError` if the evaluation fails, if the value has the wrong type, or if the budget is exceeded.
        """
        if budget.remaining < 0:
            raise CelError(_SPENT)
        frame = Frame(dict(values), CALL_LIMIT)
        value = run_to_end(self._plan.run, frame)
        if frame.cost > budget.remaining:
            budget.remaining = -1
            raise CelError(_SPENT)
        budget.remaining -= frame.cost
        if isinstance(value, CelError):
            raise value
        if self._wanted is not None and type_of(value) != self._wanted:
            raise CelError(f"cannot convert the value of type {type_of(value)} to {self._wanted}")
        return value


class LazyVariables(dict[str, Any]):
    """Values by variable name, each computed when it is first read. If the computation fails, the error is the value."""

    def __init__(self, compute: Mapping[str, Callable[[], Any]]) -> None:
        super().__init__(compute)
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            try:
                self._known[name] = super().__getitem__(name)()
            except CelError as e:
                self._known[name] = CelError(f'composited variable "{name}" fails to evaluate: {e}')
        return self._known[name]
