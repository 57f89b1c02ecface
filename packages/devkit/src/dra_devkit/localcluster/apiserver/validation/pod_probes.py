"""Validates probes, lifecycle hooks and restart rules of containers. Source: the validation package of the core API group."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dra_kubeletplugin.base.json_types import ReadOnlyJSON
from dra_kubeletplugin.resourceapi.validation.field_errors import FieldError, forbidden, invalid, required, unsupported

from .checks import at_least, missing, optional_choice, port, positive

_HANDLERS = ("exec", "httpGet", "tcpSocket", "grpc")
_HOOKS = ("exec", "httpGet", "tcpSocket", "sleep")
_SCHEMES = ("HTTP", "HTTPS")
_TIMES = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
_MESSAGES = ("FallbackToLogsOnError", "File")
_RULE_OPERATORS = ("In", "NotIn")
_RULE_ACTIONS = ("Restart",)


def validate_lifecycle(container: ReadOnlyJSON, where: str) -> Iterator[FieldError]:
    """Yields all errors of a container's probes, lifecycle hooks, termination message policy and restart rules."""
    for field in ("livenessProbe", "readinessProbe", "startupProbe"):
        if (probe := container.get(field)) is not None:
            yield from _probe(probe, f"{where}.{field}", field)
    for hook in ("postStart", "preStop"):
        if (handler := (container.get("lifecycle") or {}).get(hook)) is not None:
            yield from _handler(handler, f"{where}.lifecycle.{hook}", _HOOKS)
    policy = container.get("terminationMessagePolicy") or None
    yield from optional_choice(policy, f"{where}.terminationMessagePolicy", _MESSAGES)
    yield from _restart_rules(container, where)


def _probe(probe: ReadOnlyJSON, path: str, kind: str) -> Iterator[FieldError]:
    yield from _handler(probe, path, _HANDLERS)
    yield from at_least(probe, path, 0, *_TIMES)
    grace = probe.get("terminationGracePeriodSeconds")
    if kind == "readinessProbe":
        if grace is not None:
            yield invalid(f"{path}.terminationGracePeriodSeconds", grace, "must not be set for readinessProbes")
        return
    yield from positive(probe, path, "terminationGracePeriodSeconds")
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
            yield from missing(how, at, "command")
        elif kind != "sleep":
            yield from port(how.get("port"), f"{at}.port")
        if kind == "httpGet":
            yield from optional_choice(how.get("scheme"), f"{at}.scheme", _SCHEMES)


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
