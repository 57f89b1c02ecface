"""Validates admission policies and webhook configurations, and compiles their CEL expressions."""

from __future__ import annotations

import base64
import binascii
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required, unsupported

from ....scheduling.cel.declarations import parse_type
from ....scheduling.cel.expressions import ADMISSION_OBJECTS, ADMISSION_VARIABLES, DYN, CelEnvironment, Expression
from ....scheduling.cel.values import CompileError, Type
from .checks import label_selector, missing, optional_choice

_BOOL, _STRING = Type("bool"), Type("string")
_REASONS = ("Forbidden", "Invalid", "RequestEntityTooLarge", "Unauthorized")
_FAILURE_POLICIES = ("Fail", "Ignore")
_ACTIONS = ("Audit", "Deny", "Warn")
_OPERATIONS = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
_VARIABLES = "kubernetes.variables"


@dataclass(frozen=True)
class PolicyValidation:
    expression: Expression
    message: str
    message_expression: Expression | None
    reason: str


@dataclass(frozen=True)
class Program:
    """The compiled expressions of a policy."""

    variables: Mapping[str, Expression]
    conditions: Mapping[str, Expression]
    validations: tuple[PolicyValidation, ...]
    annotations: Mapping[str, Expression]


class _Compiler:
    """Compiles the expressions of a policy in order, because an expression may use the previous variables. ``faults`` has the errors."""

    def __init__(self, *, params: bool, variables: bool) -> None:
        self.faults: list[FieldError] = []
        self._known: dict[str, Type] = {}
        self._names = dict(ADMISSION_VARIABLES) | ({"params": DYN} if params else {})
        if variables:
            self._names["variables"] = parse_type(_VARIABLES)

    def compile(self, text: Any, path: str, wanted: Type | None) -> Expression | None:
        text = str(text or "")
        if not text.strip():
            self.faults.append(required(path, "expression is not specified"))
            return None
        try:
            environment = CelEnvironment(self._names, {**ADMISSION_OBJECTS, _VARIABLES: self._known})
            return Expression(text, environment, wanted)
        except (CompileError, RecursionError) as e:
            self.faults.append(invalid(path, text, str(e) or "the expression is nested too deeply"))
            return None

    def named(self, items: Any, path: str, wanted: Type | None, key: str, text: str) -> dict[str, Expression]:
        """Compiles a list of named expressions: variables, match conditions or audit annotations."""
        out: dict[str, Expression] = {}
        for i, item in enumerate(items or ()):
            name, where = str(item.get(key) or ""), f"{path}[{i}]"
            if not name:
                self.faults.append(required(f"{where}.{key}"))
            elif name in out:
                self.faults.append(FieldError("FieldValueDuplicate", f"{where}.{key}", f'Duplicate value: "{name}"'))
            expression = self.compile(item.get(text), f"{where}.{text}", wanted)
            if expression is not None:
                out[name] = expression
                if path == "spec.variables":
                    self._known[name] = expression.type
        return out


def _compiled(spec: Mapping[str, Any]) -> tuple[Program, list[FieldError]]:
    compiler = _Compiler(params=bool(spec.get("paramKind")), variables=True)
    variables = compiler.named(spec.get("variables"), "spec.variables", None, "name", "expression")
    conditions = compiler.named(spec.get("matchConditions"), "spec.matchConditions", _BOOL, "name", "expression")
    validations: list[PolicyValidation] = []
    for i, item in enumerate(spec.get("validations") or ()):
        where = f"spec.validations[{i}]"
        expression = compiler.compile(item.get("expression"), f"{where}.expression", _BOOL)
        message = None
        if message_text := item.get("messageExpression"):
            message = compiler.compile(message_text, f"{where}.messageExpression", _STRING)
        if expression is not None:
            validations.append(
                PolicyValidation(expression, str(item.get("message") or ""), message, str(item.get("reason") or ""))
            )
    annotations = compiler.named(spec.get("auditAnnotations"), "spec.auditAnnotations", None, "key", "valueExpression")
    return Program(variables, conditions, tuple(validations), annotations), compiler.faults


def compile_policy(spec: Mapping[str, Any]) -> Program:
    """Compiles the spec of a policy.

    Raises:
        CompileError: An expression does not compile.
    """
    program, faults = _compiled(spec)
    if faults:
        raise CompileError(f"{faults[0].field}: {faults[0].message}")
    return program


def compile_conditions(conditions: Any) -> dict[str, Expression]:
    """Returns a webhook's compiled match conditions, by name.

    Raises:
        CompileError: An expression does not compile.
    """
    compiler = _Compiler(params=False, variables=False)
    found = compiler.named(conditions, "matchConditions", _BOOL, "name", "expression")
    if compiler.faults:
        raise CompileError(f"{compiler.faults[0].field}: {compiler.faults[0].message}")
    return found


# --- policies ---------------------------------------------------------------------------------------


