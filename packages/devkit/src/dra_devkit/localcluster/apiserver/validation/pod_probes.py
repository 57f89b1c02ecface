"""Validates probes, lifecycle hooks and restart rules of containers. Source: the validation package of the core API group."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required, unsupported

_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "tcpSocket", "sleep")
_SCHEMES = ("HTTP", "HTTPS")
_PORT_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_TIMES = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_MESSAGES = ("FallbackToLogsOnError", "File")
_RULE_OPERATORS = ("In", "NotIn")
_RULE_ACTIONS = ("Restart",)


def validate_lifecycle(container: ReadOnlyJSON, where: str) -> list[FieldError]:
    """Returns all errors of a container's probes, lifecycle hooks, termination message policy and restart rules."""
    return list(_lifecycle(container, where))


def _lifecycle(container: ReadOnlyJSON, where: str) -> Iterator[FieldError]:
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(field)) is not None:
            yield from _probe(probe, f"{where}.{field}", field)
    for hook in ("postStart", "preStop"):
        if (handler := (container.get("lifecycle") or {}).get(hook)) is not None:
            yield from _handler(handler, f"{where}.lifecycle.{hook}", _HOOKS)
    policy = container.get("terminationMessagePolicy")
    if policy and policy not in _MESSAGES:
        yield unsupported(f"{where}.terminationMessagePolicy", policy, _MESSAGES)
    yield from _restart_rules(container, where)


def _probe(probe: ReadOnlyJSON, path: str, kind: str) -> Iterator[FieldError]:
    yield from _handler(probe, path, _HANDLERS)
    for field in _TIMES:
        if (probe.get(field) or 0) < 0:
            yield invalid(f"{path}.{field}", probe[field], "must be greater than or equal to 0")
    grace = probe.get("terminationGracePeriodSeconds")
    if kind == "readinessProbe":
        if grace is not None:
            yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
        return
    if grace is not None and grace <= 0:
        yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must be greater than 0")
    if (probe.get("successThreshold") or 1) > 1:
        yield invalid(f"{path}.successThreshold", probe["successThreshold"], "must be 1")


def _handler(handler: ReadOnlyJSON, path: str, kinds: Sequence[str]) -> Iterator[FieldError]:
    handlers = [k for k in kinds if handler.get(k) is not None]
    if not handlers:
        yield required(path, "must specify a handler type")
    for extra in handlers[1:]:
        yield forbidden(f"{path}.{extra}", "may not specify more than 1 handler type")
    for kind in handlers[:1]:
        how, at = handler[kind], f"{path}.{kind}"
        if kind == "exec":
            if not how.get("command"):
                yield required(f"{at}.command")
        elif kind != "sleep":
            yield from validate_port(how.get("port"), f"{at}.port")
        if kind == "httpGet" and how.get("scheme", "HTTP") not in _SCHEMES:
            yield unsupported(f"{at}.scheme", how["scheme"], _SCHEMES)


def validate_port(port: Any, path: str) -> Iterator[FieldError]:
    """Yields the error of a port, which is a number or a name."""
    if isinstance(port, str):
        if len(port) > 15 or not _PORT_NAME.fullmatch(port) or not any(c.isalpha() for c in port) or "--" in port:
            yield invalid(path, port, "must be a valid port name of at most 15 characters (e.g. http or http-2)")
    elif not 1 <= (port or 0) <= 65535:
        yield invalid(path, port or 0, "must be between 1 and 65535, inclusive")


def _restart_rules(container: ReadOnlyJSON, where: str) -> Iterator[FieldError]:
    rules = container.get("restartPolicyRules") or []
    if rules and container.get("restartPolicy") is None:
        yield required(f"{where}.restartPolicy", "must specify restartPolicy when restart rules are used")
    for i, rule in enumerate(rules):
        at = f"{where}.restartPolicyRules[{i}]"
        if rule.get("action") not in _RULE_ACTIONS:
            yield unsupported(f"{at}.action", rule.get("action", ""), _RULE_ACTIONS)
        codes = rule.get("exitCodes")
        if codes is None:
            yield required(f"{at}.exitCodes", "must be specified")
        elif codes.get("operator") not in _RULE_OPERATORS:
            yield unsupported(f"{at}.exitCodes.operator", codes.get("operator", ""), _RULE_OPERATORS)
