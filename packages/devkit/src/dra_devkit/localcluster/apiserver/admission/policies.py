"""Evaluates ValidatingAdmissionPolicies and their bindings for a request (KEP-3488)."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dra_kubeletplugin.base.json_types import JSON

from ....label_selectors import selected
from ....scheduling.cel.expressions import Budget, LazyVariables
from ....scheduling.cel.values import CelError, CompileError
from .. import strategy
from ..access import Access
from ..custom_rules import message_of
from ..kinds import Registry
from ..requests import details_of
from ..status_errors import StatusError
from ..storage import Storage
from ..validation.policies import Program, compile_policy
from .attributes import Attributes, View
from .conditions import holds, values
from .matching import Matcher

POLICIES = "validatingadmissionpolicies.admissionregistration.k8s.io"
BINDINGS = "validatingadmissionpolicybindings.admissionregistration.k8s.io"
_EVERY = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}
_CODES = {"Unauthorized": 401, "Forbidden": 403, "Invalid": 422, "RequestEntityTooLarge": 413}


@dataclass(frozen=True)
class Failure:
    """The failure of a validation. If ``error`` is true, the validation could not be evaluated, and the failure policy applies."""

    message: str
    reason: str = ""
    error: bool = False


class MisconfiguredError(Exception):
    """A policy or binding cannot be evaluated because its configuration is wrong."""


class Policies:
    def __init__(self, storage: Storage, registry: Registry, access: Access, matcher: Matcher) -> None:
        self.storage, self.registry, self.access, self.matcher = storage, registry, access, matcher

    @property
    def any(self) -> bool:
        return bool(self.storage.list(BINDINGS))

    def validate(self, attributes: Attributes, warnings: list[str]) -> None:
        """Evaluates all policies that apply, and appends their warnings to ``warnings``. Raises :class:`StatusError` on a denial."""
        bindings = self.storage.list(BINDINGS)
        for policy in sorted(self.storage.list(POLICIES), key=lambda p: str(p["metadata"]["name"])):
            name, spec = policy["metadata"]["name"], policy["spec"]
            constraints = spec.get("matchConstraints") or {}
            bound = [b for b in bindings if b["spec"].get("policyName") == name]
            view = bound and self.matcher.view(constraints, constraints.get("resourceRules") or (), attributes)
            if not view:
                continue
            for binding in sorted(bound, key=lambda b: str(b["metadata"]["name"])):
                if self._is_for(binding, attributes):
                    self._apply(policy, binding, view, warnings)

    def _is_for(self, binding: JSON, attributes: Attributes) -> bool:
        resources = binding["spec"].get("matchResources")
        if not resources:
            return True
        rules = resources.get("resourceRules")
        if rules is None:  # a binding without rules applies to all requests that its policy matches
            rules = [_EVERY]
        return self.matcher.view(resources, rules, attributes) is not None

    def _apply(self, policy: JSON, binding: JSON, view: View, warnings: list[str]) -> None:
        name, bound = policy["metadata"]["name"], binding["metadata"]["name"]
        actions = binding["spec"].get("validationActions") or ()
        ignores = policy["spec"].get("failurePolicy") == "Ignore"
        for failure in self._failures(policy, binding, view):
            if failure.error and ignores:
                continue
            if "Warn" in actions:
                warnings.append(
                    f"Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{bound}': {failure.message}"
                )
            if "Deny" in actions:
                raise _denied(view.attributes, name, bound, failure)

    def _failures(self, policy: JSON, binding: JSON, view: View) -> Iterator[Failure]:
        try:
            program = _compiled(json.dumps(policy["spec"]))
            for params in self._params(policy["spec"], binding["spec"], view):
                yield from self._evaluated(program, params, view)
        except MisconfiguredError as e:
            yield Failure(f"failed to configure binding: {e}", error=True)
        except CompileError as e:
            yield Failure(f"failed to configure policy: {e}", error=True)

    def _evaluated(self, program: Program, params: JSON | None, view: View) -> Iterator[Failure]:
        budget = Budget()
        known = values(view, self.matcher.namespace_of(view.attributes), self.access)
        known["params"] = params
        known["variables"] = LazyVariables(
            {name: functools.partial(e.evaluate, known, budget) for name, e in program.variables.items()}
        )
        try:
            if not holds(program.conditions, known):
                return
        except CelError as e:
            yield Failure(str(e), error=True)
            return
        for validation in program.validations:
            text = validation.expression.text.strip()
            try:
                if validation.expression.evaluate(known, budget):
                    continue
            except CelError as e:
                yield Failure(f"expression '{text}' resulted in error: {e}", error=True)
                continue
            message = message_of(validation.message_expression, known, budget) or validation.message.strip()
            yield Failure(message or f"failed expression: {text}", validation.reason)
        for key, annotation in program.annotations.items():
            try:
                annotation.evaluate(known, budget)
            except CelError as e:
                yield Failure(f"auditAnnotation '{key}' resulted in error: {e}", error=True)

    # --- parameters -----------------------------------------------------------------------------

    def _params(self, policy: JSON, binding: JSON, view: View) -> Sequence[JSON | None]:
        """Returns the parameter objects of a binding. The policy is evaluated once for each object. Raises :class:`MisconfiguredError`."""
        wanted, reference = policy.get("paramKind"), binding.get("paramRef")
        if not wanted or not reference:
            return [None]
        version, kind_name = str(wanted.get("apiVersion") or ""), str(wanted.get("kind") or "")
        kind = self.registry.by_kind(version, kind_name)
        if kind is None:
            raise MisconfiguredError(f"failed to find resource referenced by paramKind: '{version}, Kind={kind_name}'")
        namespace = str(reference.get("namespace") or "")
        if not kind.namespaced and namespace:
            raise MisconfiguredError("paramRef.namespace must not be provided for a cluster-scoped `paramKind`")
        if kind.namespaced and not namespace:
            namespace = view.attributes.target.namespace
            if not namespace:
                raise MisconfiguredError(
                    "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources"
                )
        name = reference.get("name")
        if name:
            one = self.storage.get(kind.storage, namespace, name)
            found = [one] if one is not None else []
        else:
            selector = reference.get("selector")
            every = self.storage.list(kind.storage, namespace)
            found = [o for o in every if selected(o["metadata"].get("labels") or {}, selector)]
        if not found and reference.get("parameterNotFoundAction") != "Allow":
            raise MisconfiguredError("no params found for policy binding with `Deny` parameterNotFoundAction")
        return [strategy.outgoing(kind, version.rpartition("/")[2], o) for o in found]


def _denied(attributes: Attributes, policy: str, binding: str, failure: Failure) -> StatusError:
    message = f"ValidatingAdmissionPolicy '{policy}' with binding '{binding}' denied request: {failure.message}"
    reason = failure.reason or "Invalid"
    target = attributes.target
    details = {**details_of(target, attributes.name), "causes": [{"message": message}]}
    sentence = f'{target.kind.key} "{attributes.name}" is forbidden: {message}'
    return StatusError(_CODES.get(reason, 422), reason, sentence, details)


@functools.lru_cache(maxsize=256)
def _compiled(spec: str) -> Program:
    """Returns the compiled policy for the JSON text of its spec. The text is the cache key."""
    return compile_policy(json.loads(spec))