def policy(obj: ReadOnlyJSON, _: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a ValidatingAdmissionPolicy."""
    spec = obj.get("spec") or {}
    out: list[FieldError] = []
    out += missing(spec, "spec", "matchConstraints")
    if constraints := spec.get("matchConstraints"):
        out += missing(constraints, "spec.matchConstraints", "resourceRules")
        out += _resources(constraints, "spec.matchConstraints")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        out.append(required("spec.validations", "validations or auditAnnotations must be specified"))
    out += optional_choice(spec.get("failurePolicy"), "spec.failurePolicy", _FAILURE_POLICIES)
    if kind := spec.get("paramKind"):
        out += missing(kind, "spec.paramKind", "apiVersion", "kind")
    for i, item in enumerate(spec.get("validations") or ()):
        out += optional_choice(item.get("reason"), f"spec.validations[{i}].reason", _REASONS)
        message = str(item.get("message") or "")
        if "\n" in message.strip():
            out.append(invalid(f"spec.validations[{i}].message", message, "message must not contain line breaks"))
        if not message.strip() and "\n" in str(item.get("expression") or "").strip():
            why = "message must be specified if expression contains line breaks"
            out.append(required(f"spec.validations[{i}].message", why))
    return out + _compiled(spec)[1]


def policy_binding(obj: ReadOnlyJSON, _: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a ValidatingAdmissionPolicyBinding."""
    spec = obj.get("spec") or {}
    out = missing(spec, "spec", "policyName", "validationActions")
    actions = spec.get("validationActions") or []
    out += [unsupported("spec.validationActions", a, _ACTIONS) for a in actions if a not in _ACTIONS]
    if {"Deny", "Warn"} <= set(actions):
        why = (
            'must not contain both "Deny" and "Warn" (repeating the same validation failure information in the API response and '
            "headers serves no purpose)"
        )
        out.append(invalid("spec.validationActions", actions, why))
    if reference := spec.get("paramRef"):
        if bool(reference.get("name")) == bool(reference.get("selector") is not None):
            why = "name and selector are mutually exclusive, and one of them must be set"
            out.append(forbidden("spec.paramRef.name", why))
        if reference.get("parameterNotFoundAction") not in {"Allow", "Deny"}:
            out.append(required("spec.paramRef.parameterNotFoundAction"))
        out += label_selector(reference.get("selector"), "spec.paramRef.selector")
    return out + _resources(spec.get("matchResources") or {}, "spec.matchResources")


def _resources(resources: Mapping[str, Any], path: str) -> list[FieldError]:
    out = _selectors(resources, path)
    out += optional_choice(resources.get("matchPolicy"), f"{path}.matchPolicy", ("Equivalent", "Exact"))
    for name in ("resourceRules", "excludeResourceRules"):
        out += _rules(resources.get(name), f"{path}.{name}")
    return out


def _selectors(owner: Mapping[str, Any], path: str) -> list[FieldError]:
    return [f for s in ("namespaceSelector", "objectSelector") for f in label_selector(owner.get(s), f"{path}.{s}")]


def _rules(rules: Any, path: str) -> list[FieldError]:
    out: list[FieldError] = []
    for i, rule in enumerate(rules or ()):
        where = f"{path}[{i}]"
        out += missing(rule, where, "operations", "apiGroups", "apiVersions", "resources")
        for operation in rule.get("operations") or ():
            out += optional_choice(operation, f"{where}.operations", _OPERATIONS)
    return out


# --- webhooks ---------------------------------------------------------------------------------------


def webhooks(obj: ReadOnlyJSON, _: ReadOnlyJSON | None) -> list[FieldError]:
    """Returns all errors of a webhook configuration."""
    out: list[FieldError] = []
    for i, hook in enumerate(obj.get("webhooks") or ()):
        where = f"webhooks[{i}]"
        name = str(hook.get("name") or "")
        if len(name.split(".")) < 3:
            why = "should be a domain with at least three segments separated by dots"
            out.append(invalid(f"{where}.name", name, why))
        out += _client(hook.get("clientConfig") or {}, f"{where}.clientConfig")
        out += _rules(hook.get("rules"), f"{where}.rules")
        out += _selectors(hook, where)
        out += optional_choice(hook.get("failurePolicy"), f"{where}.failurePolicy", _FAILURE_POLICIES)
        if not hook.get("sideEffects"):
            out.append(required(f"{where}.sideEffects", "must specify one of None, NoneOnDryRun"))
        else:
            out += optional_choice(hook["sideEffects"], f"{where}.sideEffects", ("None", "NoneOnDryRun"))
        versions = hook.get("admissionReviewVersions") or []
        if not versions:
            out.append(required(f"{where}.admissionReviewVersions", "must specify one of v1, v1beta1"))
        elif "v1" not in versions:
            why = "must include v1, the only version that the local cluster sends"
            out.append(invalid(f"{where}.admissionReviewVersions", versions, why))
        seconds = hook.get("timeoutSeconds")
        if seconds is not None and not 1 <= seconds <= 30:
            why = "the timeout value must be between 1 and 30 seconds"
            out.append(invalid(f"{where}.timeoutSeconds", seconds, why))
        compiler = _Compiler(params=False, variables=False)
        compiler.named(hook.get("matchConditions"), f"{where}.matchConditions", _BOOL, "name", "expression")
        out += compiler.faults
    return out


def _client(config: Mapping[str, Any], path: str) -> list[FieldError]:
    out: list[FieldError] = []
    url, service = config.get("url"), config.get("service")
    if bool(url) == bool(service):
        out.append(required(path, "exactly one of url or service is required"))
    elif url:
        parts = urlsplit(str(url))
        if parts.scheme != "https":
            why = "'https' is the only allowed URL scheme; desired format: https://host[/path]"
            out.append(invalid(f"{path}.url", url, why))
        elif not parts.hostname:
            out.append(invalid(f"{path}.url", url, "host must be specified; desired format: https://host[/path]"))
        elif parts.query or parts.fragment or parts.username is not None:
            why = "user, query parameters and fragments are not permitted"
            out.append(invalid(f"{path}.url", url, why))
    if bundle := config.get("caBundle"):
        try:
            ssl.create_default_context().load_verify_locations(cadata=base64.b64decode(bundle, validate=True).decode())
        except (ssl.SSLError, binascii.Error, ValueError):
            why = "unable to load root certificates: unable to parse bytes as PEM block"
            out.append(invalid(f"{path}.caBundle", "...", why))
    return out
