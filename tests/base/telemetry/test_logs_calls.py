"""Each log call has a constant message: text first, values after it. Fields of ``extra=`` have known names."""

from __future__ import annotations

import ast
from collections.abc import Iterator

import pytest

from tests.tools.tree import PACKAGES, ROOT, modules

METHODS = {"debug": 0, "info": 0, "warning": 0, "error": 0, "exception": 0, "critical": 0, "log": 1}
# Functions that log for their callers, and the index of their message. Their own log call passes this message on.
FORWARDING_FUNCTIONS = {"log_sample": 2, "retries.log": 1, "_log_devices": 1}
FORWARDED_NAMES = {
    "src/dra_kubeletplugin/base/telemetry/logs.py": "text",
    "src/dra_kubeletplugin/claims/rollback_retries.py": "message",
    "src/dra_kubeletplugin/devices/inventory.py": "message",
}
FIELDS = {
    "claim", "claim_uid", "pod", "pod_uid", "device", "devices", "pool", "driver", "drivers", "node", "request", "generation",
    "duration_s", "error_code", "kind", "object", "container",
}  # fmt: skip


def calls(tree: ast.AST) -> Iterator[tuple[ast.Call, ast.expr]]:
    """Yields each call that logs, with its message."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = ast.unparse(node.func)
        receiver, _, method = name.rpartition(".")
        if method in METHODS and receiver.rpartition(".")[2] in {"log", "logger"}:
            yield node, node.args[METHODS[method]]
        for function, index in FORWARDING_FUNCTIONS.items():
            if name == function or name.endswith(f".{function}") or (name == "self.log" and function == "retries.log"):
                yield node, node.args[index]


@pytest.fixture(scope="module")
def calls_by_file() -> dict[str, list[tuple[ast.Call, ast.expr]]]:
    found = {str(p.relative_to(ROOT)): list(calls(ast.parse(p.read_text()))) for p in modules()}
    return {name: of_file for name, of_file in found.items() if of_file}


def test_each_log_call_begins_with_constant_text(calls_by_file: dict[str, list[tuple[ast.Call, ast.expr]]]) -> None:
    wrong = []
    for name, found in calls_by_file.items():
        for call, message in found:
            if isinstance(message, ast.Constant) and isinstance(message.value, str):
                if message.value.startswith("%"):
                    wrong.append((name, ast.unparse(call)))
            elif ast.unparse(message) != FORWARDED_NAMES.get(name):
                wrong.append((name, ast.unparse(call)))
    assert not wrong
    framework = f"{PACKAGES['framework'].source.relative_to(ROOT)}/"
    tops = {name.removeprefix(framework).split("/")[0] for name in calls_by_file if name.startswith(framework)}
    assert {"base", "host", "kube", "driver", "devices", "claims", "plugin", "cli"} <= tops, "the calls are found"


def test_fields_have_known_names(calls_by_file: dict[str, list[tuple[ast.Call, ast.expr]]]) -> None:
    used = set()
    for call, _ in [call for found in calls_by_file.values() for call in found]:
        for extra in (k.value for k in call.keywords if k.arg == "extra"):
            used |= {k.value for k in getattr(extra, "keys", ()) if isinstance(k, ast.Constant)}
    assert used <= FIELDS, used - FIELDS
    assert len(used) > 8
